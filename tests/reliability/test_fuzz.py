"""Configs with one thing wrong, drawn at random: each trains a step, or ends in one line.

The suite draws the same few each time; SSL_VISION_FUZZ=2000 draws so many others (``make torture``).
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
    """The time is over."""


def merged(below: dict, above: dict) -> dict:
    both = dict(below)
    for key, value in above.items():
        both[key] = (
            merged(both[key], value) if isinstance(both.get(key), dict) and isinstance(value, dict) else value
        )
    return both


def base(file: Path) -> dict:
    """A shipped config, tiny and on the digits."""
    config = yaml.safe_load(file.read_text())
    if config.get("data", {}).get("class_path", "Digits") != "Digits":
        views = config["data"]["init_args"].get("views", {})
        config["data"] = {"init_args": {"views": {**views, "compile": False}} if views else {}}
    config = merged({"model": {"class_path": "SimCLR"}, "data": {"class_path": "Digits"}}, config)
    if "optimizer" in config["model"].get("init_args", {}):
        config["model"]["init_args"]["optimizer"]["warmup_epochs"] = 0  # there is one epoch
    return merged(config, TINY)


BASES = [base(file) for file in sorted(CONFIGS.rglob("*.yaml")) if file.parent.name not in ("paper", "sweep")]


def places(tree: Any, path: tuple = ()) -> Iterator[tuple]:
    """The paths of all keys."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield (*path, key)
            yield from places(value, (*path, key))


@st.composite
def wrong(draw: st.DrawFn) -> dict:
    """A shipped config with one thing changed."""
    config = copy.deepcopy(draw(st.sampled_from(BASES)))
    path = draw(st.sampled_from(list(places(config))))
    parent = config
    for key in path[:-1]:
        parent = parent[key]
    key = path[-1]
    how = draw(st.sampled_from(["delete", "rename", "replace", "replace", "class", "nest", "unnest", "add"]))
    if how == "delete":
        del parent[key]
    elif how == "rename":
        place = draw(st.integers(0, len(key)))
        other = draw(
            st.sampled_from(
                [
                    key[:place] + key[place + 1 :],
                    key[:place] + "x" + key[place:],
                    key.upper(),
                    "ü",
                    "",
                    key + ".x",
                    7,
                ]
            )
        )
        parent[other] = parent.pop(key)
    elif how == "replace":
        parent[key] = draw(st.sampled_from(VALUES))
    elif how == "class":
        parent["class_path" if "class_path" in parent else key] = draw(st.sampled_from(CLASSES))
    elif how == "nest":
        parent[key] = {draw(st.sampled_from([key, "init_args", "class_path", "x"])): parent[key]}
    elif how == "unnest" and isinstance(parent[key], dict):
        config |= parent.pop(key)
    else:
        parent[draw(st.sampled_from(["x", "init_args", "class_path", "dict_kwargs", "__path__"]))] = draw(
            st.sampled_from(VALUES)
        )
    return config


@pytest.fixture(autouse=True, scope="module")
def limits():
    """A step and no more, in some seconds and gigabytes: what is merely large ends soon."""
    original = SimCLR.on_train_batch_end

    def stop(self: SimCLR, *args: Any) -> None:
        original(self, *args)
        self.trainer.should_stop = True

    def late(*_: Any) -> None:
        raise Hang

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, late)
    SimCLR.on_train_batch_end = stop
    resource.setrlimit(resource.RLIMIT_AS, (used + GIGABYTES * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
    SimCLR.on_train_batch_end = original
    signal.signal(signal.SIGALRM, handler)


@settings(
    max_examples=EXAMPLES or 20, deadline=None, derandomize=not EXAMPLES, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@pytest.mark.timeout(0)
@given(wrong())
def test_a_config_with_one_thing_wrong_runs_or_ends_in_one_line(config):
    place = Path(tempfile.mkdtemp())
    try:
        file = place / "config.yaml"
        file.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
        error = io.StringIO()
        signal.alarm(SECONDS)
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(error),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            code = main(["fit", f"--config={file}", f"--runs_dir={place / 'runs'}", "--name=run"])
        signal.alarm(0)
        lines = [line for line in error.getvalue().splitlines() if line.startswith("ssl-vision")]
        note(f"{file.read_text()}\n{code} {error.getvalue()}")
        assert "Traceback" not in error.getvalue()
        if code == 0:
            trainer = config.get("trainer") or {}
            if all(trainer.get(key) == TINY["trainer"][key] for key in ("max_epochs", "limit_train_batches")):
                assert (place / "runs" / "run" / "checkpoints" / "last.ckpt").is_file()
            return
        (line,) = lines
        event(line if code == 1 else f"exit code {code}")
        assert code in (1, 2)
        if code == 2:
            assert not (place / "runs").exists()
    finally:
        signal.alarm(0)
        shutil.rmtree(place)
