"""Tests of benchmarks/gpu.py, which runs GPU jobs that do not affect each other."""

import argparse
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch

from ssl_vision.main import main

pytestmark = pytest.mark.docs

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
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gpu")


@pytest.fixture
def runner(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module = importlib.import_module("job_runner")
    (tmp_path / "written").mkdir()
    monkeypatch.setattr(module, "RESULTS", tmp_path / "written")
    return module


@pytest.fixture
def job(runner):
    def make_job(name, *codes, arguments=(), seconds=1.0, **options):
        commands = [[sys.executable, "-c", code, *map(str, arguments)] for code in codes]
        return runner.Job(name, "a stand-in", seconds, commands, **options)

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


def test_jobs_run_despite_failures_and_finished_jobs_are_skipped(runner, job, tmp_path, capsys):
    fix_file = tmp_path / "mended"
    jobs = [
        job("fails", "import pathlib, sys; sys.exit(3 * (not pathlib.Path(sys.argv[1]).exists()))",
            "print('second command')", arguments=[fix_file]),
        job("hangs", IGNORES_SIGTERM, seconds=0.6),
        job("is_killed", "import os; os.kill(os.getpid(), 9)"),
        job("works", "print('once')", f"open({str(tmp_path / 'written' / 'rows.json')!r}, 'w').write('[]')"),
    ]  # fmt: skip
    output = tmp_path / "output"
    runner.run_jobs(jobs, output, seconds=60, grace=0.2)
    records = runner.records(output)
    assert [(each["job"], each["state"], each["exit_code"]) for each in records] == [
        ("fails", "failed", 3),
        ("hangs", "timed out", -signal.SIGKILL),
        ("is_killed", "killed by SIGKILL", -signal.SIGKILL),
        ("works", "done", 0),
    ]
    assert log(output, "fails") == []
    (child,) = log(output, "hangs")
    assert not alive(int(child))
    works = record(output, "works")
    assert works["command"] == " && ".join(f"python {shlex.join(c[1:])}" for c in jobs[3].commands)
    assert [record(output, name)["last_line"] for name in ("fails", "works")] == ["", "once"]
    assert works["results"] == ["rows.json"]
    assert (output / "results" / "rows.json").read_text() == "[]"
    assert {"commit", "device", "gpu", "python"} <= set(works)
    assert set(works["versions"]) == {"torch", "torchvision", "pytorch-lightning", "lightly"}
    assert not runner.running(output)

    fix_file.touch()
    new, changed = job("new", "print('new')"), job("is_killed", "print('other commands')")
    capsys.readouterr()
    runner.run_jobs([jobs[0], jobs[3], new, changed], output, seconds=60)
    started = [line for line in capsys.readouterr().out.splitlines() if line.endswith(": a stand-in")]
    assert started == ["new: a stand-in", "is_killed: a stand-in", "fails: a stand-in"]
    assert log(output, "fails") == ["second command"]
    assert log(output, "works") == ["once"]


def test_deadline_interrupts_job_and_next_call_resumes_it(runner, job, tmp_path):
    jobs = [
        job("training", SAVES_ON_SIGTERM, arguments=[tmp_path / "checkpoint"], seconds=2),
        job("later", "print('later')"),
    ]
    start = time.monotonic()
    runner.run_jobs(jobs, tmp_path, seconds=5, grace=2.5)
    assert time.monotonic() - start < 30
    assert record(tmp_path, "training")["state"] == "interrupted"
    assert record(tmp_path, "later")["state"] == "does not fit"
    assert not (tmp_path / "later.log").exists()
    runner.run_jobs(jobs, tmp_path, seconds=60)
    assert log(tmp_path, "training") == ["ready", "continues from step 7"]
    assert record(tmp_path, "training")["state"] == record(tmp_path, "later")["state"] == "done"


def test_job_that_does_not_fit_is_replaced_by_a_smaller_one(runner, job, tmp_path):
    smallest = job("paper", "print('one cell')", seconds=20)
    middle = job("paper", "print('two cells')", seconds=40, smaller=smallest)
    runner.run_jobs([job("paper", "print('three cells')", seconds=60, smaller=middle)], tmp_path, seconds=55)
    assert log(tmp_path, "paper") == ["two cells"]
    assert record(tmp_path, "paper")["command"] == middle.command


@pytest.mark.parametrize("works", [True, False])
def test_shared_job_uses_mps_if_it_works(runner, job, tmp_path, monkeypatch, works):
    service = tmp_path / "bin" / "nvidia-cuda-mps-control"
    service.parent.mkdir()
    service.write_text(
        f'#!/bin/sh\necho "$@" "$(cat)" "$CUDA_MPS_LOG_DIRECTORY" >> {tmp_path}/calls\nsleep 40 &\n'
    )
    service.chmod(0o755)
    monkeypatch.setenv("PATH", str(service.parent), prepend=os.pathsep)
    client = tmp_path / "python"
    client.write_text(f"#!/bin/sh\nexit {0 if works else 1}\n")
    client.chmod(0o755)
    code = "import os; print(os.environ.get('CUDA_MPS_PIPE_DIRECTORY'))"
    jobs = [job("alone", code), job("together", code, shared=True)]
    monkeypatch.setattr(runner.sys, "executable", str(client))  # of the process that tries the service
    runner.run_jobs(jobs, tmp_path, seconds=60)
    assert log(tmp_path, "alone") == ["None"]
    assert log(tmp_path, "together") == [str(tmp_path / "mps") if works else "None"]
    assert record(tmp_path, "together")["shared_by_mps"] == works
    started, stopped = (tmp_path / "calls").read_text().splitlines()
    assert started.split() == ["-d", str(tmp_path / "mps")]
    assert "quit" in stopped


def test_bundle_has_results_and_ends_of_logs_but_no_checkpoints(runner, job, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "LOG_END", 12)
    run = tmp_path / "output" / "runs" / "first"
    (run / "checkpoints").mkdir(parents=True)
    for name in ("config.yaml", "metrics.csv", "times.csv", "evaluation.json", "checkpoints/last.ckpt"):
        (run / name).write_text(name)
    code = f"open({str(tmp_path / 'written' / 'rows.json')!r}, 'w').write('[]'); print('beginning and end')"
    runner.run_jobs([job("works", code)], tmp_path / "output", seconds=60)
    runner.bundle(tmp_path / "output", tmp_path / "bundle.tgz")
    with tarfile.open(tmp_path / "bundle.tgz") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    files = {str(each.relative_to(tmp_path / "unpacked")) for each in (tmp_path / "unpacked").rglob("*.*")}
    of_run = {f"runs/first/{name}" for name in ("config.yaml", "metrics.csv", "times.csv", "evaluation.json")}
    assert files == {"works.json", "works.log", "results/rows.json", *of_run}
    assert (tmp_path / "unpacked" / "works.log").read_text() == "ing and end\n"


def test_kernels_are_packed_and_unpacked(runner, job, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "KERNELS", tmp_path / "kernels")
    code = "import os; [print(os.environ[f'{name}_CACHE_DIR']) for name in ('TORCHINDUCTOR', 'TRITON')]"
    runner.run_jobs([job("compiles", code)], tmp_path, seconds=60, cache=True)
    places = [Path(line) for line in log(tmp_path, "compiles")]
    assert places == [tmp_path / "kernels" / name for name in ("inductor", "triton")]
    for place in places:
        (place / "ab").mkdir(parents=True)
        (place / "ab" / "kernel.cubin").write_text(place.name)
        (place / "ab" / "kernel.lock").touch()
    runner.pack_kernels(tmp_path / "cache.tgz")
    monkeypatch.setattr(runner, "KERNELS", tmp_path / "other")
    runner.unpack_kernels(tmp_path / "no_such_file.tgz")
    runner.unpack_kernels(tmp_path / "cache.tgz")
    files = {str(each.relative_to(tmp_path / "other")) for each in (tmp_path / "other").rglob("*.*")}
    assert files == {"inductor/ab/kernel.cubin", "triton/ab/kernel.cubin"}


STAND_IN = (
    "import sys, gpu, torch\n"
    "torch.cuda.is_available, torch.cuda.get_device_name = lambda: True, lambda: 'stand-in'\n"
    "code, checkpoint = sys.argv[1:3]\n"
    "command = [sys.executable, '-c', code, checkpoint]\n"
    "gpu.gpu_jobs = lambda *args, **kwargs: [gpu.Job('training', '', 1, [command])]\n"
    "gpu.__file__ = sys.argv[3]\n"
    "sys.argv[1:] = sys.argv[4:]\n"
    "gpu.main()\n"
)


def stand_in(tmp_path, *arguments):
    """Command line of gpu.py with a job that sleeps for a minute, or saves when it is terminated."""
    script = tmp_path / "script.py"  # which a detached command starts
    own = [SAVES_ON_SIGTERM, str(tmp_path / "checkpoint"), str(script)]
    script.write_text(f"import sys\nsys.argv[1:1] = {own!r}\n{STAND_IN}")
    return [sys.executable, str(script), "--data", ".", "--output", str(tmp_path / "gpu"), *arguments]


ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])}


