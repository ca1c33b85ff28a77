"""Tests of the online W&B client against a fake server: runs, sweeps run by agents, and artifacts."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest
import wandb
import yaml
from settings import TINY
from wandb.sdk.lib import wbauth
from wandb_records import flat
from wandb_runs import ENTITY
from wandb_server import WandbServer, serve

from ssl_vision.main import main
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.config import derived_group
from ssl_vision.runs.registry import Run

HELPERS = Path(__file__).parents[1] / "helpers"
WANDB = str(Path(sys.executable).with_name("wandb"))
TEMPERATURES = (0.1, 0.5)
SEEDS = (1, 2)


def reset_client() -> None:
    """End the client's service and session, which keep the server and the key of their first use."""
    wandb.teardown()
    wbauth.unauthenticate_session()


@pytest.fixture
def server(tmp_path):
    """A fake server for this process and its children, which may send requests to no other host.

    The fixture finally asserts that every request was answered.
    """
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
    options = [*TINY, "--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--model.objective=DCL"]
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=online", *options, "--wandb=true"]) == 0
    run = Run(tmp_path / "online")
    (mirrored,) = server.runs.values()
    assert (mirrored.name, mirrored.project, mirrored.state) == ("online", "ssl_vision", "finished")
    assert mirrored.group == derived_group(run.config)
    config = dict(flat(yaml.safe_load((tmp_path / "online" / "config.yaml").read_text())))
    sent = dict(flat(mirrored.config))
    assert {key: sent.get(key, "absent") for key in config} == config
    assert_same_history(tmp_path / "online", mirrored.history)

    fit_summary = mirrored.summary
    options = ["--baselines=false", "--probe.epochs=1", "--cache=false", "--device=cpu"]
    assert main(["evaluate", str(tmp_path / "online"), *options]) == 0
    (mirrored,) = server.runs.values()
    assert (mirrored.starts, mirrored.state) == (2, "finished")
    expected = Run(tmp_path / "online").test_metrics
    assert {"test/knn_top1", "test/linear_top1"} < expected.keys()
    assert {name: mirrored.summary.get(name) for name in expected} == pytest.approx(expected)
    assert fit_summary["val/knn_top1"] == mirrored.summary["val/knn_top1"]
    assert {key: dict(flat(mirrored.config)).get(key, "absent") for key in config} == config
    assert_same_history(tmp_path / "online", mirrored.history)


