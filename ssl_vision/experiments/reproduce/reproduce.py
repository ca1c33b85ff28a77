"""``ssl-vision reproduce``: run the experiments of a paper's tables and compare with its numbers."""

import itertools
import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from jsonargparse.typing import NonNegativeInt, PositiveInt

from ssl_vision.cli.fit_command import checked
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.cli.recipes import CONFIGS, find_recipe, settings, with_recipes
from ssl_vision.errors import InputError
from ssl_vision.experiments.reproduce.paper import Options, Paper, TableCell, in_order, read_paper
from ssl_vision.experiments.reproduce.paper_tables import write_table
from ssl_vision.experiments.sweeps.launcher import slots
from ssl_vision.experiments.sweeps.trials import Plan, Trial, yaml_value
from ssl_vision.optional import needed
from ssl_vision.runs.config import differences, listed
from ssl_vision.runs.folder import run_path

_SETTLED = (
    "name", "runs_dir", "seed_everything", "ckpt_path", "overwrite", "trainer.devices", "trainer.num_nodes",
)  # fmt: skip


@dataclass(frozen=True)
class Extent:
    """The runs of each cell.

    Args:
        budget: run the paper's runs, or a smoke test of scaled-down runs, which takes minutes.
        seeds: number of seeds; by default 3, or 1 with --budget small.
        first_seed: first seed, to share the seeds among machines.
        workers: runs at a time; by default 1, or one for each core with --budget small.
        runs_dir: directory in which the paper gets its own directory.
    """

    budget: Literal["full", "small"] = "full"
    seeds: PositiveInt | None = None
    first_seed: NonNegativeInt = 0
    workers: PositiveInt | None = None
    runs_dir: str = "runs"


@dataclass(frozen=True)
class PaperPlan(Plan):
    """The sweep over some cells of a paper and over seeds."""

    on_cpu: bool = False
    """Evaluate on the CPU."""
    adopts_runs: ClassVar[bool] = True

    def trial(self, params: Mapping[str, Any]) -> Trial:
        """Create the trial of a cell and a seed, whose directory is named after the cell."""
        trial = super().trial(params)
        name = f"{trial.parameters['settings']['name']}-s{trial.parameters['seed_everything']}"
        return replace(trial, name=name, varied={})

    def train_command(self, trial: Trial) -> list[str]:
        """Return the command that trains a run, or continues it.

        It uses one device, because the batch size is that of each device.
        """
        options = {**trial.parameters["settings"], "name": trial.name}
        quiet = ["--report=false", "--trainer.devices=1", "--trainer.enable_progress_bar=false"]
        place = [f"--seed_everything={trial.parameters['seed_everything']}", f"--runs_dir={self.folder}"]
        words = [f"--{key}={yaml_value(value)}" for key, value in options.items()]
        return [sys.executable, "-m", "ssl_vision", "fit", *quiet, *words, *place, "--ckpt_path=last"]

    def evaluate_command(self, trial: Trial, protocols: Sequence[str], *, baselines: bool) -> list[str]:
        """Return the command that evaluates a run; baselines are not part of the tables."""
        command = super().evaluate_command(trial, protocols, baselines=False)
        return [*command, *(["--device=cpu"] if self.on_cpu else [])]

    def changes(self, before: Plan, begun: Collection[str]) -> list[str]:
        """Return nothing, as the options of each run are compared with those of its last attempt.

        Raises:
            InputError: the directory contains another sweep.
        """
        if before.file.description != self.file.description:
            raise InputError(f"{self.folder} contains a sweep: choose another --runs_dir")
        return []


