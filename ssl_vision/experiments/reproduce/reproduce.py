"""``ssl-vision reproduce``: run the experiments of a paper's tables and compare with its numbers."""

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jsonargparse.typing import NonNegativeInt, PositiveInt

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.cli.recipes import CONFIGS, find_recipe
from ssl_vision.errors import InputError, check
from ssl_vision.experiments.reproduce.paper import Paper, Table, TableCell, extended
from ssl_vision.experiments.reproduce.paper_file import read_paper
from ssl_vision.experiments.reproduce.paper_run import PaperRun, options_of, seconds_left
from ssl_vision.experiments.reproduce.rendering import Result, as_json, as_latex, as_markdown, as_rows
from ssl_vision.experiments.reproduce.smoke_test import smoke_test_markdown, smoke_test_rows
from ssl_vision.experiments.reproduce.training import PaperRunner, time_text
from ssl_vision.experiments.sweeps.runner import slots
from ssl_vision.runs.files import write_text
from ssl_vision.tables import as_csv

_MOST_SEEDS = 1000


def run(args: Sequence[str]) -> None:
    """Train the runs behind a paper's tables, evaluate them by its protocol, and write the tables.

    The same command continues after an interruption, and several processes may run at the same time. Finished
    runs are not run again, interrupted runs resume, and a run that another process is training is left to it.
    Run directories and tables are written to RUNS_DIR/PAPER/, or to RUNS_DIR/PAPER-small/. Options after
    ``--`` are passed to every ``ssl-vision fit``: ``-- --data.root /data --trainer.precision bf16-mixed``.

    Raises:
        InputError: the paper file is invalid, a table or cell is unknown, or options contradict the file.
    """
    own_args, extra = _split(args)
    options = _parser().parse_args(own_args)
    check("--seeds", options.seeds, at_most=_MOST_SEEDS)
    small = options.budget == "small"
    paper = read_paper(find_recipe(options.paper, CONFIGS / "paper", "paper file"), small=small)
    tables = [paper.tables[name] for name in _tables(paper, options.table)]
    every = extended([cell for table in tables for cell in table.cells], options_of(extra))
    cells = _selected(every, options.cells)
    place = Path(options.runs_dir).expanduser() / (f"{paper.name}-small" if small else paper.name)
    seeds = range(options.first_seed, options.first_seed + (options.seeds or (1 if small else 3)))
    runs = {run.name: run for run in _runs(cells, seeds, place, paper)}
    for each in _runs(every, seeds, place, paper):
        each.check()
    if options.dry_run:
        all_cells = [cell for table in paper.tables.values() for cell in table.cells]
        _list(list(runs.values()), _runs(all_cells, seeds, place, paper))
        return
    workers = options.workers or (os.cpu_count() or 1 if small else 1)
    failed = _train(list(runs.values()), workers)
    chosen = {(cell.table, cell.row, str(cell.column)) for cell in cells}
    for table in tables:
        results = _results(paper, table, seeds, place)
        _write(paper, table, results, place)
        shown = [r for r in results if (table.name, r.row, str(r.column)) in chosen]
        print(f"\n{(smoke_test_markdown if small else as_markdown)(paper, table, shown)}")
    files = "smoke_test_table*.md, .csv" if small else "table*.md, .tex, .csv"
    print(f"written to {place}/{files} and .json")
    if failed:
        print(
            f"ssl-vision reproduce: {failed} of {len(runs)} runs failed and are missing from the tables",
            file=sys.stderr,
        )
        raise SystemExit(1)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="ssl-vision reproduce", description=run.__doc__)
    parser.add_argument("paper", help="Paper file, or the name of one of configs/paper/, such as macl.")
    parser.add_argument(
        "--table", action="append", type=str, help="Table of the file; may be repeated (default: all)."
    )
    parser.add_argument(
        "--cells",
        action="append",
        type=str,
        help="Cells by row and column, such as 'MACL-a,256', or by a row, column or group of columns; may be "
        "repeated (default: all).",
    )
    parser.add_argument(
        "--budget",
        type=Literal["full", "small"],
        default="full",
        help="Run the paper's runs, or a smoke test of scaled-down runs, which takes minutes.",
    )
    parser.add_argument(
        "--seeds",
        type=PositiveInt | None,
        default=None,
        help="Number of seeds (default: 3, or 1 with --budget small).",
    )
    parser.add_argument(
        "--first_seed", type=NonNegativeInt, default=0, help="First seed, to share the seeds among machines."
    )
    parser.add_argument(
        "--workers",
        type=PositiveInt | None,
        default=None,
        help="Runs at a time (default: 1, or one for each core with --budget small).",
    )
    parser.add_argument(
        "--runs_dir", type=str, default="runs", help="Directory in which the paper gets its own directory."
    )
    parser.add_argument(
        "--dry_run",
        "--dry-run",
        action="store_true",
        help="List the runs, their state and the remaining commands.",
    )
    return parser


