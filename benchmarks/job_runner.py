"""Runs jobs one after the other until a deadline, and packs what they have written."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from provenance import RESULTS, provenance

from ssl_vision.runs.files import atomic_write
from ssl_vision.runs.lock import Lock

ROOT = Path(__file__).resolve().parent.parent
GRACE = 10.0
"""Seconds for which a stopped job may save."""

KERNELS = Path(tempfile.gettempdir(), "ssl_vision_kernels")
"""Directory of the kernels that Inductor and Triton compile; their keys contain its path."""

UNFIT = "does not fit"
LOG_END = 200_000
"""Bytes of each log in a bundle."""

RUN_FILES = ("config.yaml", "metrics.csv", "times.csv", "evaluation.json")


class Job(NamedTuple):
    """Commands that run one after the other until one fails."""

    name: str
    gives: str
    seconds: float
    """How long it takes. It is not started with less time left, and stopped after three times as long."""

    commands: Sequence[Sequence[str]]
    smaller: "Job | None" = None
    """Job of the same name that runs instead if this one does not fit."""

    default: bool = True
    """Run without ``--jobs``."""

    shared: bool = False
    """Several of its processes use the GPU at the same time."""

    @property
    def command(self) -> str:
        """Its commands in a shell, without the directories of this machine."""
        return " && ".join(shlex.join(map(_shown, command)) for command in self.commands)


def run_jobs(
    jobs: Sequence[Job], output: Path, *, seconds: float, grace: float = GRACE, cache: bool = False
) -> None:
    """Run the unfinished jobs that fit into the time left.

    Args:
        jobs: jobs in the order in which they run.
        output: directory of logs and results.
        seconds: time limit of all jobs together, including the grace period of the last one.
        grace: seconds between SIGTERM and SIGKILL.
        cache: keep compiled kernels in `KERNELS`.

    Raises:
        InputError: another process runs jobs in this directory.
    """
    end = time.monotonic() + seconds
    (output / "results").mkdir(parents=True, exist_ok=True)
    states = {job.name: _state(output, job) for job in jobs}
    left = [job for job in jobs if states[job.name] != "done"]
    left.sort(key=lambda job: states[job.name] not in ("", UNFIT, "interrupted"))
    lock = Lock(output / "lock")
    lock.take()
    for job in left:
        time_left = end - grace - time.monotonic()
        started = states[job.name] == "interrupted" and time_left > 0
        fitting: Job | None = job
        while fitting and fitting.seconds > time_left and not started:
            fitting = fitting.smaller
        if fitting is None:
            print(f"{job.name} takes {job.seconds:g} s, but {max(time_left, 0):.0f} s are left", flush=True)
            _write(output, {"job": job.name, "command": job.command, "state": UNFIT, "seconds": 0.0})
        else:
            print(f"{fitting.name}: {fitting.gives}", flush=True)
            _run(fitting, output, time_left, grace, _kernels() if cache else {})
    lock.release()


def _state(output: Path, job: Job) -> str:
    """Return the recorded state of a job, or "" if it has not run with these commands."""
    file = output / f"{job.name}.json"
    record = json.loads(file.read_text()) if file.exists() else {}
    return str(record["state"]) if record.get("command") == job.command else ""


def _run(job: Job, output: Path, seconds: float, grace: float, environment: Mapping[str, str]) -> None:
    """Run a job for at most ``seconds`` and write its record."""
    libraries = ("torchvision", "pytorch-lightning", "lightly")
    record = provenance(*libraries, device="cuda") | {"command": job.command}
    began, start = time.time(), time.monotonic()
    end = start + min(3 * job.seconds, seconds)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (output / f"{job.name}.log").open("ab") as log, _sharing(output, wanted=job.shared) as service:
        variables = {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", **environment, **service}
        for command in job.commands:
            process = subprocess.Popen(
                command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(max(0.0, end - time.monotonic()))
                killed = f"killed by {signal.Signals(-code).name}" if code < 0 else ""
                state = killed or ("failed" if code else "done")
            except subprocess.TimeoutExpired:
                state = "timed out" if 3 * job.seconds <= seconds else "interrupted"
            finally:
                _stop(process, grace)
            if state != "done":
                break
    written = sorted(file for file in RESULTS.glob("*.json") if file.stat().st_mtime >= began)
    for file in written:
        shutil.copy2(file, output / "results")
    _write(output, record | {
        "job": job.name,
        "gpu": _gpu(),
        "shared_by_mps": bool(service),
        "state": state,
        "exit_code": process.returncode,
        "seconds": round(time.monotonic() - start, 1),
        "results": [file.name for file in written],
        "last_line": _last_line(output / f"{job.name}.log"),
    })  # fmt: skip


@contextmanager
def _sharing(output: Path, *, wanted: bool) -> Iterator[dict[str, str]]:
    """Start NVIDIA's MPS, with which processes run kernels at the same time, if it is there and works.

    It changes no setting of the GPU. Yields the environment variables of its clients, or nothing without it.
    """
    program = shutil.which("nvidia-cuda-mps-control") if wanted else None
    if program is None:
        yield {}
        return
    place = output / "mps"
    place.mkdir(exist_ok=True)
    service = {name: str(place) for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")}
    # without pipes, which the service would keep open
    options: Any = {"env": os.environ | service, "timeout": 30, "check": True}
    options |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    client = [sys.executable, "-c", "import torch; torch.ones(1, device='cuda').item()"]
    try:
        subprocess.run([program, "-d"], **options)
        subprocess.run(client, **options)
    except subprocess.SubprocessError:
        service = {}
    try:
        yield service
    finally:
        with suppress(subprocess.SubprocessError):
            subprocess.run([program], input=b"quit\n", **options)


def _gpu() -> str:
    """Return name, clock and power of the GPU, or "" without nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=name,clocks.sm,power.draw", "--format=csv,noheader"]
    with suppress(OSError):
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def _shown(argument: str) -> str:
    """Return an argument of a command without the directories of this machine."""
    if argument == sys.executable:
        return "python"
    path = Path(argument)
    if path.is_relative_to(ROOT):
        return str(path.relative_to(ROOT))
    return path.name if path.is_absolute() else argument


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


