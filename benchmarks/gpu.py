"""Run all measurements that need a GPU as independent jobs, the most valuable first, within a time limit.

    python benchmarks/gpu.py --list                                the jobs and their results
    python benchmarks/gpu.py --data data --minutes 9               as many as nine minutes allow
    python benchmarks/gpu.py --data data --jobs speedrun paper     only these two

Each job is a process group with a time limit. It writes OUTPUT/<job>.log, and OUTPUT/<job>.json as soon as it
ends, with its commands, exit code, seconds, commit, GPU, versions and the last line of its log. Files that it
wrote to benchmarks/results/ are copied to OUTPUT/results/, and runs are in OUTPUT/runs/. A job that fails,
hangs or is killed does not stop the others. The same command continues where the last one stopped: it skips
finished jobs, resumes interrupted training, and repeats failed jobs after all others. Delete a job's JSON
file to run it again. The exit code is 0 only if every job that ran succeeded.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from provenance import RESULTS, provenance

from ssl_vision.runs.atomic_files import atomic_write

ROOT = Path(__file__).resolve().parent.parent
GRACE = 30.0
"""Seconds for which a stopped job may save."""


class Job(NamedTuple):
    """Commands that run one after the other until one fails."""

    name: str
    gives: str
    minutes: float
    """The most that it may take in one call."""
    commands: Sequence[Sequence[str]]


def gpu_jobs(data: Path, output: Path) -> list[Job]:
    """The jobs, the most valuable ones first.

    Args:
        data: folder of the official CIFAR-10.
        output: where run directories are written.
    """
    python, runs, cuda = sys.executable, output / "runs", ("--device", "cuda")
    compiled = (*cuda, "--compile_mode", "default")
    program, size = [python, "-m", "ssl_vision"], ("--width", "64", "--batch", "256")
    images = ("--data", str(data), "--images", "50000")
    tests = [python, "-m", "pytest", "-m", "gpu", "-o", "timeout=120"]
    tests += [str(file) for file in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.gpu" in file.read_text()]

    def script(name: str, *options: str) -> list[list[str]]:
        return [[python, f"benchmarks/{name}.py", *options]]

    speedrun = [*program, "fit", "--config", "configs/pretrain/cifar10_speedrun.yaml", "--ckpt_path", "last"]
    speedrun += ["--name", "speedrun", "--runs_dir", str(runs), "--data.root", str(data)]
    speedrun += ["--report", "false", "--trainer.enable_progress_bar", "false"]
    evaluate = [*program, "evaluate", str(runs / "speedrun"), "--report", "false"]
    paper = [*program, "reproduce", "configs/paper/macl.yaml", "--table", "2", "--cells", "256"]
    paper += ["--seeds", "1", "--runs_dir", str(runs), "--", "--data.root", str(data)]
    paper += ["--trainer.precision", "bf16-mixed", "--model.compile_mode", "default"]
    guard = [*cuda, "--data", str(data), "--width", "64", "--epochs", "30", "--seeds", "3"]
    family = ["--data", str(data), "--runs", str(runs / "family"), *size, "--epochs", "50"]
    family += ["--limit", "1.0", "--precision", "bf16-mixed"]
    return [
        Job("tests", "tests marked gpu", 4, [tests]),
        Job("step", "time of a step, its parts, share of the peak", 2, script("step", *compiled)),
        Job("epoch", "an epoch beside lightly, tuned PIL and kornia", 5, script("epoch", *compiled, *images)),
        Job("speedrun", "160 epochs of CIFAR-10, evaluated", 40, [speedrun, evaluate]),
        Job("paper", "the paper's Table 2 at batch 256, one seed", 720, [paper]),
        Job("objectives", "time, memory and precision of objectives", 10, script("objectives", *cuda)),
        Job("views", "views beside lightly, torchvision and kornia", 5, script("views", *cuda)),
        Job("methods", "steps beside lightly, memory of long queues", 5, script("methods", *cuda, *size)),
        Job("knn", "kNN by FAISS and by torch beside lightly", 5, script("knn", *cuda)),
        Job("launches", "kernel launches of a step, on the fake device", 5, script("launches")),
        Job("reclaim", "what RECLAIM adds to a step", 5, script("reclaim", *cuda)),
        Job("diagnostics", "what --gradients true adds to a step", 5, script("diagnostics", *cuda)),
        Job("sharing", "several runs on one GPU", 10, script("sharing", *compiled)),
        Job("guard", "accuracy of fast and plain training", 120, script("guard", *guard)),
        Job("family", "accuracy of every objective, 50 epochs", 1440, script("family", *family)),
    ]


def run_jobs(jobs: Sequence[Job], output: Path, *, minutes: float, grace: float = GRACE) -> bool:
    """Run the unfinished jobs, print the table, and return True if all jobs that ran succeeded.

    Args:
        jobs: jobs in the order in which they run.
        output: directory of logs and results.
        minutes: time limit of all jobs together, including the grace period of the last one.
        grace: seconds between SIGTERM and SIGKILL.
    """
    end = time.monotonic() + 60 * minutes
    (output / "results").mkdir(parents=True, exist_ok=True)
    records = {job.name: json.loads(f.read_text()) for job in jobs if (f := _file(output, job)).exists()}
    states = {name: record["state"] for name, record in records.items()}
    left = [job for job in jobs if states.get(job.name) != "done"]
    left.sort(key=lambda job: states.get(job.name, "interrupted") != "interrupted")
    succeeded = True
    for job in left:
        seconds = end - grace - time.monotonic()
        if seconds <= 0:
            break
        print(f"{job.name}: {job.gives}", flush=True)
        records[job.name] = _run(job, output, seconds, grace)
        succeeded &= records[job.name]["state"] == "done"
    print("\n| job | state | seconds | result |\n|---|---|---|---|")
    for job in jobs:
        record = records.get(job.name, {"state": "not started", "seconds": ""})
        file = _file(output, job) if job.name in records else ""
        print(f"| {job.name} | {record['state']} | {record['seconds']} | {file} |")
    return succeeded


def _run(job: Job, output: Path, seconds: float, grace: float) -> dict[str, Any]:
    """Run a job for at most ``seconds`` and write its record."""
    record = provenance("torchvision", "pytorch-lightning", "lightly")
    record["command"] = " && ".join(shlex.join(map(_shown, command)) for command in job.commands)
    began, start = time.time(), time.monotonic()
    end = start + min(60 * job.minutes, seconds)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    with (output / f"{job.name}.log").open("ab") as log:
        for command in job.commands:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(max(0.0, end - time.monotonic()))
                killed = f"killed by {signal.Signals(-code).name}" if code < 0 else ""
                state = killed or ("failed" if code else "done")
            except subprocess.TimeoutExpired:
                state = "timed out" if 60 * job.minutes <= seconds else "interrupted"
            finally:
                _stop(process, grace)
            if state != "done":
                break
    written = sorted(file for file in RESULTS.glob("*.json") if file.stat().st_mtime >= began)
    for file in written:
        shutil.copy2(file, output / "results")
    record |= {
        "job": job.name,
        "state": state,
        "exit_code": process.returncode,
        "seconds": round(time.monotonic() - start, 1),
        "results": [file.name for file in written],
        "last_line": _last_line(output / f"{job.name}.log"),
    }
    with atomic_write(_file(output, job)) as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n")
    return record


def _shown(argument: str) -> str:
    """Return an argument of a command without the directories of this machine."""
    if argument == sys.executable:
        return "python"
    path = Path(argument)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else argument


def _last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, or "" if there is none."""
    return next((line for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "")


def _stop(process: subprocess.Popen[bytes], grace: float) -> None:
    """Stop the processes of a job: SIGTERM, which lets training save a checkpoint, then SIGKILL."""
    with suppress(ProcessLookupError):  # the group is empty
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 1.0)):
            os.killpg(process.pid, number)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.05)