def test_wandb_checkpoint_is_evaluated_and_continued_in_other_run(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = [*TINY, "--trainer.limit_train_batches=2", "--trainer.max_epochs=1"]
    assert main(["fit", "--name=up", *options, "--wandb=true", "--wandb_artifacts=last"]) == 0
    (mirrored,) = server.runs.values()
    stored = {artifact.collection: artifact for artifact in server.artifact_store.artifacts}
    digest = read_checkpoint("runs/up").images
    assert stored.keys() == {f"checkpoint-{mirrored.id}", f"images-{digest}"}
    assert [alert["title"] for alert in mirrored.alerts] == ["up: finished"]

    address = f"wandb://{ENTITY}/ssl_vision/checkpoint-{mirrored.id}:last"
    protocol = ["--protocol=lightly", "--baselines=false", "--cache=false", "--device=cpu"]
    assert main(["evaluate", address, *protocol]) == 0
    (file,) = tmp_path.rglob("checkpoint-*/last.ckpt")
    assert file.read_bytes() == Path("runs/up/checkpoints/last.ckpt").read_bytes()
    assert main(["evaluate", "runs/up", *protocol, "--output=rows.json"]) == 0
    rows = [json.loads(path.read_text()) for path in (file.with_name("evaluation.json"), Path("rows.json"))]
    assert rows[0] == rows[1]
    assert main(["fit", "--name=on", *options, f"--ckpt_path={address}", "--trainer.max_epochs=2"]) == 0
    assert Run("runs/on").epoch == 2
    capsys.readouterr()
    assert main(["evaluate", f"wandb://{ENTITY}/ssl_vision/nothing:last"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ssl-vision")]
    assert line.startswith(f"ssl-vision evaluate: wandb://{ENTITY}/ssl_vision/nothing:last: ")


def test_cell_continued_on_other_machine_loads_checkpoint_from_wandb(server, tmp_path, monkeypatch):
    for name, value in {"SWEEP_ID": "sweep", "RUN_ID": "cell1", "PROJECT": "ssl_vision"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    options = [
        *TINY,
        "--trainer.limit_train_batches=2",
        "--wandb=true",
        "--wandb_artifacts=last",
        "--name=cell",
    ]
    for machine, epochs in (("one", 1), ("two", 2)):
        assert (
            main(["fit", *options, f"--runs_dir={tmp_path / machine}", f"--trainer.max_epochs={epochs}"]) == 0
        )
        reset_client()
    assert [epoch for _, epoch, _ in Run(tmp_path / "two/cell").curve("train/loss")] == [1, 1]
    (mirrored,) = server.runs.values()
    assert (mirrored.id, mirrored.starts) == ("cell1", 2)
    assert [row["epoch"] for row in mirrored.history if "train/loss" in row] == [0, 0, 1, 1]


UPLOAD = """
import sys, wandb
with wandb.init(project="files", settings=wandb.Settings(silent=True, console="off")) as run:
    for file in sys.argv[1:]:
        artifact = wandb.Artifact("weights", "model")
        artifact.add_file(file, name="weights.bin")
        run.log_artifact(artifact, aliases=["best"]).wait()
"""


def test_artifact_download_returns_uploaded_bytes(server, tmp_path):
    contents = (b"first", os.urandom(200_000))
    files = [tmp_path / "first.bin", tmp_path / "second.bin"]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    subprocess.run([sys.executable, "-c", UPLOAD, *files], cwd=tmp_path, timeout=60, check=True)
    for alias, expected in zip(("v0", "best"), contents, strict=True):
        artifact = wandb.Api().artifact(f"{ENTITY}/files/weights:{alias}")
        folder = artifact.download(root=str(tmp_path / alias), skip_cache=True)
        assert (Path(folder) / "weights.bin").read_bytes() == expected
    with pytest.raises(wandb.errors.CommError, match="not found"):
        wandb.Api().artifact(f"{ENTITY}/files/weights:worst")


def fit_command(*options: str) -> list[str]:
    """Return the command of a sweep file whose cells are mirrored fits with run directories in ``runs``."""
    fit = ["fit", *TINY, "--model.objective=InfoNCE", "--wandb=true", "--runs_dir=runs", *options]
    return ["${env}", "${interpreter}", "-m", "${program}", *fit, "${args}"]


def sweep_by_two_agents(
    server: WandbServer, folder: Path, *, command: Sequence[str], program: str = "ssl_vision"
) -> None:
    """Create a sweep of four cells and wait for two agents that work on it at the same time."""
    file = folder / "sweep.yaml"
    parameters = {
        "model.objective.temperature": {"values": [*TEMPERATURES]},
        "seed_everything": {"values": [*SEEDS]},
    }
    sweep = {"program": program, "method": "grid", "parameters": parameters, "command": command}
    file.write_text(yaml.dump(sweep))
    paths = [str(HELPERS), str(HELPERS.parents[1])]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    created = subprocess.run(
        [WANDB, "sweep", str(file)], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    match = re.search(r"wandb agent (\S+)", created.stderr)
    assert match, created.stderr
    logs = [(folder / f"agent{number}.log").open("w") for number in range(2)]
    agents = [
        subprocess.Popen([WANDB, "agent", match[1]], cwd=folder, env=environment, stdout=log, stderr=log)
        for log in logs
    ]
    try:
        for agent in agents:
            agent.wait(timeout=200)
    finally:
        for agent, log in zip(agents, logs, strict=True):
            agent.kill()
            log.close()
            print(Path(log.name).read_text())
    assert [agent.returncode for agent in agents] == [0, 0]
    assert len(server.sweep_store.agents) == 2


def assert_all_cells_finished(server: WandbServer, folder: Path) -> None:
    """Assert that each cell has one finished run, and one run directory with its settings and history."""
    (sweep,) = server.sweep_store.sweeps.values()
    assert sweep.state == "FINISHED"
    assert {run.id: run.state for run in server.runs.values()} == dict.fromkeys(
        sweep.cells_by_run, "finished"
    )
    directories = {
        run.name: run for run in map(Run, (folder / "runs").iterdir()) if run.folder.config_file.exists()
    }
    cells = []
    for mirrored in server.runs.values():
        assert mirrored.sweep == sweep.id
        assert mirrored.summary["time/epochs"] == 2
        config = directories.pop(mirrored.name).config
        temperature = config["model"]["init_args"]["objective"]["init_args"]["temperature"]
        cells.append((temperature, config["seed_everything"]))
        assert sweep.cells_by_run[mirrored.id] == {
            "model.objective.temperature": temperature,
            "seed_everything": config["seed_everything"],
        }
        assert_same_history(folder / "runs" / str(mirrored.name), mirrored.history)
    assert directories == {}
    assert sorted(cells) == sorted(product(TEMPERATURES, SEEDS))


@pytest.mark.long
def test_two_agents_run_each_cell_of_a_sweep_once(server, tmp_path):
    sweep_by_two_agents(server, tmp_path, command=fit_command())
    assert_all_cells_finished(server, tmp_path)
    (sweep,) = server.sweep_store.sweeps.values()
    assert len(sweep.handouts) == 4
    assert len({agent for agent, _ in sweep.handouts}) == 2
    assert {run.starts for run in server.runs.values()} == {1}


PREEMPTED = """
import sys, wandb
from pathlib import Path
marker = Path("preempted")
run = wandb.init(resume="allow", settings=wandb.Settings(silent=True, console="off"))
start = 2 if run.resumed else 0
for epoch in range(start, 4):
    if epoch == 2 and not marker.exists():
        marker.touch()
        run.mark_preempting()
        run.finish(exit_code=143)
        sys.exit(143)
    run.log({"epoch": epoch})
run.finish()
"""


@pytest.mark.long
def test_preempting_run_is_handed_out_again(server, tmp_path):
    (tmp_path / "train.py").write_text(PREEMPTED)
    command = ["${env}", "${interpreter}", "${program}"]
    sweep_by_two_agents(server, tmp_path, program="train.py", command=command)
    (sweep,) = server.sweep_store.sweeps.values()
    assert sorted(run.starts for run in server.runs.values()) == [1, 1, 1, 2]
    assert sorted(run for _, run in sweep.handouts) == sorted(
        run.id for run in server.runs.values() for _ in range(run.starts)
    )
    for run in server.runs.values():
        assert run.state == "finished"
        assert [(row["_step"], row["epoch"]) for row in run.history] == [(epoch, epoch) for epoch in range(4)]
        assert run.config == sweep.cells_by_run[run.id]


@pytest.mark.long
def test_interrupted_cell_continues_with_next_agent(server, tmp_path):
    arguments = {
        "marker": str(tmp_path / "interrupted"),
        "batch": 6,  # in the second of two epochs of four batches
    }
    options = [f"--trainer.callbacks.{key}={value}" for key, value in arguments.items()]
    command = fit_command("--trainer.callbacks+=interrupt_once.InterruptOnce", *options)
    sweep_by_two_agents(server, tmp_path, command=command)
    assert (tmp_path / "interrupted").exists()
    assert_all_cells_finished(server, tmp_path)
    (sweep,) = server.sweep_store.sweeps.values()
    assert len(sweep.handouts) == 5
    assert sorted(run.starts for run in server.runs.values()) == [1, 1, 1, 2]
