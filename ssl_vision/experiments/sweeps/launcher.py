"""Processes on this machine with their environment, log and exit code, and cluster jobs through submitit."""

import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import NonNegativeInt, PositiveInt

from ssl_vision.optional import available_cores, needed
from ssl_vision.runs.lock import HELD, Lock

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_OF_ONE_RUN = "WANDB_RUN_ID"
"""Variable with a W&B run id, which trials must not share."""

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LONGEST = 300


class Process:
    """A command in a new process, which is appended with its output to a log.

    If this process dies for any reason, the command receives SIGTERM, so that ``fit`` saves a checkpoint.

    Args:
        command: program and arguments.
        log: path of the log.
        environment: environment variables in addition to those of this process.
        lock: lock that this process shares with the command.

    Raises:
        OSError: the command cannot be started.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str], *, lock: Lock | None = None
    ) -> None:
        self.log = log
        self._sent: set[int] = set()
        common = {key: value for key, value in os.environ.items() if key != _OF_ONE_RUN}
        shared = {} if lock is None else {HELD: str(lock.path.absolute())}
        inherited = [] if lock is None else [lock.share()]
        with log.open("ab") as output:
            output.write(f"$ {shlex.join(command)}\n".encode())
            output.flush()
            self._begin = output.tell()
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**common, **environment, **shared},
                    pass_fds=inherited,
                    start_new_session=True,  # Ctrl-C reaches only the runner, which forwards it
                    preexec_fn=_bound_to(os.getpid()),
                )
            finally:
                for descriptor in inherited:
                    os.close(descriptor)

    def poll(self) -> int | None:
        """Return the exit code, minus the number of a signal that killed it, or None while it runs."""
        return self._process.poll()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal; the same signal is sent only once."""
        if number not in self._sent and self.poll() is None:
            self._sent.add(number)
            self._process.send_signal(number)

    def last_line(self) -> str:
        """Return the last line of the output."""
        output = self.log.read_bytes()[self._begin :]
        text = _ESCAPES.sub("", output.decode("utf-8", errors="replace"))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:_LONGEST] if lines else "it printed nothing"


def _bound_to(parent: int) -> Callable[[], None]:
    """Return a function that a child calls before its program, so that it ends when its parent dies."""

    def bind() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    return bind


def slots(workers: int | None) -> list[dict[str, str]]:
    """Return environment variables for each trial that may run at the same time.

    Args:
        workers: number of trials at a time. A single trial uses all GPUs, several trials are distributed over
            them. None starts one trial for each GPU, or one without a GPU.
    """
    visible = _gpus()
    count = workers if workers is not None else len(visible) or 1
    threads = max(1, available_cores() // count)
    limit = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}
    shared = bool(visible) and (workers is None or workers > 1)
    return [
        {**limit, **({"CUDA_VISIBLE_DEVICES": visible[i % len(visible)]} if shared else {})}
        for i in range(count)
    ]


def _gpus() -> list[str]:
    """List the available GPUs by their names in ``CUDA_VISIBLE_DEVICES``."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return [str(number) for number in range(count)]


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


def submitted(job: Callable[[], Any], options: Submitit, *, folder: Path) -> list[Any]:
    """Start cluster jobs, each of which calls ``job``, with logs in a folder.

    Raises:
        InputError: submitit is not installed.
    """
    submitit = needed("submitit", extra="sweep")
    optional = {
        "mem_gb": options.mem_gb,
        "slurm_partition": options.partition,
        "slurm_account": options.account,
    }
    executor = submitit.AutoExecutor(folder=folder / "logs" / "jobs", cluster=options.cluster)
    executor.update_parameters(
        name=folder.resolve().name,
        timeout_min=options.timeout_min,
        gpus_per_node=options.gpus,
        cpus_per_task=options.cpus,
        **{name: value for name, value in optional.items() if value is not None},
    )
    with executor.batch():
        return [executor.submit(job) for _ in range(options.jobs)]
