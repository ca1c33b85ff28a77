"""Where trials run: on this machine's GPUs or cores, or in the jobs of a cluster."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Literal

from jsonargparse.typing import NonNegativeInt, PositiveInt

from ssl_vision.errors import InputError


def gpus() -> list[str]:
    """The GPUs that are to be used, as ``CUDA_VISIBLE_DEVICES`` names them."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return [str(number) for number in range(count)]


def slots(*, workers: int | None, per_gpu: int | None) -> list[dict[str, str]]:
    """The environment of each trial that may run at a time.

    Args:
        workers: how many; one sees all GPUs, several share them out. None is one for each GPU, or one.
        per_gpu: how many for each GPU, instead.

    Raises:
        InputError: both are given, or ``per_gpu`` where there is no GPU.
    """
    if workers is not None and per_gpu is not None:
        raise InputError("--workers and --per_gpu both say how many trials run at a time: give one of them")
    visible = gpus()
    if per_gpu is not None and not visible:
        raise InputError("--per_gpu: nvidia-smi finds no GPU here; give --workers")
    count = workers if workers is not None else len(visible) * (per_gpu or 1) or 1
    cores = max(1, len(os.sched_getaffinity(0)) // count) if hasattr(os, "sched_getaffinity") else 1
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(cores)}
    shared = bool(visible) and (workers is None or workers > 1)
    return [
        {**threads, **({"CUDA_VISIBLE_DEVICES": visible[i % len(visible)]} if shared else {})}
        for i in range(count)
    ]


@dataclass(frozen=True)
class Submitit:
    """Workers that submitit starts as jobs.

    Args:
        jobs: how many; 0 works on this machine.
        partition: SLURM's.
        account: SLURM's.
        timeout_min: minutes of a job; one that is not done by then is queued again and goes on.
        gpus: of a job.
        cpus: cores of a job.
        mem_gb: memory of a job.
        cluster: local starts the jobs as processes of this machine, for a trial.
    """

    jobs: NonNegativeInt = 0
    partition: str | None = None
    account: str | None = None
    timeout_min: PositiveInt = 1440
    gpus: NonNegativeInt = 1
    cpus: PositiveInt = 8
    mem_gb: PositiveInt | None = None
    cluster: Literal["slurm", "local"] = "slurm"
