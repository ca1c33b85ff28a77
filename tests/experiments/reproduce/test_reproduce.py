"""Tests of ``ssl-vision reproduce`` with simulated runs, and one with real runs."""

import csv
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from settings import CONFIGS, TINY

from ssl_vision.experiments.sweeps import worker
from ssl_vision.main import main
from ssl_vision.runs.lock import Lock

DIGITS = str(CONFIGS / "pretrain" / "digits.yaml")
OWN = {"data.batch_size", "trainer.max_epochs", "trainer.enable_progress_bar"}
TINY_OPTIONS = dict(option.removeprefix("--").split("=") for option in TINY)
TINY_OPTIONS = {key: value for key, value in TINY_OPTIONS.items() if key not in OWN}
CONTENT = {
    "title": "Mine",
    "source": "Myself",
    "metrics": {
        "LE": {"protocol": "macl", "metric": "linear_top1"},
        "S": {"protocol": "macl", "metric": "sensitivity"},
    },
    "options": {"config": DIGITS, "trainer.max_epochs": 4, "model.objective": "InfoNCE"},
    "rows": {"InfoNCE": {"model.objective": "InfoNCE"}, "DCL": {"model.objective": "DCL"}},
    "tables": {
        "1": {
            "title": "First",
            "columns": {"Batch": {"axis": "data.batch_size", "at": [32, 64]}},
            "values": {
                "InfoNCE": {"LE": [90.0, 91.0], "S": [0.25, 0.5]},
                "DCL": {"LE": [92.0, 93.0]},
            },
        },
        "2": {
            "title": "Second",
            "columns": {"Batch": {"axis": "data.batch_size", "at": [64, 5000]}},
            "values": {"InfoNCE": {"LE": [91.0, 89.0]}},
        },
    },
    "small": {"says": "tiny", "options": TINY_OPTIONS},
}


