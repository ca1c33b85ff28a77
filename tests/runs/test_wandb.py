"""The W&B mirror, offline: what W&B's own reader finds in it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from settings import TINY

from ssl_vision.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    runs = tmp_path_factory.mktemp("wandb")
    args = [f"--runs_dir={runs}", "--name=mirrored", "--model.objective=DCL", "--wandb=offline"]
    assert main(["fit", *args, *TINY, "--trainer.max_epochs=1"]) == 0
    return runs / "mirrored"


def inspect(run: Path, *options: str) -> str:
    (offline,) = (run / "wandb").glob("offline-run-*")
    wandb = Path(sys.executable).with_name("wandb")
    command = [str(wandb), "leet", "inspect", "--json", *options, str(offline)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_mirror_lies_in_the_run_folder_beside_metrics_csv(run):
    assert {"config.yaml", "metrics.csv", "checkpoints", "wandb"} <= {p.name for p in run.iterdir()}


def test_the_mirror_holds_the_full_config(run):
    config = inspect(run, "--summary")
    for words in ("ssl_vision.objectives.DCL", "batch_size", "max_epochs", "seed_everything"):
        assert words in config, words


def test_the_mirror_holds_the_history(run):
    records = [json.loads(line) for line in inspect(run).splitlines()]
    history = [str(record) for record in records if record["type"] == "history"]
    assert sum("train/loss" in record for record in history) == 4
    assert sum("val/knn_top1" in record for record in history) == 1


def test_without_a_key_online_logging_is_refused_before_anything_starts(tmp_path, capsys, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", "--wandb=true", *TINY]) == 2
    error = capsys.readouterr().err
    assert "ssl-vision fit: --wandb true: no W&B API key is configured" in error
    assert not (tmp_path / "run").exists()


def test_wandb_mode_offline_needs_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    args = ["--name=run", "--wandb=true", *TINY, "--trainer.max_epochs=1", "--trainer.limit_train_batches=2"]
    assert main(["fit", f"--runs_dir={tmp_path}", *args]) == 0
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))
