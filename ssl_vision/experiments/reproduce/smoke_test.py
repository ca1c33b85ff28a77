"""Results of a paper's scaled-down runs, in tables without the numbers of the paper."""

from collections.abc import Sequence
from typing import Any

from ssl_vision import tables
from ssl_vision.experiments.reproduce.paper import Paper, Table
from ssl_vision.experiments.reproduce.rendering import Result


def smoke_test_rows(paper: Paper, table: Table, results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for each metric of each run, with the settings that replace those of the paper."""
    return [
        {
            "paper": paper.name,
            "smoke_test_of_table": table.name,
            "run": result.run,
            "metric": result.metric.name,
            "unit": result.metric.unit,
            **{key: value for key, value in result.metric.fields.items() if key in ("protocol", "layer")},
            "value": result.mean,
            "half_width": result.half_width,
            "seeds": len(result.values),
            "settings": _settings(paper),
        }
        for result in _unique(results).values()
    ]


def smoke_test_markdown(paper: Paper, table: Table, results: Sequence[Result]) -> str:
    """A table with a line for each run and a column for each metric."""
    unique = _unique(results)
    lines = [["run", *table.metrics]]
    for run in dict.fromkeys(run for run, _ in unique):
        cells = (unique.get((run, metric)) for metric in table.metrics)
        lines.append([run, *("" if cell is None else cell.ours() for cell in cells)])
    title = (
        f"**Smoke test of table {table.name} of {paper.title}: not results of the paper.** The runs are "
        f"scaled down ({_settings(paper)}). They show that training and evaluation work, and their values "
        "are not comparable with those of the paper. Empty: not run."
    )
    return f"{title}\n\n{tables.as_markdown(lines, right=len(table.metrics))}\n"


def _unique(results: Sequence[Result]) -> dict[tuple[str, str], Result]:
    """The results of runs by run and metric, as several cells of a table may share a run."""
    return {(result.run, result.metric.name): result for result in results if result.run}


def _settings(paper: Paper) -> str:
    return paper.small.says if paper.small else ""
