"""The command ``ssl-vision doctor``."""

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
    """Check packages, devices, data sets and logging, and report how to fix problems.

    Raises:
        SystemExit: with code 1 if something required is broken.
    """
    parser = ArgumentParser(prog="ssl-vision doctor", description=run.__doc__)
    parser.add_argument("--root", type=str, default="data", help="Directory of the data sets.")
    parser.add_argument("--runs_dir", type=str, default="runs", help="Directory for run directories.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    options = parser.parse_args(list(args))
    with Progress("checking", lines=False):
        checks = {
            "software": list(software()),
            "machine": list(machine(Path(options.runs_dir))),
            "data": list(data_sets(Path(options.root).expanduser())),
            "logging": list(wandb()),
        }
    print(as_json(checks) if options.json else as_page(checks))
    if any(check.state == "broken" for group in checks.values() for check in group):
        raise SystemExit(1)


def as_json(checks: Mapping[str, Iterable[Check]]) -> str:
    """Format the checks of each group as JSON."""
    rows = [{"group": name, **check._asdict()} for name, group in checks.items() for check in group]
    return json.dumps(rows, indent=1)


def as_page(checks: Mapping[str, Iterable[Check]]) -> str:
    """Format the checks of each group as text: a line per check, its advice, and what is broken."""
    width = max(len(check.name) for group in checks.values() for check in group)
    lines, broken = [], []
    for name, group in checks.items():
        lines += [name]
        for check in group:
            lines.append(f"  {check.state:<6}  {check.name:<{width}}  {check.found}")
            if check.advice:
                lines.append(f"{'':<{width + 12}}to do: {check.advice}")
            if check.state == "broken":
                broken.append(check.name)
        lines.append("")
    lines.append(f"broken: {', '.join(broken)}" if broken else "nothing required is broken")
    return "\n".join(lines)
