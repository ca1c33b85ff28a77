"""Export formats: how a backbone is written, how its library loads it, and the code that does so."""

import importlib
import json
import math
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor, nn

from ssl_vision.cli.classes import outside_classes
from ssl_vision.encoders import ResNet, Timm
from ssl_vision.errors import InputError
from ssl_vision.optional import needed
from ssl_vision.pretrained.backbones import SUFFIX, Pretrained, read_backbone, write_backbone

Network = Callable[[Tensor], Tensor]
"""Function of normalised images (N, 3, size, size) that returns features (N, F)."""

_PROTOBUF_LIMIT = 2**31

_REMOVE_CLASSIFIER = "backbone.fc = torch.nn.Identity()"


class Format(NamedTuple):
    """How a backbone is written, and how another library loads it."""

    suffix: str
    library: str
    """Module that loads the file."""
    write: Callable[[Path, Pretrained], None]
    load: Callable[[Path, Pretrained], Network]
    snippet: Callable[[str, Pretrained], str]
    """Python code that loads a file as ``backbone``."""


class Difference(NamedTuple):
    """Difference between the features of the exported file and those of the backbone."""

    largest: float
    """Largest absolute difference."""
    feature: float
    """Largest absolute feature."""

    @property
    def negligible(self) -> bool:
        """True below 1e-5, relative to the largest feature if that is above 1, the accuracy of float32."""
        return self.largest < 1e-5 * max(1.0, self.feature)


def difference(file: Path, form: Format, given: Pretrained) -> Difference:
    """Compare the features of random images, in a batch of eight and alone."""
    views = given.description.views
    shape = (8, views.channels, views.size, views.size)
    noise = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
    images = views.plain(noise.to(torch.uint8))
    network = form.load(file, given)
    with torch.inference_mode():
        expected = torch.cat([given.backbone(images), given.backbone(images[:1])])
        loaded = torch.cat([network(images), network(images[:1])])
    largest = (loaded - expected).abs().max() if loaded.shape == expected.shape else math.inf
    return Difference(float(largest), float(expected.abs().max()))


def _write_safetensors(path: Path, given: Pretrained) -> None:
    write_backbone(path, given.backbone, given.description)


def _load_safetensors(path: Path, given: Pretrained) -> Network:
    return read_backbone(path, allow_class=outside_classes(given.description.encoder)).backbone


def _describe_safetensors(name: str, given: Pretrained) -> str:
    outside = outside_classes(given.description.encoder)
    allow_class = f", allow_class={json.dumps(outside)}" if outside else ""
    return f"from ssl_vision import load_encoder\n\nbackbone = load_encoder({json.dumps(name)}{allow_class})"


def _resnet(given: Pretrained, library: str) -> ResNet:
    """The encoder, if torchvision and timm have the same ResNet.

    Raises:
        InputError: The encoder is not a ResNet, or has another number of channels or another width.
    """
    backbone = given.backbone
    if not isinstance(backbone, ResNet):
        raise InputError(
            f"the {library} format is for ResNet, not for {type(backbone).__name__}: "
            "export it as safetensors or onnx"
        )
    if backbone.in_channels != 3:
        raise InputError(
            f"the {library} format is for images with 3 channels, not {backbone.in_channels}: export it as "
            "safetensors or onnx"
        )
    if backbone.width != 64:
        raise InputError(
            f"torchvision and timm only have ResNets of width 64, but this one has width {backbone.width}: "
            "export it as onnx or safetensors"
        )
    return backbone


def _write_torchvision(path: Path, given: Pretrained) -> None:
    write_backbone(path, _resnet(given, "torchvision"))


def _write_timm(path: Path, given: Pretrained) -> None:
    backbone = given.backbone
    write_backbone(path, backbone.network if isinstance(backbone, Timm) else _resnet(given, "timm"))


def _load_torchvision(path: Path, given: Pretrained) -> Network:
    resnet = _resnet(given, "torchvision")
    return _load_resnet(getattr(torchvision.models, f"resnet{resnet.depth}")(), path, resnet)