@pytest.fixture
def paper(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(yaml.safe_dump(CONTENT, sort_keys=False))
    return "mine.yaml"


class EndedTrial:
    """Stand-in for a process of a trial that has ended."""

    def __init__(self, plan, claim, environment, protocols=(), *, baselines=False):
        self.claim, self.protocols, self.pruned, self.environment = claim, protocols, "", environment
        command = plan.train_command(claim.trial)
        if protocols:
            command = plan.evaluate_command(claim.trial, protocols, baselines=baselines)
        self.code, self.last = self.simulated(command[3:])

    def simulated(self, args):
        raise NotImplementedError

    def poll(self):
        return self.code

    def last_line(self):
        return self.last


@pytest.fixture
def simulate(monkeypatch):
    """Return a function that replaces the processes of trials by a function of their arguments."""

    def replace(function):
        trial = type("Trial", (EndedTrial,), {"simulated": lambda self, args: function(args)})
        monkeypatch.setattr(worker, "TrialProcess", trial)

    return replace


@pytest.fixture
def commands(simulate):
    """Commands that were run; `fit` fails for batches of 5,000, and a run scores 0.9 + seed / 100."""
    recorded = []

    def simulated(args):
        recorded.append(args)
        if args[0] == "fit":
            return simulate_fit(dict(arg[2:].split("=", 1) for arg in args[1:]))
        folder = Path(args[1])
        config = yaml.safe_load((folder / "config.yaml").read_text())
        row = {"features": "trained", "layer": "backbone", "protocol": "macl", "data": "Digits"}
        row |= {"epoch": config["trainer"]["max_epochs"]}
        rows = [
            row | {"metric": "linear_top1", "value": 0.9 + config["seed_everything"] / 100},
            row | {"metric": "linear_top1", "value": 0.1, "layer": "hidden"},
            row | {"metric": "linear_top1", "value": 0.2, "features": "untrained", "epoch": 0},
            row | {"metric": "sensitivity", "value": 0.3},
        ]
        (folder / "evaluation.json").write_text(json.dumps(rows))
        return 0, ""

    simulate(simulated)
    return recorded


def simulate_fit(options):
    if options["data.batch_size"] == "5000":
        return 1, "batch_size 5000 is more than there are"
    folder = Path(options["runs_dir"]) / options["name"]
    objective = f"ssl_vision.objectives.{options['model.objective']}"
    config = {
        "seed_everything": int(options["seed_everything"]),
        "model": {
            "class_path": "ssl_vision.methods.SimCLR",
            "init_args": {
                "encoder": {"class_path": "ssl_vision.encoders.ResNet", "init_args": {"width": 16}},
                "objective": {"class_path": objective, "init_args": {"temperature": 0.5}},
            },
        },
        "data": {
            "class_path": "ssl_vision.data.Digits",
            "init_args": {"batch_size": int(options["data.batch_size"])},
        },
        "trainer": {
            "max_epochs": int(options["trainer.max_epochs"]),
            "precision": options.get("trainer.precision", "32-true"),
            "check_val_every_n_epoch": 6,
            "log_every_n_steps": 5,
        },
        "wandb": False,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metrics.csv").write_text("step,epoch,train/loss\n10,3,1.0\n")
    (folder / "times.csv").write_text(
        "step,epoch,time/train_seconds\n" + "".join(f"{i},{i},2.5\n" for i in range(4))
    )
    return 0, ""


def cell(name, row, column, metric, place="runs/mine"):
    with open(f"{place}/table{name}.csv", newline="") as file:
        (result,) = (
            line
            for line in csv.DictReader(file)
            if (line["row"], line["column"], line["metric"]) == (row, column, metric)
        )
    return result


def test_protocol_file_beside_the_paper_file_fills_the_table(simulate, tmp_path, monkeypatch):
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "own.yaml").write_text("measurements: [knn: {k: 5}]\n")
    metrics = {"LE": {"protocol": "own.yaml", "metric": "own_top1", "labels": None}}
    tables = {"2": CONTENT["tables"]["2"]}
    (tmp_path / "papers" / "mine.yaml").write_text(
        yaml.safe_dump({**CONTENT, "metrics": metrics, "tables": tables}, sort_keys=False)
    )
    monkeypatch.chdir(tmp_path)
    evaluations = []

    def simulated(args):
        if args[0] == "fit":
            return simulate_fit(dict(arg[2:].split("=", 1) for arg in args[1:]))
        evaluations.append(args)
        row = {"features": "trained", "layer": "backbone", "protocol": "own", "data": "Digits", "epoch": 4}
        rows = [row | {"metric": "own_top1", "value": 0.9}]
        (Path(args[1]) / "evaluation.json").write_text(json.dumps(rows))
        return 0, ""

    simulate(simulated)
    assert main(["reproduce", "papers/mine.yaml", "--cells=InfoNCE,64", "--seeds=1"]) == 0
    assert "--protocol=papers/own.yaml" in evaluations[0]
    assert cell("2", "InfoNCE", "64", "LE")["ours"] == "90.0"


def test_null_of_a_config_file_is_passed_as_null(paper, commands):
    Path("more.yaml").write_text("trainer: {max_time: null}\n")
    args = ["reproduce", paper, "--table=2", "--cells=64", "--seeds=1", "--", "--config=more.yaml"]
    assert main(args) == 0
    assert "--trainer.max_time=null" in commands[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SimCRL": {"LE": [91.0, 89.0]}}, "tables.2.values: no row 'SimCRL'"),
        ({"InfoNCE": {"LE": ["81.2*", 89.0]}}, "mine.yaml: could not convert string to float: '81.2*'"),
    ],
)
def test_faults_of_a_paper_file_are_named(paper, change, message, capsys):
    table = {**CONTENT["tables"]["2"], "values": change}
    Path(paper).write_text(yaml.safe_dump({**CONTENT, "tables": {"2": table}}, sort_keys=False))
    assert main(["reproduce", paper]) == 2
    assert message in capsys.readouterr().err


