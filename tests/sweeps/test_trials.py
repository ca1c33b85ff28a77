"""Which cells a sweep has, and what they are called."""

import itertools
import re

import pytest

from ssl_vision.sweeps.sweep_file import parse_sweep
from ssl_vision.sweeps.trials import cells_of, short_names

OBJECTIVES, TEMPERATURES = ["InfoNCE", "MACL"], [0.1, 0.2, 0.5]


def test_a_grid_is_the_product(sweep_text):
    parameters = {
        "model.objective": {"values": OBJECTIVES},
        "model.objective.temperature": {"values": TEMPERATURES},
        "trainer.max_epochs": {"value": 3},
    }
    cells = cells_of(parse_sweep(sweep_text(parameters), where="f"), cap=None, seed=0)
    assert [dict(cell.parameters) for cell in cells] == [
        {"model.objective": o, "model.objective.temperature": t, "trainer.max_epochs": 3}
        for o, t in itertools.product(OBJECTIVES, TEMPERATURES)
    ]
    assert cells[1].name == "objective=InfoNCE,temperature=0.2"
    assert len({cell.name for cell in cells}) == 6
    assert len(cells_of(parse_sweep(sweep_text(parameters), where="f"), cap=4, seed=0)) == 4


def test_a_higher_cap_adds_random_cells_to_those_there_are(sweep_text):
    file = parse_sweep(
        sweep_text({"x": {"min": 0.0, "max": 1.0}, "n": {"min": 1, "max": 9}}, method="random"), where="f"
    )
    few, many = (cells_of(file, cap=cap, seed=0) for cap in (5, 20))
    assert many[:5] == few
    assert len({cell.name for cell in many}) == 20
    assert cells_of(file, cap=5, seed=1)[0] != few[0]
    assert all(0 <= cell.parameters["x"] < 1 and cell.parameters["n"] in range(1, 10) for cell in many)


def test_random_cells_are_distinct_and_end_with_the_values_there_are(sweep_text):
    file = parse_sweep(sweep_text({"x": {"values": [1, 2, 3]}}, method="random"), where="f")
    assert sorted(cell.parameters["x"] for cell in cells_of(file, cap=10, seed=0)) == [1, 2, 3]


def test_nested_parameters_are_a_dict(sweep_text):
    parameters = {"model": {"parameters": {"depth": {"values": [18, 34]}, "width": {"value": 8}}}}
    cells = cells_of(parse_sweep(sweep_text(parameters), where="f"), cap=None, seed=0)
    assert [cell.parameters for cell in cells] == [{"model": {"depth": d, "width": 8}} for d in (18, 34)]
    assert [cell.name for cell in cells] == ["depth=18", "depth=34"]


@pytest.mark.parametrize(
    "values",
    [
        [1 / 3, 0.33331],
        ["a/b", "a\\b", "a b"],
        ["../up", "/root"],
        ["module.Class", "other.Class"],
        [[0.2, 1.0], [0.2, 0.8]],
        ["x" * 300, "x" * 301],
        [{"class_path": "a.B", "init_args": {"k": k}} for k in (1, 2)],
        ["ä", "ö"],
        [None, True, 1e-05],
    ],
    ids=str,
)
def test_names_are_safe_short_and_distinct(values, sweep_text):
    cells = cells_of(parse_sweep(sweep_text({"x": {"values": values}}), where="f"), cap=None, seed=0)
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(values)
    assert all(re.fullmatch(r"[A-Za-z0-9_=][A-Za-z0-9_.,=+-]{0,130}", name) for name in names)


def test_a_short_name_is_no_shorter_than_what_tells_it_apart():
    names = ["model.lr", "head.lr", "data.batch_size", "a.model.lr"]
    assert short_names(names) == {
        "model.lr": "model.lr",
        "head.lr": "head.lr",
        "data.batch_size": "batch_size",
        "a.model.lr": "a.model.lr",
    }


def test_a_sweep_of_nothing_is_one_cell(sweep_text):
    (cell,) = cells_of(parse_sweep(sweep_text({"x": {"value": 1}}), where="f"), cap=None, seed=0)
    assert (cell.name, cell.parameters) == ("cell", {"x": 1})
