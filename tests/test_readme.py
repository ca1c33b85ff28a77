"""Tests of README.md, the quick start and the speed tables: code runs, and numbers match the records."""

import importlib
import json
import re
from pathlib import Path

import pytest
import torch
from contrastive_classes import PRESETS
from settings import TINY

from ssl_vision.objectives import SupCon

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SPEED = (ROOT / "docs" / "speed.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
QUICK_START = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "quickstart.md").read_text(), flags=re.DOTALL
)


def test_readme_objective_code_computes_gradients():
    (block,) = [block for block in BLOCKS if "objective.statistics" in block]
    z1 = torch.randn(8, 4, requires_grad=True)
    exec(block, {"z1": z1, "z2": torch.randn(8, 4)})
    assert z1.grad.abs().sum() > 0


def test_quick_start_code_loads_backbone(tiny_run):
    names = {}
    exec(QUICK_START[0].replace("runs/first", str(tiny_run)), names)
    assert names["features"].shape == (4, names["backbone"].num_features)


def test_quick_start_code_trains_and_evaluates(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = dict(option.removeprefix("--").split("=") for option in TINY)
    names = {}
    code = QUICK_START[1].replace('"pretrain/digits"', "config")
    exec(code, {"config": options}, names)
    assert names["run"].setting("objective") == "MACL"
    assert names["backbone"].num_features == 32
    assert "raw pixels" in capsys.readouterr().out


TABLES = {
    "objectives": lambda script, record: [
        table(record[part]["rows"]) for part, table in script.TABLES.items()
    ],
    "views": lambda script, record: [
        script.table([row for row in record["rows"] if row["size"] == size]) for size in (32, 96)
    ],
    "step": lambda script, record: [script.table(record)],
    "epoch": lambda script, record: [script.table(record)],
    "guard": lambda script, record: [script.table(record)],
}
FILES = {"step": "step_cpu", "epoch": "epoch_cpu", "guard": "guard_digits"}


@pytest.mark.parametrize("name", TABLES)
def test_speed_tables_match_benchmark_records(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script = importlib.import_module(name)
    record = json.loads((ROOT / "benchmarks" / "results" / f"{FILES.get(name, name)}.json").read_text())
    for table in TABLES[name](script, record):
        assert table in SPEED
    assert "dirty" not in json.dumps(record)


def test_readme_numbers_match_benchmark_records():
    def record(name):
        return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())

    views = {row["name"]: row for row in record("views")["rows"] if row["size"] == 32}
    eager, compiled, lightly = (
        f"{views[name]['us_per_image']['median']:,.0f}"
        for name in ("ssl_vision", "ssl_vision compiled", "lightly, PIL")
    )
    assert (
        f"take {eager} µs on one core, {compiled} compiled; lightly's PIL transform takes {lightly}" in README
    )
    step = record("step_cpu")
    assert f"takes {step['lightning_ms'] / step['bare_ms']:.2f} times" in README
    rows = {
        row["implementation"]: f"{row['milliseconds'] / 1e3:.1f} s and {row['megabytes']:,.0f} MB"
        for row in record("objectives")["speed"]["rows"]
        if (row["objective"], row["size"]) == ("InfoNCE, τ = 0.2", 16_384)
    }
    assert f"takes {rows['ssl_vision']} here, {rows['lightly']} in lightly" in README


def test_quick_start_duration_matches_recorded_runs():
    rows = json.loads((ROOT / "benchmarks" / "results" / "methods_cifar10_narrow.json").read_text())
    simclr_rows = [row for row in rows if (row["method"], row["objective"]) == ("SimCLR", "InfoNCE")]
    assert {row["epochs"] for row in simclr_rows} == {5}
    minutes = sorted(row["seconds"] / 60 for row in simclr_rows)
    assert f"took {minutes[0]:.0f} to {minutes[-1]:.0f} minutes on one CPU core" in README
    assert README.count("pretrain/cifar10_narrow --trainer.max_epochs 5 ") == 2


def test_readme_names_every_objective_preset():
    assert all(f"`{cls.__name__}`" in README for cls in (*PRESETS, SupCon))
