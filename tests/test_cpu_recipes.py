"""Tests of benchmarks/cpu_recipes.py: recipes take equal time, and fit accepts their options."""

import importlib
import json
from pathlib import Path

import pytest

from ssl_vision.cli.fit_command import checked

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parent.parent


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("cpu_recipes")


def test_schedule_divides_time_among_view_sizes(script):
    steps, recipe = {16: 0.1, 24: 0.2, 32: 0.4}, script.RECIPES["smaller"]
    sizes, epochs = script.schedule(recipe, 10_000.0, steps)
    (first, second), per_epoch = sizes, 50_000 // 256
    assert sizes == {first: 16, second: 24}
    seconds = [first * steps[16], (second - first) * steps[24], (epochs - second) * steps[32]]
    assert [each * per_epoch for each in seconds] == pytest.approx([4_000, 3_000, 3_000], abs=0.4 * per_epoch)


def test_schedule_of_single_size_has_no_resizing(script):
    assert script.schedule(script.RECIPES["start"], 1200.0, {32: 0.5}) == ({}, 12)


def test_step_times_of_recipes_with_equal_steps_are_reused(script, monkeypatch):
    monkeypatch.setattr(script, "step_seconds", lambda recipe, size: 9.0)
    rows = [
        {"recipe": "width 32", "step_seconds": {"32": 1.6}},
        {"recipe": "start", "step_seconds": {"32": 0.5}},
        {"recipe": "smaller", "step_seconds": {"16": 0.1, "24": 0.2, "32": 0.7}},
    ]
    assert script.steps_of(script.RECIPES["SGD, smaller"], rows) == {16: 0.1, 24: 0.2, 32: 0.5}
    assert script.steps_of(script.RECIPES["width 32, smaller"], rows) == {16: 9.0, 24: 9.0, 32: 1.6}


def test_row_added_by_another_process_during_training_is_kept(script, monkeypatch, tmp_path):
    file = tmp_path / "cpu_recipes.json"

    def trained(name, chosen, seed, rows):
        file.write_text(json.dumps([{"recipe": "SGD", "seed": seed, "core_seconds": chosen.seconds}]))
        return {"recipe": name, "seed": seed, "core_seconds": chosen.seconds}

    monkeypatch.setattr("rows.RESULTS", tmp_path)
    monkeypatch.setattr(script, "trained", trained)
    monkeypatch.setattr("sys.argv", ["", "--data=data", "--seconds=1", "--recipes", "start", "SGD"])
    script.main()
    assert [each["recipe"] for each in json.loads(file.read_text())] == ["SGD", "start"]


@pytest.mark.long
@pytest.mark.parametrize("sizes", [{}, {3: 16, 5: 24}])
def test_fit_accepts_every_recipe(script, sizes, monkeypatch):
    monkeypatch.chdir(ROOT)
    for recipe in script.RECIPES.values():
        checked(script.options_of(recipe, sizes, 7))
