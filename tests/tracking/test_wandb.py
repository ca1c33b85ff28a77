"""Tests of offline W&B mirrors, which are read back with W&B's own reader."""

import json
import os
import shutil
from pathlib import Path

import pytest
import wandb
import yaml
from settings import TINY
from wandb.sdk.lib import wbauth
from wandb_records import flat, inspect, parts, records

from ssl_vision.main import main
from ssl_vision.runs.config import derived_group
from ssl_vision.runs.folder import RunFolder
from ssl_vision.runs.registry import Run
from ssl_vision.tracking.wandb import log_rows, wandb_mode

SHORT = [*TINY, "--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--model.objective=DCL"]


def fit(runs: Path, name: str, *options: str) -> int:
    return main(["fit", f"--runs_dir={runs}", f"--name={name}", *SHORT, "--wandb=offline", *options])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A mirrored run that was continued for one epoch and evaluated."""
    runs = tmp_path_factory.mktemp("wandb")
    assert fit(runs, "mirrored") == 0
    assert fit(runs, "mirrored", "--trainer.max_epochs=2", "--ckpt_path=last") == 0
    options = ["--baselines=false", "--probe.epochs=1", "--cache=false", "--device=cpu"]
    assert main(["evaluate", str(runs / "mirrored"), *options]) == 0
    return runs / "mirrored"


def test_mirror_is_in_run_directory_with_one_part_per_command(run):
    assert {"config.yaml", "metrics.csv", "checkpoints", "wandb"} <= {p.name for p in run.iterdir()}
    assert len(parts(run)) == 3


@pytest.mark.parametrize("part", [1, 2])
def test_mirror_contains_full_config(run, part):
    """The part of an evaluation, too, because `wandb sync` replaces the config by that of the last part."""
    mirrored = dict(flat(json.loads(inspect(parts(run)[part], "--summary"))["config"]))
    config = dict(flat(yaml.safe_load((run / "config.yaml").read_text())))
    assert len(config) > 80
    assert {key: mirrored.get(key, "absent") for key in config} == config


def test_mirror_contains_full_history(run):
    """Every number of metrics.csv is mirrored at its step."""
    items = [record["history"]["item"] for part in parts(run)[:2] for record in records(part, "history")]
    for row in Run(run).history:
        mirrored = {}
        for item in items:
            if item["trainer/global_step"] == row["step"]:
                mirrored |= item
        expected = {key: value for key, value in row.items() if key != "step"}
        assert {key: mirrored.get(key) for key in expected} == pytest.approx(expected)


def test_mirror_contains_evaluation_rows_as_table(run):
    (file,) = parts(run)[-1].glob("files/media/table/evaluation_*.table.json")
    table = json.loads(file.read_text())
    rows = [
        {k: v for k, v in zip(table["columns"], row, strict=True) if v is not None} for row in table["data"]
    ]
    assert rows == json.loads((run / "evaluation.json").read_text())
    assert any(file.name in str(record) for record in records(parts(run)[-1], "history"))


def test_summary_contains_test_metrics_under_their_names(run):
    values = json.loads(inspect(parts(run)[-1], "--summary"))["summary"]
    expected = Run(run).test_metrics
    assert {"test/knn_top1", "test/linear_top1", "test/linear_top1_projector"} < expected.keys()
    assert {name: values.get(name) for name in expected} == pytest.approx(expected)


def test_part_of_evaluation_repeats_summary_of_training(run):
    """`wandb sync` replaces the summary by that of the last part."""
    trained, evaluated = (json.loads(inspect(part, "--summary"))["summary"] for part in parts(run)[1:])
    names = {name for name in trained if name.startswith(("train/", "val/", "best/"))}
    assert {"train/loss", "val/knn_top1", "best/knn_top1", "best/epoch"} <= names
    expected = {name: trained[name] for name in names}
    assert {name: evaluated.get(name) for name in names} == pytest.approx(expected)


def test_resumed_fit_and_evaluation_belong_to_same_wandb_run(run):
    run_records = [record["run"] for part in parts(run) for record in records(part, "run")]
    assert len({record["run_id"] for record in run_records}) == 1
    assert {record["display_name"] for record in run_records} == {"mirrored"}
    assert {record["project"] for record in run_records} == {"ssl_vision"}


def test_group_ignores_seed_and_depends_on_dataset(run):
    (group,) = {record["run"]["run_group"] for part in parts(run) for record in records(part, "run")}
    config = Run(run).config
    assert group == derived_group(config | {"seed_everything": 7})
    assert group != derived_group(config | {"data": {"class_path": "ssl_vision.data.CIFAR10"}})


def test_sweep_cell_has_group_of_sweep_and_tags_also_in_its_evaluation(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_GROUP", "trial")
    assert fit(tmp_path, "one", "--seed_everything=1") == 0
    monkeypatch.delenv("WANDB_RUN_GROUP")
    options = ["--protocol=lightly", "--baselines=false", "--cache=false", "--device=cpu"]
    assert main(["evaluate", str(tmp_path / "one"), *options]) == 0
    run_records = [record["run"] for part in parts(tmp_path / "one") for record in records(part, "run")]
    tags = ["Digits", "DCL", "seed 1", derived_group(Run(tmp_path / "one").config)]
    assert [(each["run_group"], each["display_name"]) for each in run_records] == [("trial", "one")] * 2
    assert [each["tags"] for each in run_records] == [tags] * 2


def test_overwriting_run_gets_new_wandb_id(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "mirrored")
    (before,) = wandb_ids(copy)
    assert fit(tmp_path, "mirrored", "--overwrite=true") == 0
    assert len(wandb_ids(copy) - {before}) == 1


def wandb_ids(run: Path) -> set[str]:
    return {record["run"]["run_id"] for part in parts(run) for record in records(part, "run")}


def test_run_that_cannot_start_changes_no_wandb_identity(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "mirrored")
    before = {file: file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    broken = ["--initial_checkpoint=absent.pt", "--data.batch_size=5000"]
    for name, option in zip(("mirrored", "new"), broken, strict=True):
        assert fit(tmp_path, name, "--overwrite=true", option) == 2
    assert before == {file: file.read_bytes() for file in before}
    assert not (tmp_path / "new" / "wandb" / "mirror.json").exists()


def test_given_wandb_id_is_used_by_one_run_and_its_continuation(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep")  # wandb agent sets both
    monkeypatch.setenv("WANDB_RUN_ID", "cell1")
    assert fit(tmp_path, "one") == 0
    capsys.readouterr()
    assert fit(tmp_path, "two") == 2
    assert capsys.readouterr().err == (
        f"ssl-vision fit: WANDB_RUN_ID cell1 is the W&B run of {tmp_path / 'one'}: "
        "unset it, so that this run has an id of its own\n"
    )
    assert not (tmp_path / "two").exists()
    for name in ("WANDB_SWEEP_ID", "WANDB_RUN_ID"):
        monkeypatch.delenv(name)
    wandb.teardown()  # a session keeps the environment variables it started with
    assert fit(tmp_path, "one", "--trainer.max_epochs=2", "--ckpt_path=last") == 0
    assert wandb_ids(tmp_path / "one") == {"cell1"}
    assert len(parts(tmp_path / "one")) == 2


def test_open_wandb_run_of_user_is_neither_used_nor_ended(tmp_path, capsys):
    user_run = wandb.init(
        mode="offline", dir=tmp_path, config={"mine": 1}, settings=wandb.Settings(silent=True)
    )
    try:
        assert fit(tmp_path, "run") == 2
        assert f"the W&B run {user_run.id} is open: wandb.finish() ends it" in capsys.readouterr().err
        assert wandb.run is user_run
        assert user_run.config.as_dict() == {"mine": 1}
    finally:
        user_run.finish()


def test_evaluation_of_run_without_mirror_creates_no_mirror(tiny_run, tmp_path):
    options = [f"--output={tmp_path / 'rows.json'}", "--baselines=false", "--probe.epochs=1", "--device=cpu"]
    assert main(["evaluate", str(tiny_run), *options, "--cache=false"]) == 0
    assert not (tiny_run / "wandb").exists()


@pytest.fixture
def no_key(tmp_path, monkeypatch):
    """W&B has no API key, not even one that this process used before."""
    wbauth.unauthenticate_session()
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))


@pytest.mark.usefixtures("no_key")
def test_evaluation_without_key_reports_that_it_is_not_mirrored(run, capsys):
    before = parts(run)
    config = Run(run).config | {"wandb": True}
    log_rows(RunFolder(run), config, [{"value": 1}], name="evaluation", summary={})
    assert "not logged to W&B: --wandb true: no W&B API key is configured" in capsys.readouterr().err
    assert parts(run) == before


@pytest.mark.usefixtures("no_key")
def test_online_logging_without_key_is_refused_before_run_starts(tmp_path, capsys):
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", "--wandb=true", *TINY]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ssl-vision fit: --wandb true: no W&B API key is configured")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_key")
def test_wandb_mode_offline_needs_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert fit(tmp_path, "run", "--wandb=true") == 0
    assert len(parts(tmp_path / "run")) == 1


def test_offline_run_does_not_change_mode_of_next_run(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert fit(tmp_path, "run") == 0
    assert wandb_mode("offline") == "offline"
    assert "WANDB_MODE" not in os.environ
