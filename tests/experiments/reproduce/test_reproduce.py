"""Tests of ``ssl-vision reproduce`` with simulated runs, and one with real runs."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from settings import CONFIGS, TINY

from ssl_vision.experiments.reproduce import training
from ssl_vision.experiments.reproduce.paper_file import read_paper
from ssl_vision.experiments.reproduce.paper_run import PaperRun, seconds_left
from ssl_vision.experiments.reproduce.training import spawned
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
        "S": {"protocol": "macl", "metric": "sensitivity", "unit": "plain"},
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


class EndedProcess:
    """Stand-in for a process that has ended."""

    def __init__(self, code, log):
        self.code, self.log = code, log

    def poll(self):
        return self.code

    def last_line(self):
        return self.log.read_text().splitlines()[-1]


@pytest.fixture
def commands(monkeypatch):
    """Commands that were run; `fit` fails for batches of 5,000, and a run scores 0.9 + seed / 100."""
    recorded = []

    def simulate(args, log):
        recorded.append(list(args))
        if args[0] == "fit":
            return simulate_fit(dict(arg[2:].split("=", 1) for arg in args[1:]), log)
        folder = Path(args[1])
        config = yaml.safe_load((folder / "config.yaml").read_text())
        row = {"features": "trained", "layer": "backbone", "protocol": "macl"}
        row |= {"epoch": config["trainer"]["max_epochs"]}
        rows = [
            row | {"metric": "linear_top1", "value": 0.9 + config["seed_everything"] / 100},
            row | {"metric": "linear_top1", "value": 0.1, "layer": "hidden"},
            row | {"metric": "linear_top1", "value": 0.2, "features": "untrained", "epoch": 0},
            row | {"metric": "sensitivity", "value": 0.3},
        ]
        (folder / "evaluation.json").write_text(json.dumps(rows))
        return 0

    def start(args, log, environment):
        return EndedProcess(simulate(args, log), log)

    monkeypatch.setattr(training, "spawned", start)
    return recorded


def simulate_fit(options, log):
    if options["data.batch_size"] == "5000":
        log.write_text("ssl-vision fit: batch_size 5000 is more than there are\n")
        return 2
    folder = Path(options["runs_dir"]) / options["name"]
    folder.mkdir(parents=True)
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
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metrics.csv").write_text("step,epoch,train/loss\n10,3,1.0\n")
    (folder / "times.csv").write_text(
        "step,epoch,time/train_seconds\n" + "".join(f"{i},{i},2.5\n" for i in range(4))
    )
    return 0


def cell(name, row, column, metric, place="runs/mine"):
    with open(f"{place}/table{name}.csv", newline="") as file:
        (result,) = (
            line
            for line in csv.DictReader(file)
            if (line["row"], line["column"], line["metric"]) == (row, column, metric)
        )
    return result


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
        f"table1{suffix}" for suffix in (".md", ".tex", ".csv", ".json")
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
    assert (
        "batch_size5000-s0: failed: ssl-vision fit ended with exit code 2; ssl-vision fit: batch_size 5000 is"
        in out
    )
    assert err.endswith("1 of 5 runs failed and are missing from the tables\n")
    assert cell("2", "InfoNCE", "5000", "LE")["ours"] == ""
    assert cell("1", "DCL", "32", "LE")["ours"] == "90.0"


def test_evaluation_without_required_values_is_a_failure(paper, commands, monkeypatch, capsys):
    simulate = training.__dict__["spawned"]

    def without_linear(args, log, environment):
        process = simulate(args, log, environment)
        if args[0] == "evaluate":
            (Path(args[1]) / "evaluation.json").write_text("[]")
        return process

    monkeypatch.setattr(training, "spawned", without_linear)
    with pytest.raises(SystemExit):
        main(["reproduce", paper, "--cells=DCL,32", "--seeds=1"])
    assert "failed: ssl-vision evaluate did not write the values" in capsys.readouterr().out
    assert len(commands) == 2
    assert cell("1", "DCL", "32", "LE")["ours"] == ""


def test_existing_run_with_other_config_is_refused(paper, commands, capsys):
    args = ["reproduce", paper, "--cells=DCL,32", "--seeds=1"]
    precision = "--trainer.precision=bf16-mixed"
    assert main([*args, "--", precision]) == 0
    assert precision in commands[0]
    assert main([*args, "--", precision, "--data.root", "elsewhere"]) == 0  # the data may be moved
    assert main([*args, "--", "--trainer.precision=16-mixed"]) == 2
    error = capsys.readouterr().err
    assert "trainer.precision: bf16-mixed there, 16-mixed here" in error
    assert error.count("\n") == 1
    content = yaml.safe_load(Path(paper).read_text())
    content["options"]["model.objective.temperature"] = 0.2  # does not change the name of the run
    Path(paper).write_text(yaml.safe_dump(content))
    assert main(args) == 2
    assert "temperature: 0.5 there, 0.2 here" in capsys.readouterr().err


def test_existing_run_with_option_that_is_no_longer_given_is_refused(paper, commands, capsys):
    args = ["reproduce", paper, "--cells=DCL,32", "--seeds=1"]
    options = ["--", "--data.root=data", "--trainer.precision=bf16-mixed"]
    assert main([*args, *options]) == 0
    assert main(args) == 2
    error = capsys.readouterr().err
    assert "different config (trainer.precision: bf16-mixed there, nothing here): use its options" in error
    assert main([*args, "--", options[2]]) == 0  # the default data root again
    assert len(commands) == 2
    shutil.rmtree(next(Path("runs/mine").glob("*-s0")))
    assert main(args) == 0
    assert main(args) == 0


def test_option_that_extends_a_list_may_be_repeated(paper, commands):
    args = ["reproduce", paper, "--cells=DCL,32", "--seeds=1", "--", "--trainer.callbacks+=my.Callback"]
    assert main(args) == 0
    assert main(args) == 0
    assert len(commands) == 2  # fit and evaluate, once


def test_existing_run_with_other_max_epochs_is_refused(paper, commands, capsys):
    args = ["reproduce", paper, "--cells=DCL,32", "--seeds=1"]
    assert main(args) == 0
    Path(paper).write_text(Path(paper).read_text().replace("trainer.max_epochs: 4", "trainer.max_epochs: 8"))
    assert main(args) == 2
    assert "trainer.max_epochs: 4 there, 8 here" in capsys.readouterr().err


def test_run_locked_by_another_process_is_skipped(paper, commands, capsys):
    assert main(["reproduce", paper, "--cells=DCL,32", "--seeds=1"]) == 0
    (run,) = Path("runs/mine").glob("*-s0")
    (run / "evaluation.json").unlink()
    commands.clear()
    lock = Lock(run / ".lock")
    lock.take()
    try:
        assert main(["reproduce", paper, "--cells=DCL,32", "--seeds=1"]) == 0
    finally:
        lock.release()
    assert commands == []
    assert "left to another process" in capsys.readouterr().out
    assert cell("1", "DCL", "32", "LE")["ours"] == ""


def test_dry_run_lists_remaining_runs_and_estimates_their_time(paper, commands, capsys):
    args = ["reproduce", paper, "--table=1", "--seeds=1", "--dry-run"]
    assert main(args) == 0
    printed = capsys.readouterr().out
    assert printed.count("to do; training left: unknown") == 4
    assert printed.count("    ssl-vision fit ") == 4
    assert "4 runs, 0 done; training left, one run after the other: unknown for 4" in printed
    assert not Path("runs").exists()
    assert main(["reproduce", paper, "--cells=DCL,32", "--seeds=1"]) == 0
    capsys.readouterr()
    assert main(args) == 0
    printed = capsys.readouterr().out
    assert "digits-dcl-batch_size32-s0: done; training left: 0 s" in printed
    assert printed.count("to do; training left: 10 s") == 3  # 4 epochs of 2.5 s
    assert "4 runs, 1 done; training left, one run after the other: 30 s\n" in printed


def test_times_on_other_data_give_no_estimate(paper, commands):
    assert main(["reproduce", paper, "--cells=DCL,32", "--seeds=1"]) == 0
    parsed = read_paper(paper)
    done, other = (
        PaperRun(each, 0, Path("runs/mine"), parsed)
        for each in (parsed.tables["1"].cells[2], parsed.tables["1"].cells[0])
    )
    other.cell.options["config"] = str(CONFIGS / "pretrain" / "cifar10.yaml")
    assert seconds_left([done, other], [done, other]) == {done.name: 0.0, other.name: None}


def smoke_test_row(table, run, metric):
    with open(f"runs/mine-small/smoke_test_table{table}.csv", newline="") as file:
        (row,) = (row for row in csv.DictReader(file) if (row["run"], row["metric"]) == (run, metric))
    return row


def test_small_budget_writes_smoke_test_without_published_numbers(paper, commands, capsys):
    assert main(["reproduce", paper, "--table=1", "--budget=small", "--workers=1"]) == 0
    assert len(commands) == 2 * 4  # one seed
    assert "--model.encoder.width=4" in commands[0]
    assert "--device=cpu" in commands[1]
    assert not Path("runs/mine").exists()
    row = smoke_test_row("1", "digits-dcl-batch_size32", "LE")
    assert (row["value"], row["settings"]) == ("90.0", "tiny")
    out = capsys.readouterr().out
    assert "**Smoke test of table 1 of Mine: not results of the paper.**" in out
    assert "published" not in out
    assert "93.0" not in out  # the published number of DCL at 64, which no run gave
    files = {file.name for file in Path("runs/mine-small").iterdir() if file.is_file()}
    assert {f"smoke_test_table1.{suffix}" for suffix in ("md", "csv", "json")} <= files
    assert not any(name.startswith("table") for name in files)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["absent.yaml"], "paper file absent.yaml: no such file or recipe"),
        (["mine.yaml", "--table=7"], "--table 7: no such table; Mine has 1, 2"),
        (
            ["mine.yaml", "--cells=DCL,65"],
            "the rows are InfoNCE, DCL, the columns 32, 64, 5000, and the groups Batch",
        ),
        (
            ["mine.yaml", "--table=2", "--cells=DCL"],
            "no such cell; the rows are InfoNCE, the columns 64",
        ),
        (["mine.yaml", "--budget=medium"], "budget"),
        (["mine.yaml", "--seeds=0"], "seeds"),
        (["mine.yaml", "--", "--trainer.max_epochs=1"], "the paper file sets this option to 4"),
        (["mine.yaml", "--trainer.precision=16"], "to the end, after --"),
        ([], "paper"),
    ],
)
def test_invalid_options_are_reported_in_one_line_and_run_nothing(args, message, paper, commands, capsys):
    assert main(["reproduce", *args]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert commands == []


def test_signal_that_ends_a_run_prevents_further_runs(paper, commands, monkeypatch, capsys):
    def start(args, log, environment):
        commands.append(args)
        return EndedProcess(128 + signal.SIGTERM, log)

    monkeypatch.setattr(training, "spawned", start)
    with pytest.raises(SystemExit) as end:
        main(["reproduce", paper, "--seeds=1"])
    assert end.value.code == 128 + signal.SIGTERM
    assert len(commands) == 1
    assert "SIGTERM: repeat the command to continue" in capsys.readouterr().err


def test_workers_share_the_gpus(paper, monkeypatch):
    environments = []

    def start(args, log, environment):
        environments.append(environment)
        log.write_text("no memory\n")
        return EndedProcess(1, log)

    monkeypatch.setattr(training, "spawned", start)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pytest.raises(SystemExit):
        main(["reproduce", paper, "--table=1", "--seeds=1", "--workers=2"])
    assert sorted(each["CUDA_VISIBLE_DEVICES"] for each in environments) == ["3", "3", "5", "5"]


def exit_code(process):
    while (code := process.poll()) is None:
        time.sleep(0.01)
    return code


def test_log_of_process_has_its_command_and_output(tmp_path):
    log = tmp_path / "run.log"
    assert exit_code(spawned(["--version"], log, {})) == 0
    failed = spawned(["pretrain"], log, {})
    assert exit_code(failed) == 2
    lines = log.read_text().splitlines()
    assert lines[0].startswith("$ ")
    assert lines[0].endswith("vision --version")
    assert lines[1].startswith("ssl-vision ")
    assert lines[2].endswith("vision pretrain")
    assert lines[3].startswith("ssl-vision pretrain: unknown command")
    assert failed.last_line() == lines[3]


def test_processes_do_not_inherit_wandb_run_id(tmp_path, monkeypatch):
    """The command imports a module that prints its environment."""
    monkeypatch.setenv("WANDB_RUN_ID", "one")
    names = ("PATH", "OF_A_SLOT", "WANDB_RUN_ID")
    code = f"import os\nprint([name for name in {names} if name in os.environ], flush=True)\nos._exit(0)\n"
    (tmp_path / "printing.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    process = spawned(["fit", "--data=printing.Data"], tmp_path / "log", {"OF_A_SLOT": "1"})
    assert exit_code(process) == 0
    assert process.last_line() == "['PATH', 'OF_A_SLOT']"


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_process_receives_sigterm_when_its_parent_is_killed(tmp_path):
    (tmp_path / "waiting.py").write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path('saved').touch()))\n"
        "pathlib.Path('ready').touch()\n"
        "time.sleep(100)\n"
    )
    code = "from ssl_vision.experiments.reproduce.training import spawned; import pathlib, time\n"
    code += "process = spawned(['fit', '--data=waiting.Data'], pathlib.Path('log'), {}); time.sleep(100)"
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    wait_for(tmp_path / "ready")
    parent.kill()
    parent.wait()
    wait_for(tmp_path / "saved")


def wait_for(file):
    end = time.monotonic() + 100
    while not file.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_importing_reproduce_does_not_import_torch():
    code = "import sys, ssl_vision.experiments.reproduce.reproduce; sys.exit('torch' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
@pytest.mark.long
def test_reproduce_trains_and_evaluates_runs_on_digits(paper, capsys):
    """Two runs finish and fit refuses the third; a repetition does not run the finished ones again."""
    args = ["reproduce", paper, "--budget=small", "--cells=InfoNCE", "--workers=1"]
    with pytest.raises(SystemExit):
        main(args)
    out, err = capsys.readouterr()
    assert "1 of 3 runs failed" in err
    assert "5000" in out
    for column in ("32", "64"):
        result = smoke_test_row("1", f"digits-infonce-batch_size{column}", "LE")
        (rows,) = Path("runs/mine-small").glob(f"*batch_size{column}-s0/evaluation.json")
        (row,) = (
            row
            for row in json.loads(rows.read_text())
            if (row["metric"], row["layer"], row["features"]) == ("linear_top1", "backbone", "trained")
        )
        assert float(result["value"]) == pytest.approx(100 * row["value"])
        assert row["epoch"] == 4
    with pytest.raises(SystemExit):
        main(args)
    assert "2 of 3 runs are already done" in capsys.readouterr().out
