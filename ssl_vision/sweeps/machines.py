"""Resources for trials: the GPUs and cores of this machine, or cluster jobs."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Literal

from jsonargparse.typing import NonNegativeInt, PositiveInt

from ssl_vision.errors import InputError


def gpus() -> list[str]:
    """List the available GPUs by their names in ``CUDA_VISIBLE_DEVICES``."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return [str(number) for number in range(count)]


def slots(*, workers: int | None, per_gpu: int | None) -> list[dict[str, str]]:
    """Return environment variables for each trial that may run at the same time.

    Args:
        workers: number of trials at a time. A single trial uses all GPUs, several trials are distributed over
            them. None starts one trial for each GPU, or one without a GPU.
        per_gpu: number of trials at a time on each GPU, instead of ``workers``.

    Raises:
        InputError: both are given, or ``per_gpu`` is given and there is no GPU.
    """
    if workers is not None and per_gpu is not None:
        raise InputError("--workers and --per_gpu both set the number of trials at a time: use one of them")
    visible = gpus()
    if per_gpu is not None and not visible:
        raise InputError("--per_gpu: nvidia-smi found no GPU; use --workers")
    count = workers if workers is not None else len(visible) * (per_gpu or 1) or 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, cores // count))}
    shared = bool(visible) and (workers is None or workers > 1)
    return [
        {**threads, **({"CUDA_VISIBLE_DEVICES": visible[i % len(visible)]} if shared else {})}
        for i in range(count)
    ]


@dataclass(frozen=True)
class Submitit:
    """Cluster jobs that submitit starts.

    Args:
        jobs: number of jobs; 0 runs the trials on this machine.
        partition: SLURM partition.
        account: SLURM account.
        timeout_min: time limit of a job in minutes; an unfinished job is queued again and continues.
        gpus: number of GPUs of a job.
        cpus: number of CPU cores of a job.
        mem_gb: memory of a job in GB.
        cluster: "slurm", or "local" to test the jobs as processes on this machine.
    """

    jobs: NonNegativeInt = 0
    partition: str | None = None
    account: str | None = None
    timeout_min: PositiveInt = 1440
    gpus: NonNegativeInt = 1
    cpus: PositiveInt = 8
    mem_gb: PositiveInt | None = None
    cluster: Literal["slurm", "local"] = "slurm"
