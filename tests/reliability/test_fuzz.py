"""Fuzz test of configs: one with a random fault trains a step or fails with a one-line message.

The suite draws the same few configs each time; SSL_VISION_FUZZ=2000 draws 2000 others (``make torture``).
"""

import contextlib
import copy
import io
import os
import resource
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st
from settings import CONFIGS

from ssl_vision import data, methods, objectives
from ssl_vision.main import main
from ssl_vision.methods import SimCLR

EXAMPLES = int(os.environ.get("SSL_VISION_FUZZ", "0"))
SECONDS = 120
GIGABYTES = 12

TINY = {
    "seed_everything": 0,
    "model": {
        "init_args": {
            "encoder": {"class_path": "ResNet", "init_args": {"width": 2}},
            "hidden_dim": 8,
            "output_dim": 4,
            "compile_mode": None,
        }
    },
    "data": {"init_args": {"batch_size": 8, "eval_batch_size": 8}},
    "trainer": {
        "max_epochs": 1,
        "limit_train_batches": 2,
        "limit_val_batches": 2,
        "check_val_every_n_epoch": 1,
        "log_every_n_steps": 1,
        "accelerator": "cpu",
        "precision": "32-true",
        "enable_progress_bar": False,
    },
    "metrics": {"k": 5},
}

VALUES: list[Any] = [
    None, True, "", "x", "ü\n\0", "y" * 5000, "1", "nan", -1, 0, 1, 3, 2**63, 10**12, 10**30, -0.5, 0.5,
    1e-300, 1e308, float("inf"), float("nan"), [], [1, 2], [[]], {}, {"a": {}}, {"class_path": "x"},
    "2020-01-01",
]  # fmt: skip

CLASSES = [
    *(f"{room.__name__}.{name}" for room in (objectives, methods, data) for name in room.__all__),
    "SimCLR", "Digits", "MACL", "torch.nn.Identity", "torch.nn.Linear", "os.system", "subprocess.Popen",
    "no.such.Class", "ssl_vision", "ssl_vision.main.main", "", ".", "Contrastive",
]  # fmt: skip


class Hang(BaseException):
    """The command exceeded the time limit."""


def merge(below: dict, above: dict) -> dict:
    result = dict(below)
    for key, value in above.items():
        result[key] = (
            merge(result[key], value)
            if isinstance(result.get(key), dict) and isinstance(value, dict)
            else value
        )
    return result


def tiny_config(file: Path) -> dict:
    """A shipped config, changed to train a tiny network on the digits."""
    config = yaml.safe_load(file.read_text())
    if config.get("data", {}).get("class_path", "Digits") != "Digits":
        views = config["data"]["init_args"].get("views", {})
        config["data"] = {"init_args": {"views": {**views, "compile": False}} if views else {}}
    config = merge({"model": {"class_path": "SimCLR"}, "data": {"class_path": "Digits"}}, config)
    if "optimizer" in config["model"].get("init_args", {}):
        config["model"]["init_args"]["optimizer"]["warmup_epochs"] = 0  # the run has one epoch
    return merge(config, TINY)


VALID_CONFIGS = [
    tiny_config(file)
    for file in sorted(CONFIGS.rglob("*.yaml"))
    if file.parent.name not in ("paper", "sweep")
]


def key_paths(tree: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield the paths of all keys of a nested dictionary."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield (*path, key)
            yield from key_paths(value, (*path, key))


@st.composite
def faulty_configs(draw: st.DrawFn) -> dict:
    """A shipped config with one change."""
    config = copy.deepcopy(draw(st.sampled_from(VALID_CONFIGS)))
    path = draw(st.sampled_from(list(key_paths(config))))
    parent = config
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    fault = draw(
        st.sampled_from(["delete", "rename", "replace", "replace", "class", "nest", "unnest", "add"])
    )
    if fault == "delete":
        del parent[key]
    elif fault == "rename":
        position = draw(st.integers(0, len(key)))
        new_key = draw(
            st.sampled_from(
                [
                    key[:position] + key[position + 1 :],
                    key[:position] + "x" + key[position:],
                    key.upper(),
                    "ü",
                    "",
                    key + ".x",
                    7,
                ]
            )
        )
        parent[new_key] = parent.pop(key)
    elif fault == "replace":
        parent[key] = draw(st.sampled_from(VALUES))
    elif fault == "class":
        parent["class_path" if "class_path" in parent else key] = draw(st.sampled_from(CLASSES))
    elif fault == "nest":
        parent[key] = {draw(st.sampled_from([key, "init_args", "class_path", "x"])): parent[key]}
    elif fault == "unnest" and isinstance(parent[key], dict):
        config |= parent.pop(key)
    else:
        parent[draw(st.sampled_from(["x", "init_args", "class_path", "dict_kwargs", "__path__"]))] = draw(
            st.sampled_from(VALUES)
        )
    return config


@pytest.fixture(autouse=True, scope="module")
def limits():
    """Stop runs after one step and limit time and memory, so that configs that are merely large end soon."""
    original_hook = SimCLR.on_train_batch_end

    def stop(self: SimCLR, *args: Any) -> None:
        original_hook(self, *args)
        self.trainer.should_stop = True

    def raise_hang(*_: Any) -> None:
        raise Hang

    address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    previous_limit = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, raise_hang)
    SimCLR.on_train_batch_end = stop
    resource.setrlimit(resource.RLIMIT_AS, (address_space + GIGABYTES * 2**30, previous_limit[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, previous_limit)
    SimCLR.on_train_batch_end = original_hook
    signal.signal(signal.SIGALRM, handler)


@settings(
    max_examples=EXAMPLES or 12, deadline=None, derandomize=not EXAMPLES, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@pytest.mark.timeout(0)
@given(faulty_configs())
def test_config_with_one_fault_trains_or_fails_in_one_line(config):
    folder = Path(tempfile.mkdtemp())
    try:
        file = folder / "config.yaml"
        file.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
        error = io.StringIO()
        signal.alarm(SECONDS)
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(error),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            code = main(["fit", f"--config={file}", f"--runs_dir={folder / 'runs'}", "--name=run"])
        signal.alarm(0)
        lines = [line for line in error.getvalue().splitlines() if line.startswith("ssl-vision")]
        note(f"{file.read_text()}\n{code} {error.getvalue()}")
        assert "Traceback" not in error.getvalue()
        if code == 0:
            trainer = config.get("trainer") or {}
            if all(trainer.get(key) == TINY["trainer"][key] for key in ("max_epochs", "limit_train_batches")):
                assert (folder / "runs" / "run" / "checkpoints" / "last.ckpt").is_file()
            return
        (line,) = lines
        event(line if code == 1 else f"exit code {code}")
        assert code in (1, 2)
        if code == 2:
            assert not (folder / "runs").exists()
    finally:
        signal.alarm(0)
        shutil.rmtree(folder)