def _write(output: Path, record: dict[str, Any]) -> None:
    with atomic_write(output / f"{record['job']}.json") as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n")


def records(output: Path) -> list[dict[str, Any]]:
    """Return the records of the jobs that have ended, in this order."""
    files = sorted(output.glob("*.json"), key=lambda file: file.stat().st_mtime)
    return [json.loads(file.read_text()) for file in files]


def running(output: Path) -> bool:
    """Return True while a process runs jobs in this directory."""
    return Lock(output / "lock").held


def _kernels() -> dict[str, str]:
    """Return the environment variables with which compiled kernels are stored in `KERNELS`."""
    places = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    return {name: str(KERNELS / folder) for name, folder in places.items()}


def unpack_kernels(file: Path) -> None:
    """Unpack the kernels that `pack_kernels` has packed, if the file exists."""
    if file.exists():
        with tarfile.open(file) as archive:
            archive.extractall(KERNELS, filter="data")


def pack_kernels(file: Path) -> None:
    """Pack the compiled kernels."""
    with atomic_write(file) as partial, tarfile.open(partial, "w:gz") as archive:
        for path in sorted(KERNELS.rglob("*")):
            if path.is_file() and path.suffix != ".lock":
                archive.add(path, path.relative_to(KERNELS))


def bundle(output: Path, file: Path) -> None:
    """Pack records, results, the ends of logs, and configs and metrics of runs, without checkpoints."""
    small = [*output.glob("*.json"), *output.glob("results/*.json")]
    small += [path for name in RUN_FILES for path in output.rglob(name)]
    with atomic_write(file) as partial, tarfile.open(partial, "w:gz") as archive:
        for path in sorted(small):
            archive.add(path, path.relative_to(output))
        with tempfile.TemporaryDirectory() as place:
            end = Path(place, "end")
            for log in sorted(output.rglob("*.log")):
                end.write_bytes(log.read_bytes()[-LOG_END:])
                archive.add(end, log.relative_to(output))
