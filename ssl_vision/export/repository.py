"""Files of an encoder's repository on the Hugging Face Hub: weights, ``config.json`` and model card."""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_vision.descriptions import description_of
from ssl_vision.encoders import Timm
from ssl_vision.export.card import protocol
from ssl_vision.hub import WEIGHTS
from ssl_vision.pretrained.backbones import Description, Pretrained
from ssl_vision.runs.checkpoint import Checkpoint

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_TASK = "image-feature-extraction"

_TIMM_SETTINGS = ("classifier", "first_conv", "fixed_input_size")
"""Settings of a timm model that do not depend on its weights."""


def write_repository(
    folder: Path,
    weights: Path,
    page: str,
    *,
    name: str,
    checkpoint: Checkpoint,
    given: Pretrained,
    rows: Sequence[Mapping[str, Any]],
    license: str | None,
) -> None:
    """Write the files of a repository into an empty folder.

    Args:
        folder: the folder.
        weights: exported ``.safetensors`` file.
        page: model card in Markdown, without front matter.
        name: name of the repository, ``OWNER/NAME``.
        checkpoint: checkpoint of the backbone.
        given: the backbone.
        rows: rows of its evaluation, if any.
        license: identifier of the licence, such as ``apache-2.0``; None to state none.
    """
    shutil.copyfile(weights, folder / WEIGHTS)
    content = json.dumps(_config(checkpoint, given), indent=2)
    (folder / "config.json").write_text(content + "\n", encoding="utf-8")
    front_matter = _front_matter(name, given, rows, license=license)
    (folder / "README.md").write_text(f"---\n{front_matter}\n---\n\n{page}", encoding="utf-8")


def loading_code(name: str, given: Pretrained, snippet: str) -> str:
    """Return code that loads the encoder of a repository; ``snippet`` is that of this package."""
    if not isinstance(given.backbone, Timm):
        return snippet
    return (
        f"{snippet}\n\n# or with timm alone\nimport timm\n\n"
        f'backbone = timm.create_model("hf-hub:{name}", pretrained=True).eval()'
    )


def _config(checkpoint: Checkpoint, given: Pretrained) -> dict[str, Any]:
    """Return what ``config.json`` states: encoder, input, digest of the training images, and the writer.

    The config of a timm model also has the keys of timm, so that ``timm.create_model("hf-hub:OWNER/NAME")``
    loads it. `load_encoder` does not read this file: the weights have the description as metadata.
    """
    about = asdict(given.description)
    return {
        "library_name": "ssl_vision",
        "library_version": about.pop("version"),
        **about,
        "num_features": given.backbone.num_features,
        "training_images": checkpoint.images,
        **(_timm_config(given.backbone, given.description) if isinstance(given.backbone, Timm) else {}),
    }


def _timm_config(encoder: Timm, description: Description) -> dict[str, Any]:
    network: Any = encoder.network
    settings = network.pretrained_cfg
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


def _front_matter(
    name: str, given: Pretrained, rows: Sequence[Mapping[str, Any]], *, license: str | None
) -> str:
    """Return the YAML metadata of the model card."""
    from huggingface_hub import ModelCardData

    trained = [row for row in rows if row["features"] == "trained" and math.isfinite(row["value"])]
    data = ModelCardData(
        model_name=name.partition("/")[2],
        library_name="ssl_vision",
        pipeline_tag=_TASK,
        tags=[
            "ssl_vision",
            "self-supervised-learning",
            "contrastive-learning",
            *(["timm"] if isinstance(given.backbone, Timm) else []),
        ],
        license=license,
        eval_results=[_result(row) for row in trained] or None,
    )
    return data.to_yaml()


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