def _file(output: Path, job: Job) -> Path:
    return output / f"{job.name}.json"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the official CIFAR-10")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all jobs together")
    parser.add_argument("--jobs", nargs="+", metavar="NAME", help="these jobs only")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="logs, results and runs")
    parser.add_argument("--list", action="store_true", help="print the jobs, their limits and results")
    chosen = parser.parse_args()
    jobs = gpu_jobs(chosen.data.resolve(), chosen.output.resolve())
    if unknown := set(chosen.jobs or ()) - {job.name for job in jobs}:
        names = ", ".join(job.name for job in jobs)
        parser.error(f"no job {', '.join(sorted(unknown))}. Available jobs: {names}")
    jobs = [job for job in jobs if not chosen.jobs or job.name in chosen.jobs]
    if chosen.list:
        for job in jobs:
            print(f"{job.name:<12} {job.minutes:>5g} min  {job.gives}")
        return
    if chosen.minutes <= GRACE / 60:
        parser.error(f"--minutes must be more than {GRACE / 60:g}, the time that a stopped job has to save.")
    if not chosen.data.is_dir():
        parser.error(f"no folder {chosen.data}. --data names the folder of the official CIFAR-10.")
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device. --list prints the jobs without one.")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # stops the job, too
    sys.exit(not run_jobs(jobs, chosen.output.resolve(), minutes=chosen.minutes))


if __name__ == "__main__":
    main()
