"""Tests of timm encoders: training and export on CIFAR-10, agreement between training modes, image sizes."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from settings import TINY

from ssl_vision import load_encoder
from ssl_vision.encoders import Timm
from ssl_vision.main import main
from ssl_vision.runs.checkpoint import read_checkpoint

MODELS = {
    "resnet18": [],
    "convnext_atto": ["--model.encoder.dict_kwargs.drop_path_rate=0.1"],
    "vit_tiny_patch16_224": [
        "--model.encoder.img_size=32",
        "--model.encoder.dict_kwargs.patch_size=4",
        "--model.encoder.dict_kwargs.drop_path_rate=0.1",
    ],
    "efficientnet_b0": [],
    "mobilenetv4_conv_small": [],
}
SMALL = [option for option in TINY if "encoder.width" not in option and "batch_size" not in option]


@pytest.mark.realdata
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "mobilenetv4_conv_small" else [pytest.mark.long])
        for name in MODELS
    ],
)
def test_timm_model_trains_and_exports(name, data_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ["--data=CIFAR10", f"--data.root={data_root}", "--data.batch_size=16"]
    short = ["--trainer.limit_train_batches=3", "--trainer.limit_val_batches=2", "--trainer.max_epochs=1"]
    layers = ["--model.optimizer.name=adamw", "--model.optimizer.layer_decay=0.8", "--model.chunk_size=8"]
    encoder = ["--model.encoder=Timm", f"--model.encoder.name={name}", *MODELS[name]]
    assert main(["fit", *data, *encoder, *SMALL, *short, *layers, "--name=run"]) == 0
    state = read_checkpoint("runs/run").state
    assert all(value.isfinite().all() for value in state.values())
    assert main(["export", "runs/run"]) == 0
    assert main(["export", "runs/run", "--format=timm"]) == 0
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    backbone = load_encoder("runs/run/backbone.safetensors").eval()
    options = {"img_size": 32, "patch_size": 4} if "vit" in name else {}
    network = timm.create_model(name, num_classes=0, **options).eval()
    network.load_state_dict(load_file("runs/run/backbone-timm.safetensors"))
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), network(images), rtol=1e-5, atol=1e-5)


SHORT = [
    "--data=CIFAR10", "--trainer.limit_train_batches=3", "--trainer.limit_val_batches=1",
    "--trainer.max_epochs=1", "--model.encoder=Timm", "--trainer.log_every_n_steps=1",
]  # fmt: skip


def trained(name, data_root, *options):
    """Train three steps in a separate process in the current directory; return first loss and weights."""
    encoder = [f"--model.encoder.name={name}", *MODELS[name], f"--data.root={data_root}"]
    command = [sys.executable, "-m", "ssl_vision", "fit", *SMALL, *SHORT, *encoder, *options]
    subprocess.run(command, check=True)
    (run,) = (Path("runs", option.partition("=")[2]) for option in options if option.startswith("--name="))
    with (run / "metrics.csv").open(newline="") as file:
        losses = [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]
    return losses[0], read_checkpoint(run).state


@pytest.mark.long
@pytest.mark.realdata
@pytest.mark.parametrize("name", MODELS)
def test_two_processes_bfloat16_and_compilation_match_plain_run(name, data_root, tmp_path, monkeypatch):
    """The training modes change only rounding, except where a BatchNorm sees half of the batch.

    BatchNorm amplifies rounding in these small feature maps, so weights are compared only without it.
    """
    monkeypatch.chdir(tmp_path)
    options = ["--data.batch_size=16", "--model.head_batch_norm=none", "--model.optimizer.name=sgd"]
    if "drop_path_rate" in str(MODELS[name]):  # drop path's random numbers depend on the number of processes
        options.append("--model.encoder.dict_kwargs.drop_path_rate=0")
    loss, plain_state = trained(name, data_root, "--name=one", *options)
    two_processes = ["--data.batch_size=8", "--trainer.devices=2", "--trainer.strategy=ddp"]
    variants = {
        "two": trained(name, data_root, "--name=two", *options, *two_processes),
        "compiled": trained(name, data_root, "--name=compiled", *options, "--model.compile_mode=default"),
        "half": trained(name, data_root, "--name=half", *options, "--trainer.precision=bf16-mixed"),
    }
    with_batch_norm = any(key.endswith("running_mean") for key in plain_state)
    for kind, (other_loss, state) in variants.items():
        assert all(value.isfinite().all() for value in state.values())
        if kind != "two":
            assert other_loss == pytest.approx(loss, rel=0.1 if kind == "half" else 1e-4)
        if kind != "half" and not with_batch_norm:
            for key, value in plain_state.items():
                torch.testing.assert_close(state[key], value, rtol=1e-3, atol=1e-5, msg=f"{kind} {key}")


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("convnext_atto", 32, {}), ("convnext_atto", 224, {}), ("mobilenetv4_conv_small", 32, {}),
        ("vit_tiny_patch16_224", 32, {"img_size": 32, "patch_size": 4, "depth": 2}),
        ("vit_tiny_patch16_224", 96, {"img_size": 96, "patch_size": 8, "depth": 2}),
        ("vit_tiny_patch16_224", 224, {"depth": 2}),
    ],
)  # fmt: skip
def test_models_encode_images_from_32_to_224_pixels(name, size, options):
    encoder = Timm(name, **options).eval()
    with torch.no_grad():
        assert encoder(torch.rand(1, 3, size, size)).shape == (1, encoder.num_features)
