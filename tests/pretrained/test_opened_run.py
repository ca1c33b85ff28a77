"""Test of opening a run."""

import shutil

import torch

from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.registry import Run


def test_checkpoint_named_in_its_directory_belongs_to_its_run(tiny_run, monkeypatch):
    monkeypatch.chdir(tiny_run / "checkpoints")
    folder = open_run("last.ckpt").folder
    assert folder.path.resolve() == tiny_run.resolve()
    assert Run(folder.path).name == tiny_run.name


def test_run_checkpoint_and_copy_of_it_open_the_same_network(tiny_run, tmp_path):
    copy = shutil.copyfile(tiny_run / "checkpoints/last.ckpt", tmp_path / "copy.ckpt")
    runs = [open_run(path) for path in (tiny_run, tiny_run / "checkpoints" / "last.ckpt", copy)]
    assert [run.folder.path for run in runs] == [tiny_run, tiny_run, tmp_path]
    assert [run.is_last_epoch for run in runs] == [True, True, False]
    assert all(run.owned and run.config == runs[0].config for run in runs)
    first, *others = (run.trained().state_dict() for run in runs)
    assert all(torch.equal(value, other[name]) for name, value in first.items() for other in others)
