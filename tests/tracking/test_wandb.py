"""The W&B mirror, offline: what W&B's own reader finds in it."""

import json
import os
from pathlib import Path

import pytest
import wandb
import yaml
from settings import TINY
from wandb.sdk.lib import wbauth
from wandb_records import flat, inspect, parts, records

from ssl_vision.main import main
from ssl_vision.runs.folder import RunFolder, derived_group
from ssl_vision.runs.registry import Run
from ssl_vision.tracking.wandb import mirror_ends, mirror_mode, mirror_rows

SHORT = [*TINY, "--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--model.objective=DCL"]


def fit(runs: Path, name: str, *options: str) -> int:
    return main(["fit", f"--runs_dir={runs}", f"--name={name}", *SHORT, "--wandb=offline", *options])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A mirrored run, continued by one epoch and evaluated."""
    runs = tmp_path_factory.mktemp("wandb")
    assert fit(runs, "mirrored") == 0
    assert fit(runs, "mirrored", "--trainer.max_epochs=2", "--ckpt_path=last") == 0
    options = ["--baselines=false", "--probe.epochs=1", "--cache=false", "--device=cpu"]
    assert main(["evaluate", str(runs / "mirrored"), *options]) == 0
    return runs / "mirrored"


def test_the_mirror_lies_in_the_run_folder_beside_metrics_csv(run):
    assert {"config.yaml", "metrics.csv", "checkpoints", "wandb"} <= {p.name for p in run.iterdir()}
    assert len(parts(run)) == 3


def test_the_mirror_holds_the_full_config(run):
    mirrored = dict(flat(json.loads(inspect(parts(run)[1], "--summary"))["config"]))
    config = dict(flat(yaml.safe_load((run / "config.yaml").read_text())))
    assert len(config) > 80
    assert {key: mirrored.get(key, "absent") for key in config} == config


def test_the_mirror_holds_the_history(run):
    """Every number of metrics.csv, at its step."""
    items = [record["history"]["item"] for part in parts(run)[:2] for record in records(part, "history")]
    for row in Run(run).history:
        found = {}
        for item in items:
            if item["trainer/global_step"] == row["step"]:
                found |= item
        expected = {key: value for key, value in row.items() if key != "step"}
        assert {key: found.get(key) for key in expected} == pytest.approx(expected)


def test_the_mirror_holds_the_rows_of_the_evaluation_as_a_table(run):
    (file,) = parts(run)[-1].glob("files/media/table/evaluation_*.table.json")
    table = json.loads(file.read_text())
    rows = [
        {k: v for k, v in zip(table["columns"], row, strict=True) if v is not None} for row in table["data"]
    ]
    assert rows == json.loads((run / "evaluation.json").read_text())
    assert any(file.name in str(record) for record in records(parts(run)[-1], "history"))


def test_the_summary_has_the_accuracies_under_their_names(run):
    values = json.loads(inspect(parts(run)[-1], "--summary"))["summary"]
    expected = Run(run).test_metrics
    assert {"test/knn_top1", "test/linear_top1", "test/linear_top1_projector"} < expected.keys()
    assert {name: values.get(name) for name in expected} == pytest.approx(expected)


def test_a_continuation_and_an_evaluation_are_parts_of_the_same_run(run):
    told = [record["run"] for part in parts(run) for record in records(part, "run")]
    assert len({record["run_id"] for record in told}) == 1
    assert {record["display_name"] for record in told} == {"mirrored"}
    assert {record["project"] for record in told} == {"ssl_vision"}


def test_runs_that_differ_in_the_seed_alone_are_a_group(run):
    (group,) = {record["run"]["run_group"] for part in parts(run) for record in records(part, "run")}
    config = Run(run).config
    assert group == derived_group(config | {"seed_everything": 7})
    assert group != derived_group(config | {"data": {"class_path": "ssl_vision.data.CIFAR10"}})


def test_a_cell_is_in_the_group_of_its_sweep_and_two_runs_keep_their_own_configs(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_GROUP", "trial")
    for name, seed in (("one", 1), ("two", 2)):
        assert fit(tmp_path, name, f"--seed_everything={seed}") == 0
    for name, seed in (("one", 1), ("two", 2)):
        (part,) = parts(tmp_path / name)
        (record,) = records(part, "run")
        config = dict(flat(json.loads(inspect(part, "--summary"))["config"]))
        assert (record["run"]["run_group"], record["run"]["display_name"]) == ("trial", name)
        group = derived_group(Run(tmp_path / name).config)
        assert record["run"]["tags"] == ["Digits", "DCL", f"seed {seed}", group]
        assert (config["name"], config["seed_everything"]) == (name, seed)


def test_a_later_part_of_a_cell_stays_in_the_group_of_its_sweep(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_GROUP", "trial")
    assert fit(tmp_path, "one") == 0
    monkeypatch.delenv("WANDB_RUN_GROUP")
    options = ["--protocol=lightly", "--baselines=false", "--cache=false", "--device=cpu"]
    assert main(["evaluate", str(tmp_path / "one"), *options]) == 0
    groups = [
        record["run"]["run_group"] for part in parts(tmp_path / "one") for record in records(part, "run")
    ]
    assert groups == ["trial", "trial"]


def test_a_run_that_replaces_another_is_another_run_at_wandb(tmp_path):
    for options in ((), ("--overwrite=true",)):
        assert fit(tmp_path, "run", *options) == 0
    first, second = parts(tmp_path / "run")
    assert first.name.rpartition("-")[2] != second.name.rpartition("-")[2]


def ids(run: Path) -> set[str]:
    return {record["run"]["run_id"] for part in parts(run) for record in records(part, "run")}


def test_an_id_that_is_given_is_taken_by_one_run_and_by_its_continuation(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep")  # as wandb agent sets both
    monkeypatch.setenv("WANDB_RUN_ID", "cell1")
    assert fit(tmp_path, "one") == 0
    capsys.readouterr()
    assert fit(tmp_path, "two") == 2
    assert capsys.readouterr().err == (
        f"ssl-vision fit: WANDB_RUN_ID cell1 is the W&B run of {tmp_path / 'one'}: "
        "unset it, so that this run has an id of its own\n"
    )
    assert not (tmp_path / "two").exists()
    monkeypatch.setenv("WANDB_RUN_ID", "cell2")
    wandb.teardown()  # a session keeps the variables that it began with
    assert fit(tmp_path, "two") == 0
    for name in ("WANDB_SWEEP_ID", "WANDB_RUN_ID"):
        monkeypatch.delenv(name)
    wandb.teardown()
    assert fit(tmp_path, "one", "--trainer.max_epochs=2", "--ckpt_path=last") == 0
    assert (ids(tmp_path / "one"), ids(tmp_path / "two")) == ({"cell1"}, {"cell2"})
    assert len(parts(tmp_path / "one")) == 2


def test_an_open_run_of_ones_own_is_neither_used_nor_ended(tmp_path, capsys):
    own = wandb.init(mode="offline", dir=tmp_path, config={"mine": 1}, settings=wandb.Settings(silent=True))
    try:
        assert fit(tmp_path, "run") == 2
        assert f"the W&B run {own.id} is open: wandb.finish() ends it" in capsys.readouterr().err
        with mirror_ends():
            pass
        assert wandb.run is own
        assert own.config.as_dict() == {"mine": 1}
    finally:
        own.finish()


def test_an_evaluation_of_a_run_without_a_mirror_makes_none(tiny_run, tmp_path):
    options = [f"--output={tmp_path / 'rows.json'}", "--baselines=false", "--probe.epochs=1", "--device=cpu"]
    assert main(["evaluate", str(tiny_run), *options, "--cache=false"]) == 0
    assert not (tiny_run / "wandb").exists()


@pytest.fixture
def no_key(tmp_path, monkeypatch):
    """W&B knows of no key, not even one that this process has used."""
    wbauth.unauthenticate_session()
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))


@pytest.mark.usefixtures("no_key")
def test_an_evaluation_that_wandb_cannot_take_is_kept_and_says_so(run, capsys):
    before = parts(run)
    config = Run(run).config | {"wandb": True}
    mirror_rows(RunFolder(run), config, [{"value": 1}], name="evaluation", summary={})
    assert "not mirrored to W&B: --wandb true: no W&B API key is configured" in capsys.readouterr().err
    assert parts(run) == before


@pytest.mark.usefixtures("no_key")
def test_a_key_that_cannot_be_checked_is_one_line(tmp_path, capsys, monkeypatch):
    def refused(**options):
        raise wandb.errors.AuthenticationError("nobody\nanswers")

    monkeypatch.setattr(wandb, "login", refused)
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", "--wandb=true", *TINY]) == 2
    assert "fit: --wandb true: nobody answers; log locally with --wandb offline\n" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_key")
def test_without_a_key_online_logging_is_refused_before_anything_starts(tmp_path, capsys):
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", "--wandb=true", *TINY]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ssl-vision fit: --wandb true: no W&B API key is configured")
    assert not (tmp_path / "run").exists()


def test_wandb_mode_offline_needs_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert fit(tmp_path, "run", "--wandb=true") == 0
    assert len(parts(tmp_path / "run")) == 1


def test_an_offline_run_does_not_make_the_process_s_next_one_offline(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert fit(tmp_path, "run") == 0
    assert mirror_mode("offline") == "offline"
    assert "WANDB_MODE" not in os.environ
