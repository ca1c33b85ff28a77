"""Export formats: how a backbone is written, how its library loads it, and the code that does so."""

import json
import math
import os
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ssl_vision._version import __version__
from ssl_vision.cli.config_objects import outside_classes
from ssl_vision.encoders import ResNet, Timm
from ssl_vision.errors import InputError
from ssl_vision.optional import installed, needed
from ssl_vision.pretrained.backbones import SUFFIX, Pretrained, write_backbone


class Format(NamedTuple):
    """How a backbone is written, and how another library loads it."""

    suffix: str
    library: str
    """Module that loads the file."""
    write: Callable[[Path, Pretrained], None]
    snippet: Callable[[str, Pretrained], str]
    """Python code that loads a file as ``backbone``."""


def checked_export(file: Path, form: Format, given: Pretrained) -> str:
    """Load a file as its card says, compare the features of random images, and describe the result.

    Raises:
        InputError: the features differ.
    """
    if not installed(form.library):
        return f"Not checked: {form.library} is not installed."
    views = given.description.views
    shape = (8, views.channels, views.size, views.size)
    noise = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
    images = views.plain(noise.to(torch.uint8))
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported
    names: dict[str, Any] = {}
    exec(form.snippet(str(file), given), names)
    numpy = form.library == "onnxruntime"
    with torch.inference_mode():
        expected = torch.cat([given.backbone(images), given.backbone(images[:1])])
        results = [names["backbone"](each.numpy() if numpy else each) for each in (images, images[:1])]
        loaded = torch.cat([torch.as_tensor(result) for result in results])
    gap = float((loaded - expected).abs().max()) if loaded.shape == expected.shape else math.inf
    largest = float(expected.abs().max())
    size = f"largest difference {gap:.1e}, largest feature {largest:.3g}"
    if not gap < 1e-5 * max(1.0, largest):  # the accuracy of float32
        raise InputError(
            f"the features of the file in {form.library} differ from those of the encoder ({size}); "
            "the file was not kept"
        )
    return (
        f"Checked: with {form.library} {versions(form)[form.library]} it gives the encoder's features of "
        f"random images ({size})."
    )


def versions(form: Format) -> dict[str, str]:
    """Return the versions of the libraries that wrote and load a file, by name."""
    libraries = {"torch", "torchvision", *([form.library] if installed(form.library) else [])}
    return {"ssl_vision": __version__} | {name: version(name) for name in sorted(libraries - {"ssl_vision"})}


def _describe_safetensors(name: str, given: Pretrained) -> str:
    outside = outside_classes(given.description.encoder)
    allow_class = f", allow_class={json.dumps(outside)}" if outside else ""
    return f"from ssl_vision import load_encoder\n\nbackbone = load_encoder({json.dumps(name)}{allow_class})"


def _resnet(given: Pretrained, library: str) -> ResNet:
    """The encoder, if torchvision and timm have the same ResNet.

    Raises:
        InputError: The encoder is not a ResNet, or has another number of channels or another width.
    """
    backbone, name = given.backbone, type(given.backbone).__name__
    if isinstance(backbone, ResNet):
        if (backbone.width, backbone.in_channels) == (64, 3):
            return backbone
        name = f"one of width {backbone.width} for images with {backbone.in_channels} channels"
    raise InputError(
        f"the {library} format is for ResNets of width 64 for images with 3 channels, not for {name}: "
        "export it as safetensors or onnx"
    )


def _write_layout(library: str, path: Path, given: Pretrained) -> None:
    """Write the weights with the names of torchvision or timm."""
    backbone = given.backbone
    if library == "timm" and isinstance(backbone, Timm):
        write_backbone(path, backbone.network)
    else:
        write_backbone(path, _resnet(given, library))


def _describe_layout(library: str, name: str, given: Pretrained) -> str:
    edits: list[str] = []
    if library == "timm" and isinstance(given.backbone, Timm):
        model, options = given.backbone.name, given.backbone.options
        extra = f", **{options}" if options else ""
    else:
        resnet = _resnet(given, library)
        model, extra = f"resnet{resnet.depth}", ""
        if resnet.stem == "small":  # which timm's stem_type and replace_stem_pool cannot express
            edits = [
                "backbone.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)",
                "backbone.maxpool = torch.nn.Identity()",
            ]
    constructor = f"timm.create_model({json.dumps(model)}, num_classes=0{extra})"
    if library == "torchvision":
        constructor = f"torchvision.models.{model}()"
        edits.append("backbone.fc = torch.nn.Identity()")
    return "\n".join(
        [
            *sorted([f"import {library}", *(["import torch"] if edits else [])]),
            "from safetensors.torch import load_file\n",
            f"backbone = {constructor}",
            *edits,
            f"backbone.load_state_dict(load_file({json.dumps(name)}))",
            "backbone.eval()",
        ]
    )


def _write_onnx(path: Path, given: Pretrained) -> None:
    for name in ("onnx", "onnxscript"):
        needed(name, extra="onnx")
    size = given.description.size
    images = torch.zeros(2, given.description.views.channels, size, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            given.backbone, (images,), input_names=["images"], output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True, verbose=False,
        )  # fmt: skip
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    model = program.model_proto
    _anonymise(model)
    path.write_bytes(model.SerializeToString())


def _anonymise(model: Any) -> None:
    """Remove the source locations of all nodes."""
    graph = model.graph
    values = (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
    for part in (model, graph, *graph.node, *values):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")


def _describe_onnx(name: str, given: Pretrained) -> str:
    shape = f"(N, {given.description.views.channels}, H, W)"
    return (
        f"import onnxruntime\n\nsession = onnxruntime.InferenceSession({json.dumps(name)})\n\n\n"
        f"def backbone(images):  # float32 {shape}, NumPy\n"
        '    return session.run(None, {"images": images})[0]'
    )


FORMATS = {
    "safetensors": Format(
        SUFFIX, "ssl_vision", lambda path, given: write_backbone(path, *given), _describe_safetensors
    ),
    **{
        library: Format(SUFFIX, library, partial(_write_layout, library), partial(_describe_layout, library))
        for library in ("torchvision", "timm")
    },
    "onnx": Format(".onnx", "onnxruntime", _write_onnx, _describe_onnx),
}
