"""Tests of benchmarks/gpu.py, which runs GPU jobs that do not affect each other."""

import argparse
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ssl_vision.main import main

ROOT = Path(__file__).parent.parent
SAVES_ON_SIGTERM = """
import pathlib, signal, sys, time
file = pathlib.Path(sys.argv[1])
if file.exists():
    sys.exit(print("continues from", file.read_text()))
def save(*_):
    file.write_text("step 7")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
"""
IGNORES_SIGTERM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("gpu")
    (tmp_path / "written").mkdir()
    monkeypatch.setattr(module, "RESULTS", tmp_path / "written")
    return module


@pytest.fixture
def job(gpu):
    def make_job(name, *codes, arguments=(), minutes=1.0):
        return gpu.Job(
            name, "a stand-in", minutes, [[sys.executable, "-c", c, *map(str, arguments)] for c in codes]
        )

    return make_job


def record(output, name):
    return json.loads((output / f"{name}.json").read_text())


def log(output, name):
    return (output / f"{name}.log").read_text().split("\n")[:-1]


def alive(pid):
    """Return True if a process is running; a process that ended and waits for its parent is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_jobs_run_despite_failures_and_finished_jobs_are_skipped(gpu, job, tmp_path, capsys):
    fix_file = tmp_path / "mended"
    jobs = [
        job("fails", "import pathlib, sys; sys.exit(3 * (not pathlib.Path(sys.argv[1]).exists()))",
            "print('second command')", arguments=[fix_file]),
        job("hangs", IGNORES_SIGTERM, minutes=0.03),
        job("is_killed", "import os; os.kill(os.getpid(), 9)"),
        job("works", "print('once')", f"open({str(tmp_path / 'written' / 'rows.json')!r}, 'w').write('[]')"),
    ]  # fmt: skip
    output = tmp_path / "output"
    assert not gpu.run_jobs(jobs, output, minutes=1, grace=0.2)
    records = {each.name: record(output, each.name) for each in jobs}
    states = {name: (each["state"], each["exit_code"]) for name, each in records.items()}
    assert states == {
        "fails": ("failed", 3),
        "hangs": ("timed out", -signal.SIGKILL),
        "is_killed": ("killed by SIGKILL", -signal.SIGKILL),
        "works": ("done", 0),
    }
    assert log(output, "fails") == []
    (child,) = log(output, "hangs")
    assert not alive(int(child))
    works = record(output, "works")
    assert works["command"] == " && ".join(f"python {shlex.join(c[1:])}" for c in jobs[3].commands)
    assert [records[name]["last_line"] for name in ("fails", "works")] == ["", "once"]
    assert works["results"] == ["rows.json"]
    assert (output / "results" / "rows.json").read_text() == "[]"
    assert {"commit", "device", "python"} <= set(works)
    assert set(works["versions"]) == {"torch", "torchvision", "pytorch-lightning", "lightly"}
    table = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line[:2] for line in table[1:]] == [[f"| {name}", state] for name, (state, _) in states.items()]

    fix_file.touch()
    new = job("new", "print('new')")
    assert gpu.run_jobs([jobs[0], jobs[3], new], output, minutes=1)
    started = [line for line in capsys.readouterr().out.splitlines() if line.endswith(": a stand-in")]
    assert started == ["new: a stand-in", "fails: a stand-in"]
    assert log(output, "fails") == ["second command"]
    assert log(output, "works") == ["once"]


def test_time_limit_interrupts_job_and_next_call_resumes_it(gpu, job, tmp_path, capsys):
    jobs = [
        job("training", SAVES_ON_SIGTERM, arguments=[tmp_path / "checkpoint"]),
        job("later", "print('later')"),
    ]
    start = time.monotonic()
    assert not gpu.run_jobs(jobs, tmp_path, minutes=5 / 60, grace=2.5)
    assert time.monotonic() - start < 30
    assert record(tmp_path, "training")["state"] == "interrupted"
    assert not (tmp_path / "later.json").exists()
    assert "| later | not started |  |  |" in capsys.readouterr().out
    assert gpu.run_jobs(jobs, tmp_path, minutes=1)
    assert log(tmp_path, "training") == ["ready", "continues from step 7"]
    assert record(tmp_path, "training")["state"] == record(tmp_path, "later")["state"] == "done"


def test_terminated_call_lets_its_job_save(tmp_path):
    code = (
        "import sys, gpu, torch\n"
        "torch.cuda.is_available, torch.cuda.get_device_name = lambda: True, lambda: 'stand-in'\n"
        "command = [sys.executable, '-c', *sys.argv[1:3]]\n"
        "gpu.gpu_jobs = lambda data, output: [gpu.Job('training', '', 1, [command])]\n"
        "sys.argv[1:] = ['--data', '.', '--output', sys.argv[3]]\n"
        "gpu.main()\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])}
    arguments = [SAVES_ON_SIGTERM, str(tmp_path / "checkpoint"), str(tmp_path)]
    with subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment) as process:
        while not (tmp_path / "training.log").exists() or not log(tmp_path, "training"):
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert (tmp_path / "checkpoint").read_text() == "step 7"


@pytest.fixture
def command(gpu, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
        try:
            gpu.main()
        except SystemExit as end:
            return end.code, capsys.readouterr()
        return 0, capsys.readouterr()

    return run


def test_list_option_prints_every_job(gpu, command):
    code, printed = command("--list")
    assert code == 0
    names = [each.name for each in gpu.gpu_jobs(Path("data"), Path("output"))]
    assert [line.split()[0] for line in printed.out.splitlines()] == names
    assert names[:5] == ["tests", "step", "epoch", "speedrun", "paper"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "stpe"], "no job stpe. Available jobs: tests, step, epoch"),
        (["--minutes", "0.5"], "--minutes must be more than 0.5"),
        (["--data", "no/such/folder"], "no folder no/such/folder. --data names"),
        (["--data", "."], "torch finds no CUDA device"),
    ],
    ids=["unknown job", "too short", "no data", "no device"],
)
def test_invalid_arguments_exit_with_error_message(command, monkeypatch, arguments, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, printed = command(*arguments)
    assert code == 2
    assert message in printed.err.splitlines()[-1]


def test_job_commands_use_options_of_their_scripts(gpu):
    scripts = [
        command
        for each in gpu.gpu_jobs(Path("data"), Path("output"))
        for command in each.commands
        if command[1].startswith("benchmarks/")
    ]
    assert len(scripts) == 12
    for command in scripts:
        source = (ROOT / command[1]).read_text()
        for option in (word.removeprefix("--") for word in command if word.startswith("--")):
            assert f'"--{option}"' in source or f'("{option}", ' in source, (command, option)


@pytest.mark.long
def test_job_scripts_import_without_optional_packages(gpu):
    jobs = gpu.gpu_jobs(Path("data"), Path("output"))
    names = {Path(command[1]).stem for each in jobs for command in each.commands} - {"-m"}
    missing = ["faiss", "kornia", "optuna", "plotly", "pytorch_metric_learning", "simplejpeg", "wandb"]
    code = f"import importlib, sys\nsys.modules.update(dict.fromkeys({missing}))\n"
    code += f"for name in {sorted(names)}:\n    importlib.import_module(name)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_step_script_measures_every_part(gpu, monkeypatch, tmp_path, capsys):
    step = importlib.import_module("step")
    monkeypatch.setattr("provenance.RESULTS", tmp_path)
    options = {"width": 4, "batch": 8, "warm": 1, "steps": 1, "rounds": 2}
    monkeypatch.setattr(sys, "argv", ["step.py", *(f"--{name}={value}" for name, value in options.items())])
    step.main()
    record = json.loads((tmp_path / "step_cpu.json").read_text())
    assert set(record["parts_ms"]) == set(step.PARTS)
    assert min(record["bare_ms"], record["lightning_ms"], *record["parts_ms"].values()) > 0
    assert len(capsys.readouterr().out.splitlines()) == 10


@pytest.mark.parametrize("tuned", [False, True], ids=["lightly", "torchvision, tuned"])
def test_loop_of_epoch_script_trains(gpu, tuned):
    epoch = importlib.import_module("epoch")
    loop = epoch.Loop(argparse.Namespace(device="cpu", width=4, compile_mode=None), tuned=tuned)
    before = loop.model.backbone.conv1.weight.clone()
    images = torch.rand(2, 8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert loop(iter([tuple(images)])) > 0
    assert not torch.equal(loop.model.backbone.conv1.weight, before)


def test_paper_job_has_five_runs_at_batch_size_256(gpu, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(ROOT)
    (paper,) = [each for each in gpu.gpu_jobs(tmp_path, tmp_path) if each.name == "paper"]
    (command,) = paper.commands
    separator = command.index("--")
    assert main([*command[3:separator], "--dry_run", *command[separator:]]) == 0
    printed = capsys.readouterr().out
    assert "5 runs, 0 done" in printed
    assert printed.count("--data.batch_size=256") == printed.count(" --report=false") == 5


def test_fit_accepts_the_options_of_the_speedrun(gpu, monkeypatch, tmp_path):
    class Accepted(BaseException):
        pass

    def stop(self):
        raise Accepted

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("ssl_vision.cli.fit.RunCLI.before_instantiate_classes", stop)
    (speedrun,) = [each for each in gpu.gpu_jobs(tmp_path, tmp_path) if each.name == "speedrun"]
    with pytest.raises(Accepted):
        main(list(speedrun.commands[0][3:]))


def test_recorded_command_keeps_arguments_with_spaces(gpu, monkeypatch):
    arguments = ["--recipes", "SGD, smaller", "width 32", "--seeds", "0"]
    monkeypatch.setattr("sys.argv", ["cpu_recipes.py", *arguments])
    assert shlex.split(gpu.provenance()["command"]) == ["python", "benchmarks/cpu_recipes.py", *arguments]


def test_recorded_commands_have_no_directories_of_the_machine(gpu):
    (tests,) = [each for each in gpu.gpu_jobs(Path("data"), Path("output")) if each.name == "tests"]
    shown = [gpu._shown(argument) for argument in tests.commands[0]]
    assert shown[:3] == ["python", "-m", "pytest"]
    assert "tests/test_gpu.py" in shown
    assert not any(argument.startswith("/") for argument in shown)


def test_provenance_needs_neither_git_nor_every_package(gpu, monkeypatch):
    monkeypatch.setenv("PATH", "")
    details = gpu.provenance("torchvision", "no-such-package")
    assert details["commit"] == ""
    assert details["versions"]["no-such-package"] == "not installed"
    assert details["versions"]["torchvision"][0].isdigit()