def run(args: Sequence[str]) -> None:
    """Train the runs behind a paper's tables, evaluate them by its protocol, and write the tables.

    The runs are the trials of a sweep: the same command continues after an interruption, and several
    processes may share them. Run directories and tables are written to RUNS_DIR/PAPER/, or to
    RUNS_DIR/PAPER-small/. Options after ``--`` are passed to every ``ssl-vision fit``:
    ``-- --data.root /data --trainer.precision bf16-mixed``.

    Raises:
        InputError: the paper file is invalid, a table or cell is unknown, or options contradict the file or
            an earlier run.
    """
    own_args, extra = _split(args)
    options = _parser().parse_args(own_args)
    small = options.budget == "small"
    paper = read_paper(find_recipe(options.paper, CONFIGS / "paper", "paper file"), small=small)
    for name in options.table or ():
        if name not in paper.tables:
            raise InputError(f"--table {name}: no such table; {paper.title} has {', '.join(paper.tables)}")
    tables = [paper.tables[name] for name in dict.fromkeys(options.table or paper.tables)]
    cells = _selected([cell for table in tables for cell in table.cells], options.cells)
    seeds = range(options.first_seed, options.first_seed + (options.seeds or (1 if small else 3)))
    folder = run_path(options.runs_dir, f"{paper.name}-small" if small else paper.name)
    plan = plan_of(paper, cells, seeds, folder, options_of(extra))
    needed("optuna", extra="sweep")
    from ssl_vision.experiments.sweeps.study import SweepStudy
    from ssl_vision.experiments.sweeps.worker import Worker

    for trial in plan.trials[: len(plan.trials) // len(seeds)]:
        words = plan.train_command(trial)
        checked(words[words.index("fit") + 1 :])
    if options.dry_run and not folder.exists():
        _list(plan, {}, [])
        return
    study = SweepStudy(plan)
    _check_options(plan, study.begun())
    workers = options.workers or (os.cpu_count() or 1 if small else 1)
    worker = Worker(study, slots(workers), waits=False)
    if options.dry_run:
        _list(plan, {record.trial.name: record.state for record in study.records()}, worker.unevaluated())
        return
    print("{}: {} of {} runs are already done".format(folder, *study.left()), flush=True)
    worker.work()
    for record in study.records():
        if record.state == "running":
            print(f"{record.trial.name}: left to another process, which is training it")
    for table in tables:
        print(f"\n{write_table(paper, table, seeds, folder, shown=cells)}")
    print(f"written to {folder}/{'smoke_test_table*.md' if small else 'table*.md, .csv and .json'}")
    worker.conclude()


def plan_of(
    paper: Paper, cells: Sequence[TableCell], seeds: Sequence[int], folder: Path, extra: Options
) -> PaperPlan:
    """Return the sweep over the cells with runs, and over the seeds.

    Args:
        paper: the paper.
        cells: cells of its tables.
        seeds: seeds of each cell.
        folder: directory of the paper's runs.
        extra: further options of every run.

    Raises:
        InputError: no cell has a run, or the paper file sets one of the extra options.
    """
    settings: dict[str, Options] = {}
    for cell in (cell for cell in cells if cell.name):
        for key in sorted(extra.keys() & cell.options.keys()):
            raise InputError(f"--{key} {extra[key]}: the paper file sets this option to {cell.options[key]}")
        settings[cell.name] = {"name": cell.name, **in_order(cell.options | extra)}
    if not settings:
        raise InputError("none of the cells can be run; the paper file states the reasons")
    parameters = {"seed_everything": list(seeds), "settings": list(settings.values())}
    content = {
        "description": f"ssl-vision reproduce {paper.name}",
        "method": "grid",
        "metric": {"name": "train/loss", "goal": "minimize"},
        "parameters": {name: {"values": values} for name, values in parameters.items()},
        "command": ["ssl-vision", "fit"],
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return PaperPlan(folder, text, evaluate=paper.protocols, on_cpu=bool(paper.scaled_down))


def _check_options(plan: PaperPlan, begun: Mapping[str, Trial]) -> None:
    """Compare the options with those of earlier runs in the directory.

    Raises:
        InputError: an option that changes the result differs.
    """
    for trial in plan.trials:
        run, before = plan.folder / trial.name, begun.get(trial.name)
        if before is None or not (run / "config.yaml").exists():
            continue
        if changed := differences(_recorded(before), _recorded(trial)):
            raise InputError(
                f"{run} contains a run with a different config ({listed(changed)}): use its options or "
                "another --runs_dir, or delete it"
            )


def _recorded(trial: Trial) -> dict[str, Any]:
    """Return the options of a run that its name does not state, by their names in a config."""
    options = {key: value for key, value in trial.parameters["settings"].items() if key != "config"}
    options["epochs"] = options.pop("trainer.max_epochs")  # which may differ between parts of one run
    return {key.replace("data.", "data.init_args.", 1): value for key, value in options.items()}


def _list(plan: PaperPlan, states: Mapping[str, str], unevaluated: Collection[str]) -> None:
    """Print the runs with their states and the remaining commands."""
    done = 0
    for trial in plan.trials:
        state = states.get(trial.name, "waiting")
        commands = [plan.evaluate_command(trial, plan.evaluate, baselines=False)]
        if state != "finished":
            commands.insert(0, plan.train_command(trial))
        elif trial.name not in unevaluated:
            state, commands, done = "done", [], done + 1
        print(f"{trial.name}: {state}")
        for command in commands:
            print(f"    ssl-vision {shlex.join(command[3:])}")
    print(f"{len(plan.trials)} runs, {done} done")


def options_of(args: Sequence[str]) -> Options:
    """Return options for every ``fit``, of which ``--config FILE`` gives those of a file.

    Raises:
        InputError: an argument is no option, a file cannot be read, or ``reproduce`` sets the option itself.
    """
    if args and not args[0].startswith("--"):
        raise InputError(f"after --: expected an option of fit, got {args[0]}")
    options = {key: value for key, value in settings(with_recipes(args)) if key not in ("config", "c")}
    for key in options:
        if key in _SETTLED:
            raise InputError(f"after --: --{key} is set by reproduce")
    return options


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="ssl-vision reproduce", description=run.__doc__)
    parser.add_argument("paper", help="Paper file, or the name of one of configs/paper/, such as macl.")
    repeated: dict[str, Any] = {"action": "append", "type": str}
    parser.add_argument("--table", help="Table of the file; may be repeated (default: all).", **repeated)
    cells = "Cells by row and column, such as 'MACL-a,256', or by a row, column or group of columns; may be "
    parser.add_argument("--cells", help=f"{cells}repeated (default: all).", **repeated)
    parser.add_class_arguments(Extent)
    listing = "List the runs, their state and the remaining commands."
    parser.add_argument("--dry_run", "--dry-run", action="store_true", help=listing)
    return parser


def _split(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the options of this command from those after ``--``."""
    own_args = list(itertools.takewhile(lambda arg: arg != "--", args))
    return own_args, list(args[len(own_args) + 1 :])


def _selected(every: Sequence[TableCell], chosen: Sequence[str] | None) -> list[TableCell]:
    """Select the cells that match all comma-separated parts of any choice.

    Raises:
        InputError: a choice matches no cell.
    """
    if not chosen:
        return list(every)
    selected: list[TableCell] = []
    for choice in chosen:
        parts = {part.strip() for part in choice.split(",")}
        matches = [cell for cell in every if parts <= {cell.row, cell.column.name, cell.column.group}]
        if not matches:
            known = (name for cell in every for name in (cell.row, cell.column.name, cell.column.group))
            raise InputError(f"--cells {choice}: no such cell; name {', '.join(dict.fromkeys(known))}")
        selected += matches
    return [cell for cell in every if cell in selected]
