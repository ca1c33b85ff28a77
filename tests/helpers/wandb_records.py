"""The records of an offline W&B run, read with W&B's own reader."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.util import get_core_path


def parts(run: Path) -> list[Path]:
    """Return the offline folders of a run directory in the order in which they were started."""
    return sorted((run / "wandb").glob("offline-run-*"), key=lambda part: part.stat().st_mtime)


def inspect(part: Path, *options: str) -> str:
    """Return what ``wandb leet inspect`` prints for an offline folder, without starting another Python."""
    (file,) = part.resolve().glob("run-*.wandb")
    command = [get_core_path(), "leet", "inspect", "--no-observability", *options, "--json"]
    command += ["--run-file", str(file), str(file.parents[1])]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def records(part: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of one kind."""
    return [record for record in map(json.loads, inspect(part).splitlines()) if record["type"] == kind]


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values of nested dicts with dotted keys."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{prefix}{key}.")
    else:
        yield prefix[:-1], value
