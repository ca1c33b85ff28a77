"""Tests of training steps on the fake device.

A step must not wait for the device, copy pageable memory or launch more kernels than recorded.
Run as a script, this file is the program that trains.
"""

import dataclasses
import tempfile
import warnings
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import device_program
import jsonargparse
import pytest
import pytorch_lightning as pl
import torch
import torch._inductor.config
import yaml
from pytorch_lightning.loggers import CSVLogger
from settings import CONFIGS, resnet
from torch import nn

import ssl_vision.methods
from ssl_vision import objectives as o
from ssl_vision.callbacks import ObjectiveStatistics, SkipNonFiniteSteps, WeightHistogram
from ssl_vision.data import Digits, Views
from ssl_vision.data.augment import random_views
from ssl_vision.methods import OptimizerRule

BATCH = 64
VIEWS = dataclasses.replace(Digits().views, compile=False)


def objective(name: str) -> nn.Module:
    """Return the objective of a file in configs/objective."""
    content = yaml.safe_load((CONFIGS / "objective" / f"{name}.yaml").read_text())
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(nn.Module, "objective")
    config = parser.parse_object({"objective": with_import_paths(content["model"]["init_args"]["objective"])})
    return parser.instantiate(config).objective


def with_import_paths(config: Any) -> Any:
    """Return a config with the import paths of its classes."""
    if isinstance(config, str):
        return {"class_path": f"ssl_vision.objectives.{config}"}
    if not isinstance(config, dict):
        return config
    path = {"class_path": f"ssl_vision.objectives.{config['class_path']}"} if "class_path" in config else {}
    return {
        key: with_import_paths(value) if isinstance(value, dict) else value for key, value in config.items()
    } | path


class StepCounter(pl.Callback):
    """Counts one step after warm-up, from its forward pass to the views of the next step."""

    def __init__(self, step: int) -> None:
        self.step, self.parts, self.places = step, {}, []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 0:
            device_program.reset()
        if batch_idx == self.step:
            self.parts["captured"] = device_program.counts()["captured"]
            device_program.reset()
            self._watched = device_program.watched(self.places)
            self._watched.__enter__()
        if batch_idx == self.step + 1:
            self._watched.__exit__(None, None, None)
            self.parts["whole"] = device_program.counts()

    def on_before_backward(self, trainer, pl_module, loss):
        self._count("forward", trainer)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self._count("backward", trainer)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == self.step:
            self.parts["update"] = device_program.counts()

    def _count(self, part, trainer):
        if trainer.fit_loop.epoch_loop.batch_idx == self.step:
            self.parts[part] = device_program.counts()


