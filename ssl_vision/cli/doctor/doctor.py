"""``ssl-vision doctor``: what is installed and found, as a page or as JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ssl_vision.cli.doctor.check import Check
from ssl_vision.cli.doctor.datasets import data_sets, wandb
from ssl_vision.cli.doctor.hardware import machine
from ssl_vision.cli.doctor.packages import software
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.progress import Progress


def run(args: Sequence[str]) -> None:
    """Says what is installed, which devices, data sets and logging there are, and what to do where it lacks.

    Raises:
        SystemExit: with code 1, something needed is broken.
    """
    parser = ArgumentParser(prog="ssl-vision doctor", description=run.__doc__)
    parser.add_argument("--root", type=str, default="data", help="Directory of the data sets.")
    parser.add_argument("--runs_dir", type=str, default="runs", help="Directory for run directories.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    options = parser.parse_args(list(args))
    with Progress("looking", lines=False):
        found = {
            "software": list(software()),
            "machine": list(machine(Path(options.runs_dir))),
            "data": list(data_sets(Path(options.root).expanduser())),
            "logging": list(wandb()),
        }
    print(as_json(found) if options.json else as_page(found))
    if any(check.state == "broken" for checks in found.values() for check in checks):
        raise SystemExit(1)


def as_json(found: Mapping[str, Iterable[Check]]) -> str:
    """For programs."""
    rows = [{"group": group, **check._asdict()} for group, checks in found.items() for check in checks]
    return json.dumps(rows, indent=1)


def as_page(found: Mapping[str, Iterable[Check]]) -> str:
    """For people: a line for each thing, what is to be done below it, and a last line of what is broken."""
    width = max(len(check.name) for checks in found.values() for check in checks)
    lines, broken = [], []
    for group, checks in found.items():
        lines += [group]
        for check in checks:
            lines.append(f"  {check.state:<6}  {check.name:<{width}}  {check.found}")
            if check.advice:
                lines.append(f"{'':<{width + 12}}to do: {check.advice}")
            if check.state == "broken":
                broken.append(check.name)
        lines.append("")
    lines.append(f"broken: {', '.join(broken)}" if broken else "nothing needed is broken")
    return "\n".join(lines)
