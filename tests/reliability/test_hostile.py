"""Tests of untrusted run directories: commands do not run code or use paths from them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from settings import TINY

from ssl_vision.experiments.report.context import ReportContext
from ssl_vision.experiments.report.page import Missing
from ssl_vision.main import main
from ssl_vision.pretrained.opened_run import ROOT_NEEDED, safe_data
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.registry import Run

LOSS = "from ssl_vision.objectives import InfoNCE\nclass LocalLoss(InfoNCE):\n    pass\n"


def change_config(run: Path, edit) -> None:
    """Change the config of a run in its checkpoint and in config.yaml."""
    file = run / "checkpoints" / "last.ckpt"
    content = torch.load(file, weights_only=True)
    config = yaml.safe_load(content["ssl_vision"]["config"])
    edit(config)
    content["ssl_vision"]["config"] = yaml.safe_dump(config)
    torch.save(content, file)
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def file_contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.fixture
def run(tiny_run, tmp_path):
    """A copy of a run that may be changed."""
    return shutil.copytree(tiny_run, tmp_path / "run")


@pytest.fixture
def foreign_run(run, monkeypatch):
    """A copy of a run that belongs to another user."""
    monkeypatch.setattr(os, "getuid", lambda: run.stat().st_uid + 1)
    return run


@pytest.fixture
def images(tmp_path):
    for number in range(24):
        file = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (9 * number, 0, 0)).save(file)
    return tmp_path / "images"


def test_class_in_current_folder_is_imported_for_user_but_not_for_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "local_loss.py").write_text(LOSS)
    monkeypatch.chdir(tmp_path)
    fit = [
        "fit",
        *TINY,
        "--model.objective=local_loss.LocalLoss",
        "--name=run",
        "--trainer.limit_train_batches=1",
    ]
    assert main([*fit, "--trainer.max_epochs=1"]) == 0
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")  # a requeued job resumes
    assert main([*fit, "--trainer.max_epochs=2"]) == 0
    assert torch.load("runs/run/checkpoints/last.ckpt", weights_only=True)["epoch"] == 1
    capsys.readouterr()
    assert main(["export", "runs/run"]) == 2
    assert "add --allow_class local_loss.LocalLoss" in capsys.readouterr().err
    assert main(["export", "runs/run", "--allow_class=local_loss.LocalLoss"]) == 0
    assert str(tmp_path) not in sys.path


def test_python_m_imports_nothing_from_the_current_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("seed_everything: 3")
    for name in ("yaml", "random", "rich"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    result = subprocess.run(
        [sys.executable, "-m", "ssl_vision", "runs", "run", "--columns=seed"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout.split(), result.stderr, result.returncode) == (["seed", "3"], "", 0)
    assert not (tmp_path / "imported").exists()


DOWNLOADS = [
    {"init_args": {"download": True}},
    {"init_args": {}, "dict_kwargs": {"download": True}},
    {"init_args": {}, "init_args.download": True},
]


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("options", DOWNLOADS)
def test_safe_data_disables_download(options, owned):
    config = {"data": {"class_path": "ssl_vision.data.CIFAR10", **options}}
    section = safe_data(config, where="x", owned=owned)
    assert not section["init_args"]["download"]
    assert not (section.get("dict_kwargs") or {}).get("download")


def test_safe_data_trusts_paths_of_own_run_only():
    options = {"root": "~/private", "cache": "always", "cache_dir": "/shared", "test": "test"}
    config = {"data": {"class_path": "ssl_vision.data.ImageFolder", "init_args": options}}
    own_options = safe_data(config, where="x", owned=True)["init_args"]
    assert {key: own_options[key] for key in options} == options
    foreign_options = safe_data(config, where="x", owned=False)["init_args"]
    assert foreign_options.keys() & options.keys() == {"root", "test"}
    assert foreign_options["root"] == ROOT_NEEDED
    config["data"]["init_args.root"] = "/etc"
    assert safe_data(config, where="x", owned=False)["init_args"]["root"] == ROOT_NEEDED


@pytest.mark.parametrize("whose", ["run", "checkpoint"])
def test_run_is_owned_only_if_its_folder_and_checkpoint_are(whose, run, monkeypatch):
    folder, stat = RunFolder(run), Path.stat
    assert folder.owned
    other_users_path = run if whose == "run" else folder.last

    def stat_of_another_user(path, **options):
        status = stat(path, **options)
        return (
            os.stat_result((*status[:4], status.st_uid + 1, *status[5:10]))
            if path == other_users_path
            else status
        )

    monkeypatch.setattr(Path, "stat", stat_of_another_user)
    assert not folder.owned


def test_evaluating_another_users_run_writes_only_to_its_folder(foreign_run, tmp_path, monkeypatch):
    change_config(foreign_run, lambda config: config.update(wandb=True))
    monkeypatch.setattr("ssl_vision.evaluation.command.log_rows", lambda *_, **__: pytest.fail("uploaded"))
    monkeypatch.chdir(tmp_path)
    before = file_contents(tmp_path)
    assert main(["evaluate", str(foreign_run), "--baselines=false"]) == 0
    after = file_contents(tmp_path)
    new = set(after) - set(before)
    assert {Path(name).relative_to(foreign_run).parts[0] for name in new} == {"evaluation.json", "features"}
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("mine", [True, False])
def test_evaluate_reads_stored_root_of_own_run_only_and_never_downloads(
    mine, run, tmp_path, monkeypatch, capsys
):
    root = tmp_path / "private"
    data = {"root": str(root), "download": True}

    def to_cifar10(config):
        config["data"]["class_path"] = "ssl_vision.data.CIFAR10"
        config["data"]["init_args"] |= data

    change_config(run, to_cifar10)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("downloaded"))
    if not mine:
        monkeypatch.setattr(os, "getuid", lambda: run.stat().st_uid + 1)
    assert main(["evaluate", str(run)]) == 2
    error = capsys.readouterr().err
    assert (str(root) in error) == mine
    assert mine or "give the images with --data.root" in error
    assert main(["evaluate", str(run), f"--data.root={tmp_path}/given"]) == 2
    assert f"CIFAR-10 is missing or damaged at {tmp_path}/given" in capsys.readouterr().err
    with pytest.raises(
        Missing, match=str(root) if mine else "pass the directory of the images with --data.root"
    ):
        ReportContext(Run(run)).images()


def test_report_of_another_users_run_reads_images_from_given_root_only(foreign_run, images):
    change_config(foreign_run, lambda config: config["data"].update(
        class_path="ssl_vision.data.ImageFolder",
        init_args={"root": "/shared", "image_size": 16, "views": config["data"]["init_args"]["views"]},
    ))  # fmt: skip
    with pytest.raises(Missing, match="belongs to another user"):
        ReportContext(Run(foreign_run)).images()
    data = ReportContext(Run(foreign_run), root=str(images)).images()
    assert len(data.split("train")) == 24


def test_evaluate_with_other_data_does_not_require_stored_data_class(run, capsys):
    change_config(run, lambda config: config["data"].update(class_path="absent_module.Data"))
    assert main(["evaluate", str(run)]) == 2
    assert "add --allow_class absent_module.Data" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--data=Digits", "--baselines=false", "--cache=false"]) == 0