def train(
    method: str = "SimCLR",
    objective: nn.Module | None = None,
    optimizer: str = "adam",
    precision: str = "bf16-mixed",
    deterministic: bool = False,
    benchmark: bool = False,
    logged: bool = False,
    views: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train a few steps; return the counts of one, which the trainer does not log unless ``logged``."""
    warm = 6 if options.get("cuda_graph") else 3
    model = getattr(ssl_vision.methods, method)(
        encoder=resnet(width=4),
        objective=objective or o.InfoNCE(),
        optimizer=OptimizerRule(name=optimizer),
        **options,
    )
    counter, weight_log = StepCounter(warm), SimpleNamespace(log_metrics=lambda *args, **kwargs: None)
    skips = SkipNonFiniteSteps()
    skips.skipped = 1  # so that the number is logged
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            max_epochs=1, limit_train_batches=warm + 2, limit_val_batches=0, log_every_n_steps=warm + logged,
            accelerator="gpu", devices=1, precision=precision, deterministic=deterministic,
            benchmark=benchmark, logger=CSVLogger(folder) if logged else False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[counter, ObjectiveStatistics(), WeightHistogram(weight_log), skips],
        )  # fmt: skip
        data = Digits(batch_size=BATCH, views=VIEWS if views is None else Views(**views))
        try:
            trainer.fit(model, data)
        finally:
            torch.use_deterministic_algorithms(False)
            torch.backends.cudnn.deterministic = torch.backends.cudnn.benchmark = False
    return {"places": Counter(counter.places), **counter.parts}


OBJECTIVES = sorted(file.stem for file in (CONFIGS / "objective").glob("*.yaml"))
DETERMINISTIC = ("infonce", "macl", "modified_vicreg", "reclaim", "supcon")
METHODS = sorted(file.stem for file in (CONFIGS / "method").glob("*.yaml"))
ALL_VIEWS = {"size": 24, "blur": 0.5, "degrees": 10.0, "solarize": 0.1, "compile": False}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"objective": name} for name in OBJECTIVES},
    **{f"{name}, deterministic": {"objective": name, "deterministic": True} for name in DETERMINISTIC},
    **{f"reclaim, {kind}": {"negatives": kind} for kind in ("nearest", "random")},
    **{f"adam, {precision}": {"precision": precision} for precision in ("32-true", "bf16-mixed", "16-mixed")},
    **{f"{optimizer}, bf16-mixed": {"optimizer": optimizer} for optimizer in ("adamw", "sgd", "lars")},
    **{f"method {name}": {"method": name} for name in METHODS},
    "bn per_view": {"bn": "per_view"},
    "fixed statistics": {"encoder_statistics": "fixed"},
    "chunks": {"chunk_size": BATCH // 4},
    "convolutions of measured speed": {"benchmark": True},
    "all views": {"views": ALL_VIEWS},
}
OTHERS: dict[str, dict[str, Any]] = {
    f"{optimizer}, {precision}": {"optimizer": optimizer, "precision": precision}
    for optimizer in ("adamw", "sgd", "lars")
    for precision in ("32-true", "16-mixed")
}
NO_COMPILER = "views that cannot be compiled"
# One process compiles the views of all cases, so that it compiles views of a second size.
COMPILED: dict[str, dict[str, Any]] = {
    "compiled views": {"views": {}},
    "all views, compiled": {"views": {**ALL_VIEWS, "compile": "auto"}},
    "compiled encoder": {"compile_mode": "default"},
    "compiled views and encoder": {"views": {}, "compile_mode": "default"},
}
GRAPHS: dict[str, dict[str, Any]] = {
    **{
        f"graph, {optimizer}, {precision}": {
            "cuda_graph": True,
            "optimizer": optimizer,
            "precision": precision,
        }
        for optimizer in ("adam", "adamw", "sgd", "lars")
        for precision in ("32-true", "bf16-mixed")
    },
    **{f"graph, {name}": {"cuda_graph": True, "objective": name} for name in OBJECTIVES if name != "reclaim"},
    **{f"graph, method {name}": {"cuda_graph": True, "method": name} for name in METHODS},
    "graph, convolutions of measured speed": {"cuda_graph": True, "benchmark": True},
    "graph, fixed statistics": {"cuda_graph": True, "encoder_statistics": "fixed"},
    "graph, all views": {"cuda_graph": True, "views": ALL_VIEWS},
    "graph, compiled views": {"cuda_graph": True, "views": {}},
    "graph, all views, compiled": {"cuda_graph": True, "views": {**ALL_VIEWS, "compile": "auto"}},
    "graph, compiled views and encoder": {"cuda_graph": True, "views": {}, "compile_mode": "default"},
    "graph, compiled loss": {
        "cuda_graph": True,
        "views": {},
        "compile_mode": "default",
        "compile_loss": True,
    },
    "graph, all options": {
        "cuda_graph": True,
        "views": {},
        "compile_mode": "default",
        "compile_loss": True,
        "compile_options": {
            "combo_kernels": True,
            "coordinate_descent_tuning": True,
            "max_autotune_pointwise": True,
        },
        "benchmark": True,
    },
}


LOGGED = {"graph, logged step": {"cuda_graph": True, "logged": True}}


def run(case: str) -> dict[str, Any]:
    """Return the counts of a case."""
    if case == NO_COMPILER:
        return without_compiler()
    options = dict((CASES | OTHERS | COMPILED | GRAPHS | LOGGED)[case])
    if "objective" in options:
        options["objective"] = objective(options["objective"])
    if "negatives" in options:
        negatives = options.pop("negatives")
        options["objective"] = o.RECLAIM(k=10, warmup_epochs=0, negatives=negatives)
    if "method" in options:
        options |= method_options(options["method"])
    return train(**options)


def without_compiler() -> dict[str, Any]:
    """Return the counts of a step whose views would be compiled if Triton were available."""
    random_views._compiled.cache_clear()
    random_views._compiled_or_eager.cache_clear()
    missing = patch("torch._inductor.scheduler.has_triton", lambda *args: False)
    try:
        with missing, torch._inductor.config.patch(force_disable_caches=True):
            return train(views={"size": 20})
    finally:
        random_views._compiled.cache_clear()
        random_views._compiled_or_eager.cache_clear()


def method_options(name: str) -> dict[str, Any]:
    """Return the method of a file in configs/method and its options."""
    model = yaml.safe_load((CONFIGS / "method" / f"{name}.yaml").read_text())["model"]
    return model.get("init_args", {}) | {"method": model["class_path"], "objective": o.InfoNCE()}


LONG = (*OTHERS, *COMPILED, *GRAPHS, NO_COMPILER)
ALL = [*CASES, *(pytest.param(case, marks=pytest.mark.long) for case in LONG)]


@pytest.mark.parametrize("case", ALL)
def test_step_neither_waits_nor_exceeds_recorded_launches(case, result, launches):
    whole = result["whole"]
    assert whole["wait"] == 0, result["places"]
    assert whole["pageable"] == 0
    assert whole["refused"] == 0
    assert launches(case, whole["launch"])


@pytest.mark.parametrize("case", LOGGED)
def test_logged_step_waits_once_for_each_part(case, result):
    whole = result["whole"]
    # loss, learning rate, statistics, histogram of weights, counts of non-finite steps
    assert whole["wait"] <= 5, result["places"]
    assert whole["upload"] <= 8


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.long) for case in GRAPHS])
def test_cuda_graph_step_launches_one_graph(case, result):
    update, whole = result["update"], result["whole"]
    assert (update["graph"], whole["graph"], whole["refused"]) == (1, 1, 0)
    # The momentum network is updated after the graph, with one launch or, in torch 2.11, with two.
    assert (update["launch"] > 0) == ("moco" in case)
    assert whole["launch"] - update["launch"] <= 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "most"),
    [("graph, compiled loss", 370), ("graph, all options", 300)],
)
def test_compiled_loss_captures_fewer_kernels_than_compiled_encoder(case, most, result):
    assert 0 < result["captured"] < most  # 400 with a compiled encoder


@pytest.mark.long
@pytest.mark.parametrize("case", ["compiled views"])
def test_compiled_views_take_at_most_40_launches(case, result):
    assert result["whole"]["launch"] - result["update"]["launch"] <= 40


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    device_program.main(run)
