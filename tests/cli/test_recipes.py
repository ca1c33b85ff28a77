"""Tests of recipes: they are found by name, listed with a sentence each, and part of the wheel."""

import subprocess
import sys
from pathlib import Path

import pytest
from settings import CONFIGS

from ssl_vision.cli.listing import sentences
from ssl_vision.cli.recipes import find_recipe, recipes, with_recipes
from ssl_vision.errors import InputError
from ssl_vision.main import main


@pytest.mark.parametrize(
    ("name", "folder", "file"),
    [
        ("pretrain/digits", "", "pretrain/digits.yaml"),
        ("pretrain/digits.yaml", "", "pretrain/digits.yaml"),
        ("configs/pretrain/digits.yaml", "", "pretrain/digits.yaml"),
        ("temperature_digits", "sweep", "sweep/temperature_digits.yaml"),
        ("configs/sweep/temperature_digits.yaml", "sweep", "sweep/temperature_digits.yaml"),
        ("macl", "paper", "paper/macl.yaml"),
    ],
)
def test_recipe_is_found_by_name_and_by_path_of_the_checkout(name, folder, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe(name, CONFIGS / folder, "--config") == CONFIGS / file


def test_existing_file_precedes_recipe_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("pretrain").mkdir()
    Path("pretrain/digits").touch()
    assert with_recipes(["-c", "pretrain/digits"]) == ["-c", "pretrain/digits"]
    Path("pretrain/digits").unlink()
    found = str(CONFIGS / "pretrain/digits.yaml")
    expected = ["--config", found, "--name=a", f"--config={found}"]
    packaged = with_recipes(["--config", "pretrain/digits", "--name=a", "--config=pretrain/digits"])
    assert [Path(word.removeprefix("--config=")).resolve() for word in packaged] == [
        Path(word.removeprefix("--config=")).resolve() for word in expected
    ]


@pytest.mark.parametrize(
    ("args", "closest"),
    [
        ("fit --config pretrain/digit", "pretrain/digits"),
        ("sweep temperature_digit", "temperature_digits"),
        ("reproduce malc", "macl"),
    ],
)
def test_unknown_recipe_is_an_error_with_the_closest_name(args, closest, capsys):
    assert main(args.split()) == 2
    error = capsys.readouterr().err
    assert error.endswith(f"{args.split()[-1]}: no such file or recipe, did you mean '{closest}'?\n")
    assert error.count("\n") == 1


def test_every_recipe_has_a_sentence():
    listed = sentences("configs")
    assert len(listed) == len(list(CONFIGS.glob("*/*.yaml")))
    assert all(listed.values())


def test_wheel_contains_all_recipes(tmp_path):
    """The build copies what a wheel holds; an editable installation reads the same link."""
    build = "from setuptools import setup; setup()"
    command = [sys.executable, "-c", build, "--quiet", "build_py", f"--build-lib={tmp_path}"]
    subprocess.run(command, cwd=CONFIGS.parent, check=True, capture_output=True)
    built = recipes(tmp_path / "ssl_vision" / "configs")
    assert built.keys() == recipes(CONFIGS).keys()
    assert not any(file.is_symlink() for file in built.values())
    assert (tmp_path / "ssl_vision" / "configs" / "data" / "imagenet100.txt").is_file()


def test_file_that_is_not_there_is_an_error_even_with_suffix():
    with pytest.raises(InputError, match="no such file or recipe"):
        find_recipe("elsewhere/mine.yaml", CONFIGS, "--config")
