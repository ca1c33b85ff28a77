"""The long campaign: runs that are killed at random moments and continued, and one that is long.

    python tests/reliability/torture.py                   100 kills over 40 runs, then 20,000 steps
    python tests/reliability/torture.py --kills 10 --runs 4 --steps 2000

A run trains a small network on the digits, saves at every second step and is killed with SIGKILL, again and
again; each time it continues by ``--ckpt_path last``. A fifth of the kills wait until a checkpoint is being
written, while TMPDIR lies on another file system. At the end checkpoint and metrics.csv must be those of the
run that was never killed, to the bit. Three quarters of the runs have a learning-rate schedule, and a fifth
has two processes. Linux only. Prints a table and exits with 1 if one differs.
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
    """A run's process id; it leads a process group. One process is forked, which spares it the imports."""
    if "--trainer.devices=2" in args:
        with log.open("ab") as file:
            whole = [sys.executable, "-m", "ssl_vision", *args]
            return subprocess.Popen(whole, start_new_session=True, stdout=file, stderr=file).pid
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os._exit(command(args))


def ended(pid: int, until: Callable[[], bool]) -> int | None:
    """The exit code of a process, or None where the moment came first."""
    while not until():
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    return None


def killed(pid: int) -> None:
    """Kills a process group and waits for its end."""
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
    """Starts a run, kills it as often as asked, lets it end; the kills that struck a living run."""
    struck: list[str] = []
    writing = RunFolder(runs / name).checkpoints
    waiting = list(kills)
    for attempt in itertools.count():
        pid = started([*args, "--ckpt_path=last"] if attempt else args, runs / f"{name}.log")
        begin, delay = time.monotonic(), rng.uniform(0, 0.7 * seconds)
        kind = waiting.pop(0) if waiting else ""

        def moment(kind: str = kind, begin: float = begin, delay: float = delay) -> bool:
            late = time.monotonic() - begin > delay
            return bool(kind) and late and (kind == "anywhere" or any(writing.glob(".*.partial")))

        code = ended(pid, moment)
        if code is None:
            killed(pid)
            struck.append(kind)
        elif code == 0:
            return struck
        else:
            raise RuntimeError(f"{name} ended with {code}: {_last_line(runs / f'{name}.log')}")
    return struck


def campaign(folder: Path, *, runs: int, kills: int, seed: int) -> bool:
    """Kills and compares, in as many runs as it takes, at least so many; prints the table."""
    rng = random.Random(seed)
    whole: dict[Kind, tuple[str, float]] = {}
    struck, wrong = {"anywhere": 0, "writing": 0}, 0
    for i in itertools.count():
        left = kills - sum(struck.values())
        if i >= runs and left <= 0:
            break
        key = (list(OBJECTIVES)[i % 3], list(SCHEDULES)[i % 4], 2 if i % 5 == 4 else 1)
        if key not in whole:
            name, begin = f"whole-{len(whole)}", time.monotonic()
            pid = started(options(folder, name, key), folder / f"{name}.log")
            if ended(pid, lambda: False):
                raise RuntimeError(_last_line(folder / f"{name}.log"))
            whole[key] = (name, time.monotonic() - begin)
        share = -(-left // max(runs - i, 1))
        kinds = ["writing" if rng.random() < 0.2 else "anywhere" for _ in range(max(share, 0))]
        args = options(folder, f"run-{i}", key)
        for kind in (mine := tortured(folder, f"run-{i}", args, kinds, whole[key][1], rng)):
            struck[kind] += 1
        found = difference_of_runs(folder / f"run-{i}", folder / whole[key][0])
        wrong += bool(found)
        kind = f"{key[0]}, {key[1]}, {key[2]} process(es)"
        print(f"run {i:2} {kind}, {len(mine)} kills: {found or 'equal'}", flush=True)
    print("\n| runs | kills at random moments | while a checkpoint was written | runs that differ |")
    print("|---|---|---|---|")
    print(f"| {i} | {struck['anywhere']} | {struck['writing']} | {wrong} |")
    return not wrong


def long_run(folder: Path, *, steps: int) -> bool:
    """One run of many steps: memory and open files at the end beside those at a twentieth."""
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
        whole = [sys.executable, "-m", "ssl_vision", "fit", f"--runs_dir={folder}", "--name=long", *args]
        process = subprocess.Popen(whole, stdout=log, stderr=log)
    metrics, early, found = folder / "long" / "metrics.csv", None, None
    while process.poll() is None:
        time.sleep(0.2)
        try:
            step = int(metrics.read_text().splitlines()[-1].split(",")[0])
            place = Path(f"/proc/{process.pid}")
            pages = int((place / "statm").read_text().split()[1])
            if pages:  # one that has ended holds none
                found = (pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(place / "fd")), step)
        except (OSError, ValueError, IndexError):
            continue
        if early is None and step >= steps // 20:
            early = found
    if process.returncode or early is None or found is None:
        raise RuntimeError(_last_line(folder / "long.log"))
    growth = found[0] / early[0] - 1
    print("\n| step | resident memory, MiB | open files |\n|---|---|---|")
    for rss, files, step in (early, found):
        print(f"| {step:,} | {rss / 2**20:.0f} | {files} |")
    print(f"\nmemory grew by {100 * growth:.1f} %")
    return growth < 0.02 and found[1] <= early[1]


def _last_line(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]


def main() -> int:
    """Runs the campaign and prints its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tmpdir", default="/dev/shm", help="TMPDIR of the runs, on another file system")
    chosen = parser.parse_args()
    os.environ["TMPDIR"] = chosen.tmpdir
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        good = (
            campaign(Path(folder), runs=chosen.runs, kills=chosen.kills, seed=chosen.seed)
            if chosen.runs
            else True
        )
        good = (long_run(Path(folder), steps=chosen.steps) if chosen.steps else True) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