def test_terminated_call_lets_its_job_save(tmp_path):
    with subprocess.Popen(stand_in(tmp_path), env=ENVIRONMENT) as process:
        while not (tmp_path / "gpu" / "training.log").exists() or not log(tmp_path / "gpu", "training"):
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert (tmp_path / "checkpoint").read_text() == "step 7"


def test_detached_jobs_run_on_until_their_deadline(tmp_path):
    output, bundle = tmp_path / "gpu", tmp_path / "bundle.tgz"
    start = [*stand_in(tmp_path, "--deadline", "12.5"), "--detach", "--wait", "0.1"]
    done = subprocess.run(start, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "jobs are still running" in done.stdout
    wait = [*stand_in(tmp_path), "--wait", "60", "--bundle", str(bundle)]
    done = subprocess.run(wait, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 1  # the job was interrupted
    assert "| training | interrupted |" in done.stdout
    assert "still running" not in done.stdout
    assert log(output, "training") == ["ready"]
    assert (tmp_path / "checkpoint").read_text() == "step 7"
    with tarfile.open(bundle) as archive:
        assert {"training.json", "training.log", "gpu.log"} <= set(archive.getnames())


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
    jobs = gpu.gpu_jobs(Path("data"), Path("output"))
    assert [line.split()[0] for line in printed.out.splitlines()] == [each.name for each in jobs]
    names = [each.name for each in jobs if each.default]
    assert (names[:3], names[-1]) == (["rates", "paper", "profile"], "tests")
    assert all(each.seconds < 15 * 60 for each in jobs if each.default)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "stpe"], "no job stpe. Available jobs: rates, paper, profile"),
        (["--deadline", "10"], "--deadline must be more than 10"),
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
    assert len(scripts) == 14
    for command in scripts:
        source = (ROOT / command[1]).read_text()
        for option in (word.removeprefix("--") for word in command if word.startswith("--")):
            assert f'"--{option}"' in source or f'("{option}", ' in source, (command, option)


