"""Provenance of measurements: the metadata of every file in benchmarks/results/."""

import json
import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("torch", "torchvision", "pytorch-lightning", "lightly")
"""Libraries whose versions are stated for trained runs."""


def provenance(*packages: str, device: str = "cpu") -> dict[str, Any]:
    """Return command, commit, device, processor, threads, load and versions of torch and ``packages``.

    Args:
        *packages: names of distributions.
        device: device of the measurement; "cuda" is the GPU if there is one, and otherwise the CPU.
    """
    others = (":/", ":(top,exclude)benchmarks/results")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *others)
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *map(_plain, sys.argv[1:])]),
        "commit": _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else ""),
        "device": torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else "cpu",
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {"torch": torch.__version__} | {package: _version(package) for package in packages},
    }


def training_source(folder: Path, command: str) -> dict[str, Any]:
    """Return command, commit and versions with which the runs of a directory were trained.

    Args:
        folder: directory of runs in a checkout; outside of one, the commit is "".
        command: the command.
    """
    return {
        "command": command,
        "commit": _git("rev-parse", "--short", "HEAD", folder=folder),
        "versions": {library: version(library) for library in LIBRARIES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _plain(argument: str) -> str:
    """Return an argument without the directories of this machine."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def _git(*arguments: str, folder: Path = RESULTS.parent) -> str:
    """Return the output of git, or "" without git or outside a repository."""
    command = ["git", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def _processor() -> str:
    """Return the name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def save(name: str, record: dict[str, Any]) -> None:
    """Write benchmarks/results/<name>.json."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
