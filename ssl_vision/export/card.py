"""The model card: training, evaluation and loading of a backbone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_vision.cli.classes import class_paths
from ssl_vision.errors import InputError
from ssl_vision.pretrained.backbones import Pretrained
from ssl_vision.runs.checkpoint import Checkpoint
from ssl_vision.runs.evaluation_file import preferred, read_rows
from ssl_vision.runs.settings import class_name, last_part

# Options of the data that affect only location and speed.
_OMITTED = {
    "changed",
    "cache", "cache_dir", "compile", "download", "eval_batch_size", "resident", "root", "val", "val_share",
}  # fmt: skip


def card(
    checkpoint: Checkpoint,
    given: Pretrained,
    rows: Sequence[Mapping[str, Any]],
    *,
    snippet: str,
    checked: str,
    versions: Mapping[str, str],
) -> str:
    """Write the model card as Markdown.

    Args:
        checkpoint: checkpoint of the backbone.
        given: the backbone.
        rows: rows of its evaluation, if any.
        snippet: Python code that loads it.
        checked: result of loading it.
        versions: versions of the libraries by name.
    """
    config, about = checkpoint.config, given.description
    model, data = config["model"]["init_args"], config["data"]
    objective, dataset = class_name(model.get("objective"), "InfoNCE"), class_name(data)
    data_options = {key: value for key, value in data["init_args"].items() if key not in (*_OMITTED, "views")}
    views = {k: v for k, v in data["init_args"]["views"].items() if k not in (*_OMITTED, "mean", "std")}
    total = (
        f" of {config['trainer']['max_epochs']}" if (config.get("trainer") or {}).get("max_epochs") else ""
    )
    optimizer = dict(model.get("optimizer") or {})
    start = config.get("initial_checkpoint")
    if not start and (model.get("encoder") or {}).get("init_args", {}).get("pretrained"):
        start = "timm's pretrained weights"
    labels = "with labels" if "SupCon" in map(last_part, class_paths(model)) else "without labels"
    if start:
        labels = "from weights of another training"
    size = sum(parameter.numel() for parameter in given.backbone.parameters())
    channels = len(about.mean)
    colours = "RGB" if channels == 3 else f"{channels} channels"
    facts = {
        "encoder": f"{_plain(about.encoder)}; {size:,} parameters, {given.backbone.num_features} features",
        "input": f"float32 (N, {channels}, {about.size}, {about.size}), {colours} in [0, 1] less "
        f"{_plain(about.mean)}, divided by {_plain(about.std)}",
        "data": f"{dataset} ({_plain(data_options)})",
        "digest of the training images": checkpoint.images or "not recorded",
        "views": _plain(views),
        "objective": _plain(model.get("objective") or "InfoNCE"),
        "projection head": f"{model.get('hidden_dim')} hidden, {model.get('output_dim')} out, not included",
        "optimizer": f"{optimizer.pop('name', 'unknown')} ({_plain(optimizer)})",
        "epochs": f"{checkpoint.epoch}{total}",
        "seed": str(config.get("seed_everything")),
        "initial weights": f"from {_plain(start)}" if start else "random",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return "\n".join(
        [
            f"# {class_name(about.encoder)} pretrained on {dataset} with {objective}, {labels}",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in facts.items()),
            "",
            "## Load",
            "",
            "```python",
            snippet,
            "```",
            "",
            checked,
            "",
            "## Evaluation",
            "",
            *_evaluation(rows),
            "",
        ]
    )


def evaluation_rows(file: Path, config: Mapping[str, Any], *, epoch: int) -> list[dict[str, Any]]:
    """Rows of an ``evaluation.json`` about the backbone of an epoch, and those of the baselines.

    Args:
        file: the evaluation.
        config: config of the run, whose own data set takes precedence.
        epoch: epoch of the checkpoint.

    Raises:
        InputError: the file was not written by ``ssl-vision evaluate``.
    """
    try:
        rows = preferred(read_rows(file, config), config)
        trained = [row for row in rows if row["features"] == "trained" and row["epoch"] == epoch]
        baselines = [row for row in rows if row["features"] != "trained"]
        shown = [row for row in trained if row["layer"] == "backbone"]
        _evaluation(shown + baselines)
    except InputError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{file}: not written by ssl-vision evaluate") from error
    return shown + baselines if shown else []


def protocol(row: Mapping[str, Any]) -> dict[str, Any]:
    """Select the fields of an evaluation row that say how it was measured, without null values and paths."""
    named = ("features", "layer", "metric", "value", "root", "options", "weights")
    fields = {key: value for key, value in row.items() if key not in named and value is not None}
    if "settings" in fields:  # such as "image_size 96, train /data/photos"
        options = (option.partition(" ") for option in fields["settings"].split(", "))
        fields["settings"] = ", ".join(f"{name}{space}{_plain(value)}" for name, space, value in options)
    return {key: _plain(value) if isinstance(value, str) else value for key, value in fields.items()}


def _evaluation(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return ["This checkpoint has not been evaluated. Run `ssl-vision evaluate`."]
    lines = ["| features | layer | metric | value | protocol |", "|---|---|---|---|---|"]
    for row in rows:
        cells = (row["features"], row["layer"], row["metric"], f"{row['value']:.4f}", _plain(protocol(row)))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _plain(value: Any) -> str:
    """Format a config value on one line, with classes as names and options, and without null values.

    Absolute paths and paths below the home directory are reduced to their last component.
    """
    if isinstance(value, Mapping) and "class_path" in value:
        options = _plain(value.get("init_args") or {})
        return f"{class_name(value)} ({options})" if options else class_name(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_plain, value))})"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value.startswith(("/", "~")):
        return Path(value).name
    return f"{value:g}" if isinstance(value, float) else str(value)
