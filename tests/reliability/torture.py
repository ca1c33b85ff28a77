"""Long stress tests: runs that are killed at random moments and resumed, and one very long run.

    python tests/reliability/torture.py                   100 kills over 40 runs, then 20,000 steps
    python tests/reliability/torture.py --kills 10 --runs 4 --steps 2000

A run trains a small network on the digits, saves at every second step and is killed with SIGKILL repeatedly;
each time it is resumed with ``--ckpt_path last``. A fifth of the kills wait until a checkpoint is being
written, while TMPDIR is on another file system. In the end, the checkpoint and metrics.csv must equal those
of an uninterrupted run bit for bit. Three quarters of the runs have a learning-rate schedule, and a fifth
have two processes. The script runs on Linux only, prints a table, and exits with 1 if a run differs.
"""

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from equal import difference_of_runs
from settings import TINY

from ssl_vision.main import main as command
from ssl_vision.runs.folder import RunFolder

OBJECTIVES = {
    "InfoNCE, learned temperature": ["InfoNCE", "--model.objective.temperature=Learnable"],
    "MACL": ["MACL"],
    "DualTemperature": ["DualTemperature"],
}
SCHEDULES = {
    "constant": [],
    "cosine": ["--model.optimizer.schedule=cosine"],
    "warm-up": ["--model.optimizer.schedule=cosine", "--model.optimizer.warmup_epochs=1"],
    "LARS, cosine": ["--model.optimizer.name=lars", "--model.optimizer.schedule=cosine"],
}
COMMON = [
    *TINY,
    "--trainer.max_epochs=4",
    "--trainer.limit_train_batches=10",
    "--online_probe=true",
    "--save_every_n_steps=2",
]
Kind = tuple[str, str, int]
"""Objective, schedule, and number of processes."""
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp", "--data.batch_size=32"]


def options(runs: Path, name: str, kind: Kind) -> list[str]:
    """Return the command line of a run."""
    objective, schedule, processes = kind
    return [
        "fit",
        f"--runs_dir={runs}",
        f"--name={name}",
        *COMMON,
        "--model.objective",
        *OBJECTIVES[objective],
        *SCHEDULES[schedule],
        *(TWO if processes == 2 else []),
    ]


def started(args: list[str], log: Path) -> int:
    """Start a run as leader of a process group and return its id; one process is forked to save imports."""
    if "--trainer.devices=2" in args:
        with log.open("ab") as file:
            command_line = [sys.executable, "-m", "ssl_vision", *args]
            return subprocess.Popen(command_line, start_new_session=True, stdout=file, stderr=file).pid
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os._exit(command(args))


def ended(pid: int, until: Callable[[], bool]) -> int | None:
    """Return the exit code of a process, or None if `until` becomes true first."""
    while not until():
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
        if ended_pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    return None


def killed(pid: int) -> None:
    """Kill a process group and wait until it has ended."""
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while True:
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


def tortured(
    runs: Path, name: str, args: list[str], kills: list[str], seconds: float, rng: random.Random
) -> list[str]:
    """Start a run, kill it at each of `kills`, let it end, and return the kills that hit it while it ran."""
    struck: list[str] = []
    checkpoint_folder = RunFolder(runs / name).checkpoints
    pending = list(kills)
    for attempt in itertools.count():
        pid = started([*args, "--ckpt_path=last"] if attempt else args, runs / f"{name}.log")
        begin, delay = time.monotonic(), rng.uniform(0, 0.7 * seconds)
        kind = pending.pop(0) if pending else ""

        def is_time_to_kill(kind: str = kind, begin: float = begin, delay: float = delay) -> bool:
            is_due = time.monotonic() - begin > delay
            return bool(kind) and is_due and (kind == "anywhere" or any(checkpoint_folder.glob(".*.partial")))

        code = ended(pid, is_time_to_kill)
        if code is None:
            killed(pid)
            struck.append(kind)
        elif code == 0:
            return struck
        else:
            raise RuntimeError(f"{name} ended with {code}: {_last_line(runs / f'{name}.log')}")
    return struck