def test_three_seeds_of_a_cell_are_trained_evaluated_and_compared(paper, commands, capsys):
    assert main(["reproduce", paper, "--table=1", "--cells=InfoNCE, 64"]) == 0
    assert [args[0] for args in commands] == ["fit", "evaluate"] * 3
    assert {f"--config={DIGITS}", "--data.batch_size=64", "--ckpt_path=last", "--trainer.devices=1"} <= set(
        commands[0]
    )
    assert {"--protocol=macl", "--baselines=false"} <= set(commands[1])
    result = cell("1", "InfoNCE", "64", "LE")
    assert (result["published"], result["seeds"], result["within"]) == ("91.0", "3", "true")
    assert float(result["ours"]) == pytest.approx(91.0)
    assert float(result["half_width"]) == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert cell("1", "InfoNCE", "64", "S")["ours"] == "0.3"
    for other in (("InfoNCE", "32"), ("DCL", "64")):
        assert cell("1", *other, "LE")["ours"] == ""
    printed = capsys.readouterr().out
    assert "91.00 ± 2.48 |" in printed
    assert "0.300 ±" not in printed  # equal values have no interval
    assert "DCL" not in printed
    assert {path.name for path in Path("runs/mine").glob("table*")} == {
        f"table1{suffix}" for suffix in (".md", ".csv", ".json")
    }


def test_finished_runs_are_reused_and_only_new_seeds_are_run(paper, commands):
    args = ["reproduce", paper, "--cells=InfoNCE,64"]
    assert main([*args, "--seeds=1"]) == 0
    assert len(commands) == 2  # one run for the two tables that have the cell
    assert cell("2", "InfoNCE", "64", "LE")["ours"] == cell("1", "InfoNCE", "64", "LE")["ours"] == "90.0"
    commands.clear()
    assert main([*args, "--seeds=1"]) == 0
    assert commands == []
    assert main([*args, "--seeds=2"]) == 0
    assert [args[0] for args in commands] == ["fit", "evaluate"]
    assert cell("1", "InfoNCE", "64", "LE")["seeds"] == "2"
    next(Path("runs/mine").glob("*-s1/evaluation.json")).unlink()
    commands.clear()
    assert main([*args, "--seeds=2"]) == 0
    assert [args[0] for args in commands] == ["evaluate"]
    commands.clear()
    assert main([*args, "--seeds=1", "--first_seed=3"]) == 0
    assert [args[0] for args in commands] == ["fit", "evaluate"]
    assert "--seed_everything=3" in commands[0]


def test_failed_run_leaves_its_cell_empty_and_others_continue(paper, commands, capsys):
    with pytest.raises(SystemExit) as end:
        main(["reproduce", paper, "--seeds=1"])
    assert end.value.code == 1
    out, err = capsys.readouterr()
    assert "batch_size5000-s0: failed: exit code 1: batch_size 5000 is more than there are" in out
    assert "1 of 5 trials failed: see runs/mine/logs" in err
    assert cell("2", "InfoNCE", "5000", "LE")["ours"] == ""
    assert cell("1", "DCL", "32", "LE")["ours"] == "90.0"


@pytest.mark.parametrize(
    ("metric", "code", "message"),
    [("linear_top1", 1, "not evaluated: no measurement under macl"), ("lp", 2, "0 rows match metric LE")],
)
def test_missing_values_are_reported(paper, commands, simulate, capsys, metric, code, message):
    """No row of the protocol is a failed evaluation; rows without the metric are an error in the file."""
    Path(paper).write_text(Path(paper).read_text().replace("linear_top1", metric))
    recorded = vars(worker)["TrialProcess"].simulated

    def without_rows(args):
        result = recorded(None, args)
        if args[0] == "evaluate" and metric == "linear_top1":
            (Path(args[1]) / "evaluation.json").write_text("[]")
        return result

    simulate(without_rows)
    try:
        end = main(["reproduce", paper, "--table=1", "--cells=DCL,32", "--seeds=1"])
    except SystemExit as error:
        end = error.code
    assert end == code
    assert message in capsys.readouterr().err


