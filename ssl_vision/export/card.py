"""The model card, and the repository on the Hugging Face Hub: weights, ``config.json`` and card."""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_vision.cli.import_paths import class_paths
from ssl_vision.descriptions import description_of
from ssl_vision.encoders import Timm
from ssl_vision.hub import WEIGHTS
from ssl_vision.pretrained.backbones import Pretrained
from ssl_vision.pretrained.opened_run import OpenedRun
from ssl_vision.runs.config import class_name, last_part
from ssl_vision.runs.evaluation_file import preferred, read_rows

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_TASK = "image-feature-extraction"

_TIMM_SETTINGS = ("classifier", "first_conv", "fixed_input_size")
"""Settings of a timm model that do not depend on its weights."""

# Options of the data that affect only location and speed.
_OMITTED = {
    "changed",
    "cache", "cache_dir", "compile", "download", "eval_batch_size", "resident", "root", "val", "val_share",
}  # fmt: skip


def card(
    given: Pretrained,
    rows: Sequence[Mapping[str, Any]],
    *,
    source: OpenedRun | str,
    snippet: str,
    checked: str,
    versions: Mapping[str, str],
) -> str:
    """Write the model card as Markdown.

    Args:
        given: the backbone.
        rows: rows of its evaluation, if any.
        source: run of the backbone, or a description of weights from elsewhere.
        snippet: Python code that loads it.
        checked: result of loading it.
        versions: versions of the libraries by name.
    """
    about, channels = given.description, len(given.description.mean)
    size = sum(parameter.numel() for parameter in given.backbone.parameters())
    colours = "RGB" if channels == 3 else f"{channels} channels"
    if isinstance(source, str):
        title, training = "", {"weights": source}
    else:
        title, training = _training(source)
    facts = {
        "encoder": f"{_plain(about.encoder)}; {size:,} parameters, {given.backbone.num_features} features",
        "input": f"float32 (N, {channels}, {about.size}, {about.size}), {colours} in [0, 1] less "
        f"{_plain(about.mean)}, divided by {_plain(about.std)}; files are first decoded to squares of "
        f"{about.decoded_size} pixels",
        **training,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    return "\n".join(
        [
            f"# {_title(about.encoder)}{title}\n\n| | |\n|---|---|",
            *(f"| {name} | {value} |" for name, value in facts.items()),
            f"\n## Load\n\n```python\n{snippet}\n```\n\n{checked}\n\n## Evaluation\n",
            *_evaluation(rows),
            "",
        ]
    )


def _title(spec: Mapping[str, Any]) -> str:
    """Return the name of a network or data set of another library, or else of its class."""
    return str((spec.get("init_args") or {}).get("name") or class_name(spec))


def _training(run: OpenedRun) -> tuple[str, dict[str, str]]:
    """Return the end of the title, and the facts of the training by name."""
    config, checkpoint = run.config, run.checkpoint
    model, data = config["model"]["init_args"], config["data"]
    objective, dataset = class_name(model.get("objective"), "InfoNCE"), _title(data)
    data_options = {key: value for key, value in data["init_args"].items() if key not in (*_OMITTED, "views")}
    views = {k: v for k, v in data["init_args"]["views"].items() if k not in (*_OMITTED, "mean", "std")}
    epochs = (config.get("trainer") or {}).get("max_epochs") or -1
    optimizer = dict(model.get("optimizer") or {})
    start = config.get("initial_checkpoint")
    if not start and (model.get("encoder") or {}).get("init_args", {}).get("pretrained"):
        start = "timm's pretrained weights"
    labels = "with labels" if "SupCon" in map(last_part, class_paths(model)) else "without labels"
    if start:
        labels = "from weights of another training"
    return f" pretrained on {dataset} with {objective}, {labels}", {
        "data": f"{class_name(data)} ({_plain(data_options)})",
        "digest of the training images": checkpoint.images or "not recorded",
        "views": _plain(views),
        "objective": _plain(model.get("objective") or "InfoNCE"),
        "projection head": f"{model.get('hidden_dim')} hidden, {model.get('output_dim')} out, not included",
        "optimizer": f"{optimizer.pop('name', 'unknown')} ({_plain(optimizer)})",
        "epochs": f"{checkpoint.epoch} of {epochs}" if epochs > 0 else str(checkpoint.epoch),
        "seed": str(config.get("seed_everything")),
        "initial weights": f"from {_plain(start)}" if start else "random",
    }


def evaluation_rows(run: OpenedRun) -> list[dict[str, Any]]:
    """Rows of ``evaluation.json`` about the backbone of the checkpoint, and those of the baselines.

    Rows of the run's own data set take precedence.

    Raises:
        InputError: the file was not written by ``ssl-vision evaluate``.
    """
    rows, epoch = preferred(read_rows(run.folder.evaluation_file), run.config), run.checkpoint.epoch
    shown = [
        row
        for row in rows
        if (row.get("features"), row.get("epoch"), row.get("layer")) == ("trained", epoch, "backbone")
    ]
    baselines = [row for row in rows if row.get("features") != "trained"]
    return shown + baselines if shown else []


def protocol(row: Mapping[str, Any]) -> dict[str, Any]:
    """Select the fields of an evaluation row that say how it was measured, without null values and paths."""
    named = ("features", "layer", "metric", "value", "root", "options", "weights")
    fields = {key: value for key, value in row.items() if key not in named and value is not None}
    if "settings" in fields:  # such as "image_size 96, train /data/photos"
        options = (option.partition(" ") for option in str(fields["settings"]).split(", "))
        fields["settings"] = ", ".join(f"{name}{space}{_plain(value)}" for name, space, value in options)
    return {key: _plain(value) if isinstance(value, str) else value for key, value in fields.items()}


def _evaluation(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return ["This checkpoint has not been evaluated. Run `ssl-vision evaluate`."]
    lines = ["| features | layer | metric | value | protocol |", "|---|---|---|---|---|"]
    for row in rows:
        names = (_plain(row.get(name)) for name in ("features", "layer", "metric"))
        lines.append(f"| {' | '.join(names)} | {row['value']:.4f} | {_plain(protocol(row))} |")
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


def write_repository(
    folder: Path,
    weights: Path,
    page: str,
    *,
    name: str,
    given: Pretrained,
    rows: Sequence[Mapping[str, Any]],
    images: str | None,
    license: str | None,
) -> None:
    """Write the files of a repository into an empty folder: weights, ``config.json`` and card.

    `load_encoder` does not read ``config.json``: the weights have the description as metadata.

    Args:
        folder: the folder.
        weights: exported ``.safetensors`` file.
        page: model card in Markdown, without front matter.
        name: name of the repository, ``OWNER/NAME``.
        given: the backbone.
        rows: rows of its evaluation, if any.
        images: digest of the training images, if it is known.
        license: identifier of the licence, such as ``apache-2.0``; None to state none.
    """
    from huggingface_hub import ModelCard, ModelCardData

    about, timm = asdict(given.description), isinstance(given.backbone, Timm)
    config = {
        "library_name": "ssl_vision",
        "library_version": about.pop("version"),
        **about,
        "num_features": given.backbone.num_features,
        "training_images": images,
        **(_timm_config(given) if timm else {}),
    }
    trained = [row for row in rows if row["features"] == "trained" and math.isfinite(row["value"])]
    data = ModelCardData(
        model_name=name.partition("/")[2],
        library_name="ssl_vision",
        pipeline_tag=_TASK,
        tags=["ssl_vision", "self-supervised-learning", "contrastive-learning", *(["timm"] if timm else [])],
        license=license,
        eval_results=[_result(row) for row in trained] or None,
    )
    shutil.copyfile(weights, folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    ModelCard(f"---\n{data}\n---\n\n{page}").save(folder / "README.md")


def loading_code(name: str, given: Pretrained, snippet: str) -> str:
    """Return code that loads the encoder of a repository; ``snippet`` is that of this package."""
    if not isinstance(given.backbone, Timm):
        return snippet
    return (
        f"{snippet}\n\n# or with timm alone\nimport timm\n\n"
        f'backbone = timm.create_model("hf-hub:{name}", pretrained=True).eval()'
    )


def _timm_config(given: Pretrained) -> dict[str, Any]:
    """Return the keys of config.json with which ``timm.create_model("hf-hub:OWNER/NAME")`` loads it."""
    encoder: Any = given.backbone
    settings, description = encoder.network.pretrained_cfg, given.description
    return {
        "architecture": settings["architecture"],
        "num_classes": 0,
        "model_args": encoder.options,
        "pretrained_cfg": {
            **{key: settings[key] for key in _TIMM_SETTINGS if key in settings},
            "num_classes": 0,
            "input_size": (len(description.mean), description.size, description.size),
            "mean": description.mean,
            "std": description.std,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
        },
    }


def _result(row: Mapping[str, Any]) -> "EvalResult":
    """Return an evaluation row as an entry of ``model-index``; accuracies are shares of 1, as in the row."""
    from huggingface_hub import EvalResult

    arguments = protocol(row)
    data, split = str(arguments.pop("data", "unknown")), arguments.pop("split", None)
    accuracy = row["metric"].endswith("_top1")
    return EvalResult(
        task_type="image-classification" if accuracy else _TASK,
        dataset_type=data.lower(),
        dataset_name=data,
        dataset_split=split,
        metric_type="accuracy" if accuracy else row["metric"],
        metric_name=description_of(row["metric"], stored=row).long_title,
        metric_value=row["value"],
        metric_args=arguments,
    )
