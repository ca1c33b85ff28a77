"""Tests of the classes that a stored config may name: this package's, and those that the user allows."""

import inspect
import os
import shutil
import sys

import pytest
import pytorch_lightning as pl
import torch
from PIL import Image
from torch import nn

from ssl_vision import objectives
from ssl_vision.cli.config_objects import _registered, built
from ssl_vision.cli.import_paths import local_modules, names_in_command
from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.pretrained.opened_run import open_run, safe_data
from ssl_vision.runs.checkpoint import read_checkpoint

EVIL = """
from pathlib import Path
from ssl_vision.objectives import InfoNCE
Path({marker!r}).touch()
class Loss(InfoNCE):
    pass
"""


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """File that the importable module ``evil_module`` creates when it is imported."""
    path = tmp_path / "imported"
    (tmp_path / "evil_module.py").write_text(EVIL.format(marker=str(path)))
    (tmp_path / "evil.yaml").write_text("class_path: evil_module.Loss")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield path
    sys.modules.pop("evil_module", None)


def set_objective(value):
    return lambda config: config["model"]["init_args"].update(objective=value)


RECLAIM = {"class_path": "ssl_vision.objectives.RECLAIM"}
ATTACKS = {
    "the model": lambda config: config["model"].update(class_path="evil_module.Loss"),
    "the objective": set_objective({"class_path": "evil_module.Loss"}),
    "a text": set_objective("evil_module.Loss"),
    "a text with spaces": set_objective(" evil_module.Loss "),
    "YAML in a text": set_objective("{class_path: evil_module.Loss, init_args: {temperature: 2024-99-99}}"),
    "YAML in lines": set_objective("class_path: evil_module.Loss\n"),
    "another config file": set_objective("evil.yaml"),
    "its path": set_objective("./evil.yaml"),
    "a temperature": set_objective(
        {"class_path": "ssl_vision.objectives.InfoNCE", "init_args": {"temperature": "evil_module.Loss"}}
    ),
    "a nested objective": set_objective(
        RECLAIM | {"init_args": {"objective": {"class_path": "evil_module.Loss"}}}
    ),
    "a nested text": set_objective(RECLAIM | {"init_args": {"objective": "evil_module.Loss"}}),
    "a list": set_objective([{"class_path": "evil_module.Loss"}]),
    "further arguments": set_objective(RECLAIM | {"dict_kwargs": {"objective": "evil_module.Loss"}}),
    "a dotted key": lambda config: config["model"]["init_args"].update(
        {"objective.class_path": "evil_module.Loss"}
    ),
    "a folder's option": lambda config: config["model"]["init_args"].update(root="evil_module.Loss"),
    "a config file for a group of options": lambda config: config["model"]["init_args"].update(
        optimizer="./evil.yaml"
    ),
    "one in YAML in a text": lambda config: config.update(
        model="{class_path: ssl_vision.methods.SimCLR, init_args: {optimizer: ./evil.yaml}}"
    ),
    "one by a dotted key": lambda config: config["model"].update({"init_args.optimizer": "./evil.yaml"}),
    "the whole section": lambda config: config.update(model="evil_module.Loss"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_unregistered_class_in_config_is_refused_without_import(attack, tiny_run, marker):
    config = read_checkpoint(tiny_run).config
    ATTACKS[attack](config)
    with pytest.raises(InputError) as error:
        built(pl.LightningModule, "model", config, where="x.ckpt", allow_class=())
    assert str(error.value).startswith("x.ckpt: ")
    assert "\n" not in str(error.value)
    assert not marker.exists()


def test_refused_class_loads_with_suggested_allow_class_option(tiny_run, marker):
    run = open_run(tiny_run)
    set_objective({"class_path": "evil_module.Loss"})(run.config)
    run.checkpoint.state.pop("objective.rule.alpha", None)
    with pytest.raises(
        InputError, match=r"names the class evil_module\.Loss.*add --allow_class evil_module\.Loss;"
    ):
        run.trained()
    model = run._replace(allow_class=["evil_module.Loss"]).untrained()
    assert type(model.objective).__module__ == "evil_module"
    assert marker.exists()


@pytest.mark.parametrize("name", ["Identity", "torch.nn.Identity", "ssl_vision.methods.simclr.nn.Identity"])
def test_classes_of_installed_libraries_are_refused_as_well(name, tiny_run):
    config = read_checkpoint(tiny_run).config
    for value in (name, {"class_path": name}):
        set_objective(value)(config)
        with pytest.raises(InputError, match="Identity"):
            built(pl.LightningModule, "model", config, where="x.ckpt", allow_class=())


class WithoutArguments(nn.Flatten):
    def __init__(self):
        super().__init__()


def test_class_without_arguments_is_built():
    name = f"{__name__}.WithoutArguments"
    config = {"encoder": {"class_path": name}}
    encoder = built(nn.Module, "encoder", config, where="config.yaml", allow_class=[name])
    assert isinstance(encoder, WithoutArguments)


@pytest.mark.parametrize("option", ["train", "val_files", "test"])
def test_names_of_files_of_data_are_not_taken_for_classes(option):
    data = {"class_path": "ssl_vision.data.Shards", "init_args": {"root": "shards", option: "one.tar"}}
    section = safe_data({"data": data}, where="config.yaml", owned=True)
    assert section["init_args"][option] == "one.tar"


def test_every_objective_and_its_parts_are_registered():
    parts = [name for name in objectives.__all__ if inspect.isclass(getattr(objectives, name))]
    modules = [name for name in parts if issubclass(getattr(objectives, name), nn.Module)]
    assert {"InfoNCE", "RECLAIM", "Constant"} <= set(modules)
    assert all(_registered(f"ssl_vision.objectives.{name}") for name in modules)
    for name in (
        "ssl_vision.main.main",
        "ssl_vision.__main__.main",
        "ssl_vision.data.module.Path",
        "a.b",
        "InfoNCE",
    ):
        assert not _registered(name)


def test_names_in_command_finds_classes_in_files_and_options(tmp_path):
    (tmp_path / "c.txt").write_text("model: {init_args: {objective: {class_path: in_file.A}}}")
    (tmp_path / "data.yaml").write_text("class_path: in_data.B")
    args = [
        "--config", f"{tmp_path}/c.txt", f"--data={tmp_path}/data.yaml", "--model.objective=in_option.C",
        "--trainer.callbacks", '[{"class_path": "in_json.D"}]', "--lr=0.5", "--data.root=/data/x.y",
    ]  # fmt: skip
    assert set(names_in_command(args)) == {"in_file.A", "in_data.B", "in_option.C", "in_json.D"}


@pytest.mark.timeout(10)
def test_names_in_command_skips_unreadable_files(tmp_path):
    """The command itself reports what is wrong with a file."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "sparse.yaml").touch()
    os.truncate(tmp_path / "sparse.yaml", 2**40)
    args = ["evaluate", str(tmp_path / "pipe.yaml"), f"--config={tmp_path / 'sparse.yaml'}", "--data=mine.A"]
    assert list(names_in_command(args)) == ["mine.A"]


def test_local_modules_appends_current_folder_only_for_named_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = ("last.ckpt", "encoder.safetensors")
    for name in ("mine.py", "yaml.py", "evil_module.py", "last.py", "encoder.py", "out.py", *files):
        (tmp_path / name).touch()
    before = list(sys.path)
    for args in (
        ["export", "last.ckpt"],
        ["last.ckpt"],
        ["embed", "--weights", "encoder.safetensors", "images"],
        ["export", "run", "--output=out.onnx"],
        ["fit", "--name", "mine.first", "--ckpt_path=last.ckpt"],
        ["evaluate", "mine.run"],
        ["fit", "--data.root=last.ckpt"],
        ["--data=evil_module"],
        ["--data=yaml.Loader"],
        ["--data=absent.Loss"],
    ):
        with local_modules(args):
            assert sys.path == before, args
    for args in (
        ["fit", "--model.objective", "mine.Loss"],
        ["fit", "--trainer.callbacks+=mine.Callback"],
        ["evaluate", "--encoder=mine.Net"],
        ["maps", "--objectives=mine.Loss"],
        ["export", "run", "--allow_class", "mine.Net"],
    ):
        with local_modules(args):
            assert sys.path == [*before, str(tmp_path)], args
    assert sys.path == before


@pytest.fixture
def hostile(tiny_run, tmp_path, monkeypatch):
    """Run whose checkpoint and config.yaml name a class of a file in the current folder."""
    marker = tmp_path / "imported"
    (tmp_path / "lying_here.py").write_text(EVIL.format(marker=str(marker)))
    run = shutil.copytree(tiny_run, tmp_path / "run")
    file = run / "checkpoints" / "last.ckpt"
    content = torch.load(file, weights_only=True)
    content["ssl_vision"]["config"] = content["ssl_vision"]["config"].replace(
        "ssl_vision.objectives.MACL", "lying_here.Loss"
    )
    torch.save(content, file)
    (run / "config.yaml").write_text(content["ssl_vision"]["config"])
    monkeypatch.chdir(tmp_path)
    return run


def commands_on_run(run):
    return {
        "evaluate": ["evaluate", str(run)],
        "export": ["export", str(run)],
        "embed": ["embed", str(run), f"--weights={run}", f"--output={run.parent}/f.npz"],
    }


@pytest.mark.parametrize("name", ["evaluate", "export", "embed"])
def test_commands_do_not_import_class_named_by_run(name, hostile, tmp_path, capsys):
    Image.new("RGB", (9, 9)).save(hostile / "x.png")
    assert main(commands_on_run(hostile)[name]) == 2
    error = capsys.readouterr().err
    assert "add --allow_class lying_here.Loss" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "imported").exists()
