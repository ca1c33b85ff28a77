"""Tests of methods with several encoders, from training to a loaded backbone."""

import json
from pathlib import Path

import pytest
import torch
from settings import TINY

from ssl_vision import load_encoder
from ssl_vision.main import main
from ssl_vision.runs.checkpoint import read_checkpoint

METHODS = {
    "moco": ["--model=MoCo", "--model.objective=MACL", "--model.queue_size=50"],
    "moco_v3": ["--model=MoCoV3", "--model.objective=DualTemperature", "--gradients=true"],
    "simco": ["--model=SimCo", "--model.objective=DCL", "--gradients=true"],
}  # fmt: skip
ENCODERS = {
    "resnet": ["--model.encoder.width=4"],
    "vit": [
        "--model.encoder=Timm", "--model.encoder.name=vit_tiny_patch16_224", "--model.encoder.img_size=16",
        "--model.encoder.dict_kwargs.patch_size=4", "--model.encoder.dict_kwargs.depth=2",
        "--model.encoder.dict_kwargs.embed_dim=24", "--model.optimizer.layer_decay=0.9",
    ],
    "convnext": [
        "--model.encoder=Timm", "--model.encoder.name=convnext_atto",
        "--model.encoder.dict_kwargs.depths=[1,1,1,1]", "--model.encoder.dict_kwargs.dims=[8,16,24,32]",
        "--data.views.size=32", "--model.optimizer.exclude_bias_and_norm=true",
    ],
}  # fmt: skip
SAMPLE = {("moco", "vit")}
COMMON = [option for option in TINY if "encoder.width" not in option and "report" not in option]


@pytest.mark.parametrize(
    ("method", "encoder"),
    [
        pytest.param(method, encoder, marks=[] if (method, encoder) in SAMPLE else [pytest.mark.long])
        for method in METHODS
        for encoder in ENCODERS
    ],
)
def test_method_with_encoder_trains_resumes_evaluates_and_exports(method, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--data=Digits", "--data.views.size=16", *METHODS[method], *ENCODERS[encoder], *COMMON]
    assert main(["fit", *options, "--name=whole"]) == 0
    options += ["--trainer.callbacks+=interrupt_once.InterruptOnce", "--trainer.callbacks.marker=marker"]
    # in the second of two epochs of four batches
    interrupted = [*options, "--trainer.callbacks.batch=6", "--name=part"]
    assert main(["fit", *interrupted]) == 143
    assert main(["fit", *interrupted, "--ckpt_path=last"]) == 0
    whole, part = (read_checkpoint(f"runs/{name}").state for name in ("whole", "part"))
    assert [name for name, value in whole.items() if not torch.equal(part[name], value)] == []
    assert main(["evaluate", "runs/whole", "--probe.epochs=1"]) == 0
    rows = json.loads(Path("runs/whole/evaluation.json").read_text())
    assert {row["features"] for row in rows} == {"trained", "untrained", "pixels"}
    assert main(["report", "runs/whole"]) == 0
    name = METHODS[method][0].removeprefix("--model=")
    assert f"ssl_vision.methods.{name}" in Path("runs/whole/report.html").read_text(encoding="utf-8")
    assert main(["compare", "runs/whole", "runs/part", "--metric=knn_top1"]) in (0, 2)
    assert main(["export", "runs/whole"]) == 0
    backbone = load_encoder("runs/whole/backbone.safetensors")
    size = 32 if encoder == "convnext" else 16
    assert backbone(torch.rand(2, 3, size, size)).shape == (2, backbone.num_features)
