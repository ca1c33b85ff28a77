"""Tests of the online W&B client against a fake server: runs, uploads, and a sweep run by an agent."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb
import yaml
from settings import TINY
from wandb.sdk.lib import wbauth
from wandb_records import flat
from wandb_server import ENTITY, serve

from ssl_vision.main import main
from ssl_vision.runs.config import derived_group
from ssl_vision.runs.registry import Run

TESTS = Path(__file__).parents[1]
WANDB = str(Path(sys.executable).with_name("wandb"))
SHORT = [*TINY, "--trainer.limit_train_batches=2", "--wandb=true"]


def reset_client() -> None:
    """End the client's service and session, which keep the server and the key of their first use."""
    wandb.teardown()
    wbauth.unauthenticate_session()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A fake server for this process and its children, which may send requests to no other host.

    The fixture finally asserts that every request was answered.
    """
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as patch, serve() as server:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        for name, value in server.environment(tmp_path / "client").items():
            patch.setenv(name, value)
        reset_client()
        yield server
        reset_client()
    assert server.unsupported == []
    assert server.refused == []


def assert_same_history(run: Path, history: Sequence[Mapping[str, float]]) -> None:
    """Assert that the history has each number of metrics.csv once, at its step; only epochs may repeat."""
    rows = Run(run).history
    assert len(rows) > 1
    for row in rows:
        step_items = [item for item in history if item.get("trainer/global_step") == row["step"]]
        for key, value in row.items():
            if key != "step":
                values = [item[key] for item in step_items if key in item]
                assert values == pytest.approx([value] * (len(values) if key == "epoch" else 1)), (key, row)
                assert values


def test_online_fit_and_evaluation_are_one_run_on_the_server(server, tmp_path):
    options = ["--runs_dir=.", "--name=online", "--trainer.max_epochs=1", "--model.objective=DCL"]
    assert main(["fit", *SHORT, *options]) == 0
    run = Run("online")
    (online,) = server.runs.values()
    assert (online.name, online.project, online.state) == ("online", "ssl_vision", "finished")
    assert online.group == derived_group(run.config)
    config = dict(flat(yaml.safe_load(Path("online/config.yaml").read_text())))
    fit_summary = online.summary

    options = ["--baselines=false", "--probe.epochs=1", "--cache=false", "--device=cpu"]
    assert main(["evaluate", "online", *options]) == 0
    (online,) = server.runs.values()
    assert (online.starts, online.state) == (2, "finished")
    expected = Run("online").test_metrics
    assert {"test/knn_top1", "test/linear_top1"} < expected.keys()
    assert {name: online.summary.get(name) for name in expected} == pytest.approx(expected)
    assert fit_summary["val/knn_top1"] == online.summary["val/knn_top1"]
    sent = dict(flat(online.config))
    assert {key: sent.get(key, "absent") for key in config} == config
    assert_same_history(Path("online"), online.history)


def test_uploaded_checkpoint_is_evaluated_and_continued_in_other_run(server, tmp_path, monkeypatch, capsys):
    options = [*SHORT, "--wandb_artifacts=last"]
    assert main(["fit", "--name=up", *options, "--trainer.max_epochs=1"]) == 0
    (online,) = server.runs.values()
    stored = {artifact["name"]: artifact for artifact in server.artifacts.values()}
    assert stored.keys() == {f"checkpoint-{online.id}"}
    assert {artifact["state"] for artifact in stored.values()} == {"COMMITTED"}
    assert {*stored[f"checkpoint-{online.id}"]["aliases"]} == {"last", "epoch-1", "latest"}
    content = server.files[f"{stored[f'checkpoint-{online.id}']['id']}/last.ckpt"]
    assert content == Path("runs/up/checkpoints/last.ckpt").read_bytes()

    def artifact(name):
        if name != f"{ENTITY}/ssl_vision/checkpoint-{online.id}:last":
            raise ValueError("not\nfound")
        folder = tmp_path / "artifacts"
        folder.mkdir(exist_ok=True)
        (folder / "last.ckpt").write_bytes(content)
        return SimpleNamespace(download=lambda: str(folder))

    monkeypatch.setattr(wandb, "Api", lambda: SimpleNamespace(artifact=artifact))
    address = f"wandb://{ENTITY}/ssl_vision/checkpoint-{online.id}:last"
    protocol = ["--protocol=lightly", "--baselines=false", "--cache=false", "--device=cpu"]
    assert main(["evaluate", address, *protocol]) == 0
    assert main(["evaluate", "runs/up", *protocol, "--output=rows.json"]) == 0
    assert json.loads(Path("artifacts/evaluation.json").read_text()) == json.loads(
        Path("rows.json").read_text()
    )
    assert main(["fit", "--name=on", *SHORT, f"--ckpt_path={address}", "--trainer.max_epochs=2"]) == 0
    assert Run("runs/on").epoch == 2
    assert main(["evaluate", f"wandb://{ENTITY}/ssl_vision/nothing:last"]) == 2
    assert f"wandb://{ENTITY}/ssl_vision/nothing:last: not found" in capsys.readouterr().err


@pytest.mark.long
def test_agent_runs_each_cell_of_a_sweep_and_continues_an_interrupted_one(server, tmp_path):
    """The first of two cells is interrupted in the second of its two epochs of four batches."""
    interrupt = [f"marker={tmp_path / 'interrupted'}", "batch=6"]
    options = ["--trainer.callbacks+=interrupt_once.InterruptOnce", "--runs_dir=runs", "--wandb=true"]
    options += [f"--trainer.callbacks.{each}" for each in interrupt]
    sweep = {
        "program": "ssl_vision",
        "method": "grid",
        "parameters": {
            "model.objective.temperature": {"values": [0.1, 0.5]},
            "seed_everything": {"value": 1},
        },
        "command": [
            "${env}",
            "${interpreter}",
            "-m",
            "${program}",
            "fit",
            *TINY,
            "--model.objective=InfoNCE",
        ],
    }
    sweep["command"] += [*options, "${args}"]
    (tmp_path / "sweep.yaml").write_text(yaml.dump(sweep))
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(TESTS / "helpers"), str(TESTS.parent)]),
        "OMP_NUM_THREADS": "1",
    }
    created = subprocess.run([WANDB, "sweep", "sweep.yaml"], env=environment, capture_output=True, text=True)
    match = re.search(r"wandb agent (\S+)", created.stderr)
    assert match, created.stderr
    subprocess.run([WANDB, "agent", match[1]], env=environment, timeout=200, check=True)
    assert (tmp_path / "interrupted").exists()
    assert sorted((run.state, run.starts) for run in server.runs.values()) == [
        ("finished", 1),
        ("finished", 2),
    ]
    directories = {
        run.name: run for run in map(Run, (tmp_path / "runs").iterdir()) if run.folder.last.exists()
    }
    assert len(directories) == 2
    for online in server.runs.values():
        assert online.summary["time/epochs"] == 2
        run = directories.pop(online.name)
        temperature = run.setting("model.objective.temperature")
        cell = {"model.objective.temperature": temperature, "seed_everything": run.setting("seed")}
        assert online.cell == cell
        assert_same_history(run.folder.path, online.history)
