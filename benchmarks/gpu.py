"""Run measurements and trainings that need a GPU, the most valuable first, until a deadline.

    python benchmarks/gpu.py --list                             all jobs, with the seconds that they take
    python benchmarks/gpu.py --data data --deadline 540         those that fit into nine minutes
    python benchmarks/gpu.py --data data --jobs rates paper     only these two, in this order
    python benchmarks/gpu.py --data data --jobs paper --cells DCL,256 --cells Dual,256

docs/gpu.md shows how to use a quarter of an hour. Each job is a process group. It writes OUTPUT/<job>.log,
and OUTPUT/<job>.json as soon as it ends, with its commands, exit code, seconds, commit, GPU, versions and the
last line of its log. Files that it wrote to benchmarks/results/ are copied to OUTPUT/results/, and runs are
in OUTPUT/runs/. A job that does not fit into the time left is not started, and one that fails, hangs or is
killed does not stop the others. The same command continues where the last one stopped: it skips finished
jobs, resumes interrupted training, and repeats failed jobs after all others. Options after ``--`` are passed
to every ``ssl-vision fit``. The exit code is 1 if a job has failed.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from job_runner import (
    GRACE,
    ROOT,
    UNFIT,
    Job,
    bundle,
    pack_kernels,
    records,
    run_jobs,
    running,
    unpack_kernels,
)

CELL, START = 326.0, 30.0
"""Seconds of 200 epochs at batch size 256 on an H100 (epoch_cuda.json), and of their start (run on a GPU)."""

CELLS = ("InfoNCE,256", "MACL-a,256")
HOUR = 3600.0
_DETACHED = "SSL_VISION_DETACHED"


def gpu_jobs(
    data: Path,
    output: Path,
    *,
    table: str = "2",
    cells: Sequence[str] = CELLS,
    seed: int = 0,
    options: Sequence[str] = (),
) -> list[Job]:
    """The jobs, the most valuable ones first, and the tests last.

    Args:
        data: folder of the official CIFAR-10.
        output: where run directories are written.
        table: table of the MACL paper.
        cells: its cells for the job ``paper``, of which the last ones are left out if they do not fit.
        seed: seed of the cells.
        options: options of every ``ssl-vision fit``.
    """
    python, runs, cuda = sys.executable, output / "runs", ("--device", "cuda")
    compiled, images = (*cuda, "--compile_mode", "default"), ("--data", str(data), "--images", "50000")
    program, size = [python, "-m", "ssl_vision"], ("--width", "64", "--batch", "256")
    on_gpu = ("--config", "configs/pretrain/cifar10_gpu.yaml")
    honest = ["--protocol", "dinov2", "--protocol", "benchmarks/knn10.yaml"]
    honest += ["--baselines", "false", "--report", "false"]
    tests = [python, "-m", "pytest", "-x", "-m", "gpu", "-o", "timeout=120"]
    tests += [str(file) for file in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.gpu" in file.read_text()]
    guard = [*cuda, "--data", str(data), "--width", "64", "--epochs", "30", "--seeds", "3"]
    family = ["--data", str(data), "--runs", str(runs / "family"), *size, "--epochs", "50"]
    family += ["--limit", "1.0", "--precision", "bf16-mixed"]

    def script(name: str, *arguments: str) -> list[list[str]]:
        return [[python, f"benchmarks/{name}.py", *arguments]]

    def evaluate(run: Path) -> list[str]:
        return [*program, "evaluate", str(run), "--protocol", "macl", *honest]

    def speedrun(name: str, epochs: int, *change: str) -> list[str]:
        place = ["--name", name, "--runs_dir", str(runs), "--data.root", str(data), "--ckpt_path", "last"]
        quiet = ["--report", "false", "--trainer.enable_progress_bar", "false"]
        recipe = [*program, "fit", "--config", "configs/pretrain/cifar10_speedrun.yaml", *on_gpu]
        return [*recipe, *place, *quiet, "--trainer.max_epochs", str(epochs), *change, *options]

    def paper(count: int) -> Job:
        chosen = [f"--cells={cell}" for cell in cells[:count]]
        train = [*program, "reproduce", "configs/paper/macl.yaml", f"--table={table}", *chosen]
        train += ["--seeds=1", f"--first_seed={seed}", f"--workers={count}", "--runs_dir", str(runs), "--"]
        train += ["--data.root", str(data), *on_gpu, *options]
        each = f'for run in "$0"/*-s*/; do "$@" evaluate "$run" {shlex.join(honest)}; done'
        rows = ["sh", "-ec", each, str(runs / "macl"), *program]
        return Job(
            "paper", f"the MACL paper's {' and '.join(cells[:count])}", START + count * CELL,
            [train, rows], smaller=paper(count - 1) if count > 1 else None, shared=count > 1,
        )  # fmt: skip

    def arm(name: str, *change: str) -> Job:
        gives = f"100 epochs of cifar10_speedrun.yaml with {' '.join(change).lstrip('-')}"
        return Job(name, gives, START + 150, [speedrun(name, 100, *change)], default=False)

    def on_request(name: str, gives: str, seconds: float, *arguments: str) -> Job:
        return Job(name, gives, seconds, script(name, *arguments), default=False)

    return [
        Job("rates", "rates of a copy, of products and convolutions", 20,
            script("profile_step", "--only", "ceilings", "convolutions", "--name", "rates")),
        paper(len(cells)),
        Job("profile", "a step kernel by kernel", 120,
            script("profile_step", "--only", "step", "streams", "logging")),
        Job("options", "a step with each option that may make it faster", 240,
            script("profile_step", "--only", "options", "--name", "options"), default=False),
        Job("speedrun", "160 epochs of cifar10_speedrun.yaml", START + 280,
            [speedrun("speedrun", 160), evaluate(runs / "speedrun")]),
        Job("step", "time of a step, its parts, share of the peak", 100, script("step", *compiled)),
        Job("epoch", "an epoch beside lightly and others", 200, script("epoch", *compiled, *images)),
        Job("sharing", "several runs on one GPU", 100, script("sharing", *cuda), shared=True),
        Job("objectives", "time, memory and precision of objectives", 300, script("objectives", *cuda)),
        arm("arm_lr_0.12", "--model.optimizer.lr", "0.12"),
        arm("arm_lr_0.09", "--model.optimizer.lr", "0.09"),
        arm("arm_lr_0.06", "--model.optimizer.lr", "0.06"),
        arm("arm_grayscale_0.2", "--data.views.grayscale", "0.2"),
        Job("record", "430 epochs of cifar10_speedrun.yaml", START + 640,
            [speedrun("record", 430), evaluate(runs / "record")], default=False),
        on_request("knn", "kNN by FAISS and by torch beside lightly", 60, *cuda, "--rounds", "1"),
        on_request("views", "views beside lightly, torchvision and kornia", 200, *cuda),
        on_request("methods", "steps beside lightly, memory of long queues", 200, *cuda, *size),
        on_request("reclaim", "what RECLAIM adds to a step", 200, *cuda),
        on_request("diagnostics", "what --gradients true adds to a step", 200, *cuda),
        on_request("guard", "accuracy of fast and plain training", 2 * HOUR, *guard),
        on_request("family", "accuracy of every objective, 50 epochs", 24 * HOUR, *family),
        Job("tests", "tests marked gpu", 120, [tests]),
    ]  # fmt: skip


def detach(output: Path) -> None:
    """Start this command in a session of its own, and return when its jobs have begun or it has ended."""
    output.mkdir(parents=True, exist_ok=True)
    with (output / "gpu.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]],
            env=os.environ | {_DETACHED: "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    while process.poll() is None and not running(output):
        time.sleep(0.1)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the official CIFAR-10")
    parser.add_argument(
        "--deadline", type=float, default=540, metavar="SECONDS", help="for all jobs together"
    )
    parser.add_argument("--jobs", nargs="+", metavar="NAME", help="these jobs only, in this order")
    parser.add_argument("--table", default="2", help="table of the MACL paper, for the job paper")
    parser.add_argument("--cells", action="append", metavar="ROW,COLUMN", help="its cells; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="their seed")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu"), help="logs, results and runs")
    parser.add_argument("--bundle", type=Path, metavar="FILE", help="pack the results, without checkpoints")
    parser.add_argument(
        "--cache", type=Path, metavar="FILE", help="compiled kernels, packed when all jobs have ended"
    )
    parser.add_argument("--detach", action="store_true", help="let the jobs run on after this command")
    parser.add_argument("--wait", type=float, metavar="S", help="seconds to wait for detached jobs")
    parser.add_argument("--list", action="store_true", help="print the jobs, their seconds and results")
    separator = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    chosen = parser.parse_args(sys.argv[1:separator])
    output = chosen.output.resolve()
    jobs = gpu_jobs(
        chosen.data.resolve(),
        output,
        table=chosen.table,
        cells=chosen.cells or CELLS,
        seed=chosen.seed,
        options=sys.argv[separator + 1 :],
    )
    named = {job.name: job for job in jobs}
    if unknown := set(chosen.jobs or ()) - named.keys():
        parser.error(f"no job {', '.join(sorted(unknown))}. Available jobs: {', '.join(named)}")
    if chosen.list:
        for job in jobs:
            print(f"{job.name:<18} {job.seconds:>6g} s  {job.gives}{'' if job.default else ' (with --jobs)'}")
        return
    jobs = [named[name] for name in chosen.jobs] if chosen.jobs else [job for job in jobs if job.default]
    if chosen.detach or chosen.wait is None:
        if chosen.deadline <= GRACE:
            parser.error(f"--deadline must be more than {GRACE:g}, the seconds in which a stopped job saves.")
        if not chosen.data.is_dir():
            parser.error(f"no folder {chosen.data}. --data names the folder of the official CIFAR-10.")
        if not torch.cuda.is_available():
            parser.error("torch finds no CUDA device. --list prints the jobs without one.")
        if chosen.cache:
            unpack_kernels(chosen.cache)
        if chosen.detach and _DETACHED not in os.environ:
            detach(output)
        else:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, _: sys.exit(128 + number))  # stops the job, too
            run_jobs(jobs, output, seconds=chosen.deadline, cache=chosen.cache is not None)
            if _DETACHED in os.environ:
                return
    end = time.monotonic() + (chosen.wait or 0)
    while running(output) and time.monotonic() < end:
        time.sleep(0.2)
    print("\n| job | state | seconds | last line |\n|---|---|---|---|")
    ended = records(output)
    for record in ended:
        print(
            f"| {record['job']} | {record['state']} | {record['seconds']} | {record.get('last_line', '')} |"
        )
    if running(output):
        print("jobs are still running: --wait SECONDS waits for them")
    if chosen.bundle:
        bundle(output, chosen.bundle)
    if chosen.cache and not running(output):
        pack_kernels(chosen.cache)
    sys.exit(any(record["state"] not in ("done", UNFIT) for record in ended))


if __name__ == "__main__":
    main()