def test_job_scripts_import_without_optional_packages(gpu):
    jobs = gpu.gpu_jobs(Path("data"), Path("output"))
    scripts = [Path(command[1]) for each in jobs for command in each.commands]
    names = {script.stem for script in scripts if script.suffix == ".py"}
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


@pytest.mark.parametrize(
    ("table", "cells", "seed"),
    [("2", ["DCL,256", "Dual,256"], 0), ("2", ["MACL-b,256"], 1), ("1", ["Fixed", "Linear-2"], 0)],
)
def test_paper_job_trains_its_cells_at_once(gpu, monkeypatch, tmp_path, capsys, table, cells, seed):
    monkeypatch.chdir(ROOT)
    jobs = gpu.gpu_jobs(tmp_path, tmp_path, table=table, cells=cells, seed=seed, options=["--patience", "3"])
    (paper,) = [each for each in jobs if each.name == "paper"]
    train, evaluate = paper.commands
    separator = train.index("--")
    assert main([*train[3:separator], "--dry_run", *train[separator:]]) == 0
    printed = capsys.readouterr().out
    runs = len(cells)
    assert f"{runs} runs, 0 done" in printed
    options = (
        f"--seed_everything={seed}",
        "--data.batch_size=256",
        "--model.cuda_graph=True",
        "--trainer.max_epochs=200",
        "--patience=3",
    )
    assert all(printed.count(option) == runs for option in options)
    assert f"--workers={runs}" in train
    assert (paper.smaller is None) == (runs == 1)
    for name in ("a-s0", "b-s0", "logs"):
        (tmp_path / "runs" / "macl" / name).mkdir(parents=True)
    shown = subprocess.run(
        [*evaluate[:4], "echo"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [Path(line.split()[1]).name for line in shown] == ["a-s0", "b-s0"]
    assert all(line.startswith("evaluate ") and "--protocol dinov2" in line for line in shown)


def test_fit_accepts_the_options_of_every_recipe(gpu, monkeypatch, tmp_path):
    class Accepted(BaseException):
        pass

    def stop(self):
        raise Accepted

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("ssl_vision.cli.fit.FitCLI.instantiate_classes", stop)
    jobs = gpu.gpu_jobs(tmp_path, tmp_path, options=["--model.optimizer.lr", "0.09"])
    fits = [each.commands[0] for each in jobs if each.commands[0][3] == "fit"]
    assert len(fits) == 6
    for fit in fits:
        with pytest.raises(Accepted):
            main(list(fit[3:]))


def test_kernels_of_replays_are_joined_to_operations_and_grouped(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    profile = importlib.import_module("profile_step")

    def row(name, start, us, op=""):
        return {"name": name, "start": start, "us": us, "op": op, "shapes": ""}

    eager = [
        row("memset", 0, 1),
        row("sm90_wgrad", 2, 9, "aten::convolution_backward"),
        row("triton_red_0", 9, 1, "x"),
    ]
    replays = [
        [row("sm90_wgrad", 10 * i, 2 + i), row("triton_red_0", 10 * i + 4 + i, 1), row("new", 10 * i + 8, 1)]
        for i in range(3)
    ]
    rows = profile.described(replays, eager)
    assert [(each["name"], each["us"], each["gap"], each["op"]) for each in rows] == [
        ("sm90_wgrad", 3, 0, "aten::convolution_backward"),
        ("triton_red_0", 1, 2, "x"),
        ("new", 1, 2, ""),
    ]
    groups = profile.grouped(rows)
    assert list(groups) == ["weight gradient", "reductions, compiled", "other"]
    assert groups["weight gradient"] == {"kernels": 1, "ms": 0.003, "gap_ms": 0}


def test_recorded_command_keeps_arguments_with_spaces(gpu, monkeypatch):
    arguments = ["--recipes", "SGD, smaller", "width 32", "--seeds", "0"]
    monkeypatch.setattr("sys.argv", ["cpu_recipes.py", *arguments])
    assert shlex.split(importlib.import_module("provenance").provenance()["command"]) == [
        "python",
        "benchmarks/cpu_recipes.py",
        *arguments,
    ]


def test_recorded_commands_have_no_directories_of_the_machine(gpu):
    jobs = gpu.gpu_jobs(Path("/somewhere/data"), Path("/somewhere/output"))
    (tests,) = [each for each in jobs if each.name == "tests"]
    shown = tests.command.split()
    assert shown[:3] == ["python", "-m", "pytest"]
    assert "tests/test_gpu.py" in shown
    assert not any("/somewhere" in each.command or str(ROOT) in each.command for each in jobs)


def test_provenance_needs_neither_git_nor_every_package(gpu, monkeypatch):
    monkeypatch.setenv("PATH", "")
    details = importlib.import_module("provenance").provenance("torchvision", "no-such-package")
    assert details["commit"] == ""
    assert details["versions"]["no-such-package"] == "not installed"
    assert details["versions"]["torchvision"][0].isdigit()