def campaign(folder: Path, *, runs: int, kills: int, seed: int) -> bool:
    """Kill and compare `runs` runs, or more until `kills` kills have hit one, and print the table."""
    rng = random.Random(seed)
    references: dict[Kind, tuple[str, float]] = {}
    struck, differing = {"anywhere": 0, "writing": 0}, 0
    for i in itertools.count():
        remaining = kills - sum(struck.values())
        if i >= runs and remaining <= 0:
            break
        run_kind = (list(OBJECTIVES)[i % 3], list(SCHEDULES)[i % 4], 2 if i % 5 == 4 else 1)
        if run_kind not in references:
            name, begin = f"whole-{len(references)}", time.monotonic()
            pid = started(options(folder, name, run_kind), folder / f"{name}.log")
            if ended(pid, lambda: False):
                raise RuntimeError(_last_line(folder / f"{name}.log"))
            references[run_kind] = (name, time.monotonic() - begin)
        share = -(-remaining // max(runs - i, 1))
        kinds = ["writing" if rng.random() < 0.2 else "anywhere" for _ in range(max(share, 0))]
        args = options(folder, f"run-{i}", run_kind)
        for kind in (run_kills := tortured(folder, f"run-{i}", args, kinds, references[run_kind][1], rng)):
            struck[kind] += 1
        difference = difference_of_runs(folder / f"run-{i}", folder / references[run_kind][0])
        differing += bool(difference)
        kind = f"{run_kind[0]}, {run_kind[1]}, {run_kind[2]} process(es)"
        print(f"run {i:2} {kind}, {len(run_kills)} kills: {difference or 'equal'}", flush=True)
    print("\n| runs | kills at random moments | while a checkpoint was written | runs that differ |")
    print("|---|---|---|---|")
    print(f"| {i} | {struck['anywhere']} | {struck['writing']} | {differing} |")
    return not differing


def long_run(folder: Path, *, steps: int) -> bool:
    """Compare memory and open files at the end of a run of many steps with those after a twentieth of it."""
    args = [
        arg
        for arg in TINY
        if not arg.startswith(("--trainer.max_epochs", "--trainer.limit", "--trainer.log"))
    ]
    args += [
        f"--trainer.max_steps={steps}",
        "--trainer.max_epochs=-1",
        "--trainer.check_val_every_n_epoch=20",
    ]
    with (folder / "long.log").open("ab") as log:
        command_line = [
            sys.executable,
            "-m",
            "ssl_vision",
            "fit",
            f"--runs_dir={folder}",
            "--name=long",
            *args,
        ]
        process = subprocess.Popen(command_line, stdout=log, stderr=log)
    metrics, early, latest = folder / "long" / "metrics.csv", None, None
    while process.poll() is None:
        time.sleep(0.2)
        try:
            step = int(metrics.read_text().splitlines()[-1].split(",")[0])
            process_folder = Path(f"/proc/{process.pid}")
            pages = int((process_folder / "statm").read_text().split()[1])
            if pages:  # a process that has ended has none
                latest = (pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(process_folder / "fd")), step)
        except (OSError, ValueError, IndexError):
            continue
        if early is None and step >= steps // 20:
            early = latest
    if process.returncode or early is None or latest is None:
        raise RuntimeError(_last_line(folder / "long.log"))
    growth = latest[0] / early[0] - 1
    print("\n| step | resident memory, MiB | open files |\n|---|---|---|")
    for rss, files, step in (early, latest):
        print(f"| {step:,} | {rss / 2**20:.0f} | {files} |")
    print(f"\nmemory grew by {100 * growth:.1f} %")
    return growth < 0.02 and latest[1] <= early[1]


def _last_line(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]


def main() -> int:
    """Run the stress tests and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tmpdir", default="/dev/shm", help="TMPDIR of the runs, on another file system")
    args = parser.parse_args()
    os.environ["TMPDIR"] = args.tmpdir
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        passed = (
            campaign(Path(folder), runs=args.runs, kills=args.kills, seed=args.seed) if args.runs else True
        )
        passed = (long_run(Path(folder), steps=args.steps) if args.steps else True) and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