def _load_timm(path: Path, given: Pretrained) -> Network:
    import timm

    if isinstance(given.backbone, Timm):
        network: Any = timm.create_model(given.backbone.name, num_classes=0, **given.backbone.options)
        network.load_state_dict(load_file(path))
        return cast(Network, network.eval())
    resnet = _resnet(given, "timm")
    return _load_resnet(timm.create_model(f"resnet{resnet.depth}", num_classes=0), path, resnet)


def _load_resnet(network: Any, path: Path, resnet: ResNet) -> Network:
    if resnet.stem == "small":
        network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        network.maxpool = nn.Identity()
    network.fc = nn.Identity()
    network.load_state_dict(load_file(path))
    return cast(Network, network.eval())


def _describe_torchvision(name: str, given: Pretrained) -> str:
    resnet = _resnet(given, "torchvision")
    constructor = f"torchvision.models.resnet{resnet.depth}()"
    return _loading("torchvision", constructor, name, [*_stem_edits(resnet), _REMOVE_CLASSIFIER])


def _describe_timm(name: str, given: Pretrained) -> str:
    if isinstance(given.backbone, Timm):
        options = "".join(f", {key}={value!r}" for key, value in given.backbone.options.items())
        constructor = f"timm.create_model({json.dumps(given.backbone.name)}, num_classes=0{options})"
        return _loading("timm", constructor, name, [])
    resnet = _resnet(given, "timm")
    constructor = f'timm.create_model("resnet{resnet.depth}", num_classes=0)'
    return _loading("timm", constructor, name, _stem_edits(resnet))


def _stem_edits(resnet: ResNet) -> list[str]:
    """Return code for the small stem, which timm's stem_type and replace_stem_pool cannot express."""
    if resnet.stem != "small":
        return []
    return [
        "backbone.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)",
        "backbone.maxpool = torch.nn.Identity()",
    ]


def _loading(library: str, constructor: str, name: str, edits: Sequence[str]) -> str:
    imports = sorted([f"import {library}", *(["import torch"] if edits else [])])
    load = [f"backbone.load_state_dict(load_file({json.dumps(name)}))", "backbone.eval()"]
    lines = [
        *imports,
        "from safetensors.torch import load_file",
        "",
        f"backbone = {constructor}",
        *edits,
        *load,
    ]
    return "\n".join(lines)


def _write_onnx(path: Path, given: Pretrained) -> None:
    for name in ("onnx", "onnxscript"):
        needed(name, extra="onnx")
    if 4 * sum(tensor.numel() for tensor in given.backbone.parameters()) >= _PROTOBUF_LIMIT:
        raise InputError("the backbone exceeds the 2 GiB limit of an ONNX file: export it as safetensors")
    size = given.description.size
    images = torch.zeros(2, given.description.views.channels, size, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            given.backbone,
            (images,),
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
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


def _load_onnx(path: Path, given: Pretrained) -> Network:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is imported
    runtime: Any = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def network(images: Tensor) -> Tensor:
        (features,) = session.run(None, {"images": images.numpy()})
        return torch.from_numpy(features)

    return network


def _describe_onnx(name: str, given: Pretrained) -> str:
    return "\n".join(
        [
            "import onnxruntime",
            "",
            f"session = onnxruntime.InferenceSession({json.dumps(name)})",
            "",
            "",
            f"def backbone(images):  # float32 (N, {given.description.views.channels}, H, W), NumPy",
            '    return session.run(None, {"images": images})[0]',
        ]
    )


FORMATS = {
    "safetensors": Format(SUFFIX, "ssl_vision", _write_safetensors, _load_safetensors, _describe_safetensors),
    "torchvision": Format(
        SUFFIX, "torchvision", _write_torchvision, _load_torchvision, _describe_torchvision
    ),
    "timm": Format(SUFFIX, "timm", _write_timm, _load_timm, _describe_timm),
    "onnx": Format(".onnx", "onnxruntime", _write_onnx, _load_onnx, _describe_onnx),
}
