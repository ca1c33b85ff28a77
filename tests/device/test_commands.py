"""Tests of commands and searches on the fake device, with kernels computed on the host, against the CPU.

Run as a script, this file is the program that runs the cases.
"""

import atexit
import csv
import dataclasses
import functools
import itertools
import logging
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import device_program
import pytest
import pytorch_lightning as pl
import torch
from equal import difference_of_runs
from PIL import Image
from settings import TINY, resnet

from ssl_vision import objectives as o
from ssl_vision.callbacks import RepresentationMetrics
from ssl_vision.data import Digits
from ssl_vision.main import main
from ssl_vision.methods import MoCo, OptimizerRule, SimCLR
from ssl_vision.metrics import nearest
from ssl_vision.metrics.knn import vote
from ssl_vision.metrics.neighbours import Neighbours
from ssl_vision.objectives import fused

GPU = [
    *(arg for arg in TINY if "accelerator" not in arg),
    "--trainer.accelerator=gpu",
    "--trainer.devices=1",
    "--data.views.compile=false",
]
SHORT = "--trainer.max_epochs=1"
"""Option of the run that is compared with the CPU: every step amplifies differences of rounding."""
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true")
SEARCHES: dict[str, dict[str, Any]] = {
    "cosine": {},
    "Euclidean": {"metric": "euclidean"},
    "auto": {"backend": "auto"},
}
FITS = {
    **{f"fit, {precision}": [f"--trainer.precision={precision}"] for precision in PRECISIONS},
    "fit, deterministic": ["--trainer.deterministic=true"],
    "fit, online probe": ["--online_probe=true", "--gradients=true"],
    "fit, one graph": ["--model.cuda_graph=true", "--trainer.precision=bf16-mixed"],
    "fit, images on the host": ["--data.resident=0"],
    "fit, clipped and accumulated": ["--trainer.gradient_clip_val=1", "--trainer.accumulate_grad_batches=2"],
}
RECORDED: dict[str, tuple[str, float, dict[str, Any]]] = {
    "sgd": ("sgd", 0.1, {}),
    "adam": ("adam", 0.001, {}),
    "lars": ("lars", 0.1, {}),
    "temperature of the epoch": ("sgd", 0.1, {"objective": o.InfoNCE(temperature=o.CosineInEpoch(epochs=1))}),
    "a queue": ("sgd", 0.1, {"queue_size": 40, "momentum": 0.9, "momentum_schedule": "cosine"}),
}
"""Optimizers of recorded steps, with learning rates at which losses change visibly, and options of MoCo."""
VIEWS = dataclasses.replace(Digits().views, compile=False)
run_numbers = itertools.count()


@functools.cache
def folder() -> Path:
    place = tempfile.TemporaryDirectory()
    atexit.register(place.cleanup)
    return Path(place.name)


class Messages(logging.Handler):
    """Collects what Lightning logs."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def fit(*options: str, name: str | None = None) -> Path:
    name = name or f"run{next(run_numbers)}"
    start = [f"--runs_dir={folder()}", f"--name={name}", "--seed_everything=3"]
    assert main(["fit", *start, *GPU, *options]) == 0
    return folder() / name


def logged(run: Path) -> dict[str, float]:
    """Return the last value of each column of a run's metrics.csv."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: float(row[name]) for row in rows for name in row if row[name]}


def on_cpu() -> dict[str, float]:
    """Return what the same run logs on the CPU."""
    return logged(fit("--trainer.accelerator=cpu", SHORT))


@functools.cache
def finished() -> Path:
    return fit()


def resume() -> None:
    fit("--trainer.max_steps=3", "--trainer.deterministic=true", name="cut")
    fit("--ckpt_path=last", "--trainer.deterministic=true", name="cut")
    assert not difference_of_runs(folder() / "cut", fit("--trainer.deterministic=true"))


def evaluate(*options: str) -> None:
    assert main(["evaluate", str(finished()), "--device=cuda", *options]) == 0


def embed() -> None:
    images = folder() / "images"
    images.mkdir()
    for shade in range(3):
        Image.new("RGB", (20, 20), (80 * shade, 0, 0)).save(images / f"{shade}.png")
    output = f"--output={folder() / 'features.npz'}"
    assert main(["embed", str(images), f"--weights={finished()}", "--device=cuda", output]) == 0


def export() -> None:
    assert main(["export", str(finished()), f"--output={folder() / 'exported.safetensors'}"]) == 0


def search(name: str) -> dict[str, Any]:
    """Compare neighbours and votes on the device with those on the CPU, over more than one tile."""
    g = torch.Generator().manual_seed(0)
    queries, bank = torch.randn(300, 16, generator=g), torch.randn(70_000, 16, generator=g)
    labels = torch.randint(10, (len(bank),), generator=g)
    options = {"backend": "torch"} | SEARCHES[name]

    def scores(device: str) -> tuple[Neighbours, torch.Tensor]:
        neighbours = nearest(queries.to(device), bank.to(device), 20, **options)
        return neighbours, vote(neighbours, labels.to(device), num_classes=10, k=20)

    (cpu_neighbours, cpu_votes), (device_neighbours, device_votes) = scores("cpu"), scores("cuda")
    return {
        "devices": sorted({str(tensor.device) for tensor in (*device_neighbours, device_votes)}),
        "neighbours": (cpu_neighbours.index == device_neighbours.index.cpu()).float().mean().item(),
        "votes": (cpu_votes.argmax(dim=1) == device_votes.cpu().argmax(dim=1)).float().mean().item(),
    }