def _split(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the options of this command from those after ``--``.

    Raises:
        InputError: an option of ``fit`` precedes ``--``.
    """
    args = list(args)
    separator = args.index("--") if "--" in args else len(args)
    own_args, extra = args[:separator], args[separator + 1 :]
    if misplaced := next(
        (arg for arg in own_args if arg.startswith(("--data.", "--model.", "--trainer."))), ""
    ):
        raise InputError(f"{misplaced} is an option of fit: move it to the end, after --")
    return own_args, extra


def _tables(paper: Paper, names: Sequence[str] | None) -> list[str]:
    for name in names or ():
        if name not in paper.tables:
            raise InputError(f"--table {name}: no such table; {paper.title} has {', '.join(paper.tables)}")
    return list(dict.fromkeys(names or paper.tables))


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
            rows = dict.fromkeys(cell.row for cell in every)
            columns = dict.fromkeys(cell.column.name for cell in every)
            groups = dict.fromkeys(cell.column.group for cell in every)
            raise InputError(
                f"--cells {choice}: no such cell; the rows are {', '.join(rows)}, the columns "
                f"{', '.join(columns)}, and the groups {', '.join(groups)}"
            )
        selected += matches
    return [cell for cell in every if cell in selected]


def _runs(cells: Sequence[TableCell], seeds: range, place: Path, paper: Paper) -> list[PaperRun]:
    return [PaperRun(cell, seed, place, paper) for seed in seeds for cell in cells if cell.name]


def _list(runs: Sequence[PaperRun], every: Sequence[PaperRun]) -> None:
    """Print the list of ``--dry_run``."""
    left = seconds_left(runs, every)
    for paper_run in runs:
        seconds = left[paper_run.name]
        duration = "unknown" if seconds is None else time_text(seconds)
        print(f"{paper_run.name}: {paper_run.state}; training left: {duration}")
        for command in paper_run.missing():
            print(f"    ssl-vision {shlex.join(command)}")
    estimated = [seconds for seconds in left.values() if seconds is not None]
    done = sum(paper_run.state == "done" for paper_run in runs)
    unknown = len(left) - len(estimated)
    total = [time_text(sum(estimated))] if estimated else []
    total += [f"unknown for {unknown} without a finished epoch on the same images"] if unknown else []
    print(f"{len(runs)} runs, {done} done; training left, one run after the other: {'; '.join(total)}")


def _train(runs: Sequence[PaperRun], workers: int) -> int:
    """Run what is missing, print a line for each run, and return the number of failures."""
    done = sum(each.state == "done" for each in runs)
    if done:
        print(f"{done} of {len(runs)} runs are already done")
    runner = PaperRunner(runs, slots(workers=workers, per_gpu=None))
    if number := runner.run():
        print(f"{signal.Signals(number).name}: repeat the command to continue", file=sys.stderr)
        raise SystemExit(128 + number)
    return runner.failed


def _results(paper: Paper, table: Table, seeds: range, place: Path) -> list[Result]:
    """Collect the results of all cells of the table, including those that were not requested."""
    results = []
    for cell in table.cells:
        runs = _runs([cell], seeds, place, paper)
        for name, published in cell.published.items():
            metric = paper.metrics[name]
            values = tuple(value for each in runs if (value := each.value(metric)) is not None)
            results.append(Result(cell.row, cell.column, metric, published, values, cell.reason, cell.name))
    return results


def _write(paper: Paper, table: Table, results: Sequence[Result], place: Path) -> None:
    if paper.small:
        name, rows = f"smoke_test_table{table.name}", smoke_test_rows(paper, table, results)
        texts = {"md": smoke_test_markdown(paper, table, results)}
    else:
        name, rows = f"table{table.name}", as_rows(paper, table, results)
        texts = {"md": as_markdown(paper, table, results), "tex": as_latex(paper, table, results)}
    for suffix, text in (texts | {"csv": as_csv(rows), "json": as_json(rows)}).items():
        write_text(place / f"{name}.{suffix}", text)