def test_existing_run_with_other_options_is_refused(paper, commands, capsys):
    args = ["reproduce", paper, "--cells=DCL,32", "--seeds=1"]
    precision = "--trainer.precision=bf16-mixed"
    assert main([*args, "--", precision]) == 0
    assert precision in commands[0]
    assert main([*args, "--", precision, "--data.resident=false"]) == 0  # which does not change the result
    content = yaml.safe_load(Path(paper).read_text())
    for options, change, message in (
        (["--trainer.precision=16-mixed"], {}, "trainer.precision: bf16-mixed there, 16-mixed here"),
        ([], {}, "(trainer.precision: bf16-mixed there, nothing here): use its options"),
        ([precision], {"model.objective.temperature": 0.2}, "temperature: nothing there, 0.2 here"),
        ([precision], {"trainer.max_epochs": 8}, "epochs: 4 there, 8 here"),
    ):
        Path(paper).write_text(yaml.safe_dump(content | {"options": content["options"] | change}))
        assert main([*args, "--", *options]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert len(commands) == 2
    Path(paper).write_text(yaml.safe_dump(content))
    shutil.rmtree(next(Path("runs/mine").glob("*-s0")))
    assert main([*args, "--", precision]) == 0
    assert [command[0] for command in commands[2:]] == ["fit", "evaluate"]


def test_option_that_extends_a_list_may_be_repeated(paper, commands):
    args = ["reproduce", paper, "--cells=DCL,32", "--seeds=1", "--", "--trainer.callbacks+=my.Callback"]
    assert main(args) == 0
    assert main(args) == 0
    assert len(commands) == 2  # fit and evaluate, once


def test_runs_of_earlier_versions_continue_and_other_sweeps_are_refused(paper, commands, capsys):
    args = ["reproduce", paper, "--cells=DCL,32", "--seeds=1"]
    assert main(args) == 0
    for file in ("sweep.yaml", "sweep.journal"):
        Path("runs/mine", file).unlink()
    assert main(args) == 0
    assert [command[0] for command in commands] == ["fit", "evaluate", "fit"]  # which finds nothing to train
    assert cell("1", "DCL", "32", "LE")["ours"] == "90.0"
    sweep = {"method": "grid", "metric": {"name": "a"}, "parameters": {"x": {"value": 1}}, "command": ["a"]}
    Path("runs/mine/sweep.yaml").write_text(yaml.safe_dump(sweep))
    assert main(args) == 2
    assert "runs/mine contains a sweep: choose another --runs_dir" in capsys.readouterr().err


def test_run_locked_by_another_process_is_skipped(paper, commands, capsys):
    args = ["reproduce", paper, "--cells=DCL,32", "--seeds=1"]
    lock = Lock(Path("runs/mine/digits-dcl-batch_size32-s0/.lock"))
    lock.take()
    try:
        assert main(args) == 0
    finally:
        lock.release()
    assert commands == []
    assert "left to another process" in capsys.readouterr().out
    assert cell("1", "DCL", "32", "LE")["ours"] == ""


def test_dry_run_lists_states_and_remaining_commands(paper, commands, capsys):
    args = ["reproduce", paper, "--table=1", "--seeds=1", "--dry-run"]
    assert main(args) == 0
    printed = capsys.readouterr().out
    assert printed.count("-s0: waiting\n    ssl-vision fit ") == 4
    assert printed.count("    ssl-vision evaluate ") == 4
    assert printed.endswith("4 runs, 0 done\n")
    assert not Path("runs").exists()
    assert main(["reproduce", paper, "--cells=DCL,32", "--seeds=1"]) == 0
    (evaluation,) = Path("runs/mine").glob("*/evaluation.json")
    for state, rows in (("done", evaluation.read_text()), ("finished\n    ssl-vision evaluate", "[]")):
        evaluation.write_text(rows)
        capsys.readouterr()
        assert main(args) == 0
        assert f"digits-dcl-batch_size32-s0: {state}" in capsys.readouterr().out


def test_small_budget_writes_smoke_test_without_published_numbers(paper, commands, capsys):
    assert main(["reproduce", paper, "--table=1", "--budget=small", "--workers=1"]) == 0
    assert len(commands) == 2 * 4  # one seed
    assert "--model.encoder.width=4" in commands[0]
    assert "--device=cpu" in commands[1]
    assert not Path("runs/mine").exists()
    table = Path("runs/mine-small/smoke_test_table1.md").read_text()
    assert re.search(r"digits-dcl-batch_size32 +\| +90.00 ", table)
    assert "scaled down (tiny)" in table
    out = capsys.readouterr().out
    assert "**Smoke test of table 1 of Mine: not results of the paper.**" in out
    assert "published" not in out
    assert "93.0" not in out  # the published number of DCL at 64, which no run gave
    files = {file.name for file in Path("runs/mine-small").iterdir() if file.is_file()}
    assert not any(name.startswith("table") for name in files)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["absent.yaml"], "paper file absent.yaml: no such file or recipe"),
        (["mine.yaml", "--table=7"], "--table 7: no such table; Mine has 1, 2"),
        (
            ["mine.yaml", "--cells=DCL,65"],
            "--cells DCL,65: no such cell; name InfoNCE, 32, Batch, 64, DCL, 5000",
        ),
        (
            ["mine.yaml", "--table=2", "--cells=DCL"],
            "no such cell; name InfoNCE, 64, Batch",
        ),
        (["mine.yaml", "--budget=medium"], "budget"),
        (["mine.yaml", "--seeds=0"], "seeds"),
        (["mine.yaml", "--", "--trainer.max_epochs=1"], "the paper file sets this option to 4"),
        (["mine.yaml", "--trainer.precision=16"], "unknown option --trainer.precision"),
        ([], "paper"),
    ],
)
def test_invalid_options_are_reported_in_one_line_and_run_nothing(args, message, paper, commands, capsys):
    assert main(["reproduce", *args]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert commands == []


def test_workers_share_the_gpus(paper, monkeypatch):
    trials = []

    class Failing(EndedTrial):
        def simulated(self, args):
            trials.append(self)
            return 1, "no memory"

    monkeypatch.setattr(worker, "TrialProcess", Failing)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pytest.raises(SystemExit):
        main(["reproduce", paper, "--table=1", "--seeds=1", "--workers=2"])
    assert sorted(each.environment["CUDA_VISIBLE_DEVICES"] for each in trials) == ["3", "3", "5", "5"]


def test_importing_reproduce_does_not_import_torch():
    code = "import sys, ssl_vision.experiments.reproduce.reproduce; sys.exit('torch' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


@pytest.mark.long
def test_reproduce_trains_and_evaluates_runs_on_digits(paper, capsys):
    """Two runs finish and fit refuses the third; a repetition does not run the finished ones again."""
    args = ["reproduce", paper, "--budget=small", "--cells=InfoNCE", "--workers=1"]
    with pytest.raises(SystemExit):
        main(args)
    out, err = capsys.readouterr()
    assert "1 of 3 trials failed" in err
    assert "5000" in out
    for column in ("32", "64"):
        (rows,) = Path("runs/mine-small").glob(f"*batch_size{column}-s0/evaluation.json")
        (row,) = (
            row
            for row in json.loads(rows.read_text())
            if (row["metric"], row["layer"], row["features"]) == ("linear_top1", "backbone", "trained")
        )
        table = Path("runs/mine-small/smoke_test_table1.md").read_text()
        assert re.search(rf"digits-infonce-batch_size{column} +\| +{100 * row['value']:.2f} ", table)
        assert row["epoch"] == 4
    with pytest.raises(SystemExit):
        main(args)
    assert "3 of 3 runs are already done" in capsys.readouterr().out