class ValidationWatch(pl.Callback):
    """Counts the waits of each validation batch, from the first callback's hook to the last one's."""

    def __init__(self) -> None:
        self.waits, self.places = [], []

    def on_validation_batch_start(self, *args):
        self._watched = device_program.watched(self.places)
        self._watched.__enter__()
        device_program.reset()

    def on_validation_batch_end(self, *args):
        self._watched.__exit__(None, None, None)
        self.waits.append(device_program.counts()["wait"])


def validation() -> dict[str, Any]:
    watch = ValidationWatch()
    pl.Trainer(
        max_epochs=1, limit_train_batches=1, num_sanity_val_steps=0, accelerator="gpu", devices=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        default_root_dir=folder(), callbacks=[RepresentationMetrics(k=5), watch],
    ).fit(SimCLR(encoder=resnet(width=4)), Digits(batch_size=64, views=VIEWS))  # fmt: skip
    return {"waits": watch.waits, "places": watch.places}


def recorded(optimizer: str, lr: float, options: dict[str, Any]) -> dict[str, Any]:
    """Train two epochs eagerly and as a CUDA graph; return losses, replays and the weight difference."""
    method: Any = MoCo if "queue_size" in options else SimCLR

    def trained(cuda_graph: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
        model = method(
            **options,
            encoder=resnet(width=4),
            hidden_dim=16,
            output_dim=8,
            seed=0,
            cuda_graph=cuda_graph,
            optimizer=OptimizerRule(name=optimizer, lr=lr, schedule="cosine"),
        )
        losses = LossRecorder()
        pl.Trainer(
            max_epochs=2, limit_train_batches=4, limit_val_batches=0, accelerator="gpu", devices=1,
            logger=False, enable_checkpointing=False, enable_progress_bar=False, log_every_n_steps=1,
            enable_model_summary=False, default_root_dir=folder(), callbacks=[losses],
        ).fit(model, Digits(batch_size=16, seed=0, views=VIEWS))  # fmt: skip
        return losses.values, model.state_dict()

    eager, eager_weights = trained(False)
    device_program.reset()
    graph, graph_weights = trained(True)
    differences = [
        float((device_program.host(graph_weights[name]) - device_program.host(value)).abs().max())
        for name, value in eager_weights.items()
    ]
    replays = device_program.counts()["graph"]
    return {"eager": eager, "graph": graph, "difference": max(differences), "replays": replays}


class LossRecorder(pl.Callback):
    def __init__(self) -> None:
        self.values = []

    def on_train_batch_end(self, trainer, pl_module, outputs, *args):
        self.values.append(float(outputs["loss"]))


COMMANDS = {"resume": resume, "evaluate": evaluate, "embed": embed, "export": export}


def run(case: str) -> dict[str, Any]:
    """Return the results of a case."""
    with device_program.ComputedOnHost():
        if case in SEARCHES:
            return search(case)
        if case in RECORDED:
            return recorded(*RECORDED[case])
        if case == "validation":
            return validation()
        if case in FITS:
            if case == QUICK:
                logging.getLogger("pytorch_lightning").addHandler(messages := Messages())
                values = logged(fit(*FITS[case], SHORT))
                return {"logged": values, "messages": messages.texts, "cpu": on_cpu()}
            return {"logged": logged(fit(*FITS[case]))}
        COMMANDS[case]()
    return {}


QUICK = "fit, 32-true"
LONG = [pytest.param(case, marks=pytest.mark.long) for case in (*FITS, *COMMANDS) if case != QUICK]


@pytest.mark.parametrize("case", [QUICK, *LONG])
def test_command_runs_on_device(case, result):
    assert all(map(math.isfinite, result.get("logged", {}).values()))


@pytest.mark.parametrize("case", [QUICK])
def test_device_run_logs_same_values_as_cpu_run(case, result):
    device, cpu = result["logged"], result["cpu"]
    assert device.keys() == cpu.keys()
    assert {"train/loss", "val/knn_top1", "val/rankme"} <= device.keys()
    for name, value in cpu.items():
        assert device[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize("case", [QUICK])
def test_fit_names_options_for_a_gpu_and_does_not_repeat_lightnings_messages(case, result):
    images, advice = result["messages"]
    assert images == "images: 0.3 MB on cuda:0"
    assert "--config pretrain/cifar10_gpu" in advice


@pytest.mark.parametrize("case", ["validation"])
def test_validation_batch_does_not_wait_for_device(case, result):
    assert len(result["waits"]) > 2
    assert set(result["waits"]) == {0}, result["places"]


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.long) if name != "sgd" else name for name in RECORDED]
)
def test_cuda_graph_run_matches_eager_run(case, result):
    assert len(set(result["eager"])) == len(result["eager"]) == 8
    assert result["replays"] == 5  # after three warm-up steps
    assert result["graph"] == pytest.approx(result["eager"], rel=1e-4)
    assert result["difference"] < 1e-4


@pytest.mark.parametrize("case", SEARCHES)
def test_device_search_matches_cpu_search(case, result):
    assert result["devices"] == ["cuda:0"]
    assert result["neighbours"] > 0.999
    assert result["votes"] > 0.99


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    fused.available = lambda rows: False  # its Triton kernels are not computed on the host
    device_program.main(run)
