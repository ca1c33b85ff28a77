"""``ssl-vision report``: an HTML report of one run, or a comparison of several."""

import dataclasses
import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from ssl_vision.cli.import_paths import add_allow_class, allowed_classes
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.data import ImageData
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.experiments.report import (
    alignment_uniformity,
    comparison,
    configuration,
    confusion,
    curves,
    embedding_map,
    explorer,
    gallery,
    protocols,
    summary,
    views,
    weights,
)
from ssl_vision.experiments.report.context import ReportContext
from ssl_vision.experiments.report.page import Missing, Section, render
from ssl_vision.experiments.report.sprite_sheet import SpriteSheet
from ssl_vision.experiments.report.wandb_media import mirror_media
from ssl_vision.runs.config import below_home
from ssl_vision.runs.files import write_text
from ssl_vision.runs.registry import Run, find_runs, readable


def run(args: Sequence[str]) -> None:
    """Write an HTML report of the runs at or below the paths, as one file that works offline.

    The report of one run has all sections; features of images are read from the run directory or computed.
    The report of several runs compares their curves, results and settings, and that of two runs the weights
    of their negatives.

    Raises:
        InputError: A path contains no run, an option is invalid, or the report cannot be written.
    """
    parser = ArgumentParser(prog="ssl-vision report", description=run.__doc__)
    parser.add_argument("runs", nargs="+", type=str, help="Run directories, or directories of them.")
    parser.add_argument(
        "-o", "--output", type=str | None, default=None,
        help="Output file (default: report.html in the run directory; for several runs, in this directory).",
    )  # fmt: skip
    parser.add_argument(
        "--by",
        type=str | None,
        default=None,
        help="Key whose values are compared, for several runs (default: the key that differs).",
    )
    parser.add_argument("--embed", type=bool, default=True, help="Compute features that are not cached.")
    parser.add_argument("--cache", type=bool, default=True, help="Keep features in the run directory.")
    parser.add_argument(
        "--device", type=Literal["auto", "cpu", "cuda"], default="auto", help="Device of the networks."
    )
    parser.add_argument(
        "--data.root", type=str | None, default=None,
        help="Directory of the images, instead of the configured one; another user's run requires it.",
    )  # fmt: skip
    add_allow_class(parser)
    allow_class, options = allowed_classes(args), parser.parse_args(list(args))
    runs = find_runs(options.runs)
    if len(runs) > 1:
        runs = readable(runs, "report")
    page_options = {
        "embed": options.embed, "cache": options.cache, "device": options.device,
        "root": options.data.root, "allow_class": allow_class,
    }  # fmt: skip
    default = runs[0].folder.report_file if len(runs) == 1 else Path("report.html")
    output = Path(options.output) if options.output else default

    if len(runs) > 1:
        page = comparison_page(runs, options.by, **page_options)
    else:
        page = run_page(ReportContext(runs[0], **page_options))
    write_text(output, page)
    print(f"written to {output}")


def write(
    path: Path,
    *,
    data: object = None,
    embedded: FeatureExtractor | None = None,
    allow_class: Collection[str] = (),
) -> Path | None:
    """Write the report of a run into its directory at the end of ``fit`` or ``evaluate``.

    No features are computed. With ``--wandb_media`` the page and its pictures are uploaded. An error is
    reported in one line on stderr, as the run is complete without its report.

    Args:
        path: run directory.
        data: data module of the run.
        embedded: features of the run, if they were computed.
        allow_class: classes outside this package that the run may name.

    Returns:
        The file; None if it could not be written.
    """
    try:
        images = data if isinstance(data, ImageData) else None
        context = ReportContext(
            Run(path), data=images, embedded=embedded, embed=False, allow_class=allow_class
        )
        write_text(context.run.folder.report_file, run_page(context))
        if context.run.config.get("wandb_media") and context.run.folder.owned:
            mirror_media(context)
    except Exception as error:
        print(f"{path}: no report was written ({' '.join(str(error).split())})", file=sys.stderr)
        return None
    return context.run.folder.report_file


def run_page(context: ReportContext) -> str:
    """The report of a run, with every section or the reason why it is missing.

    Args:
        context: data of the run.

    Raises:
        InputError: The config of the run cannot be read, or Plotly is not installed.
    """
    run, sheet = context.run, SpriteSheet("image", side=explorer.SIDE)
    sections = [
        _section("curves", "Training curves", lambda: curves.section(run)),
        _section("plane", "Alignment and uniformity", lambda: alignment_uniformity.section(run)),
        _section("weights", "Gradient weight W", lambda: weights.section(run)),
        _section("protocols", "Test results by protocol", lambda: protocols.section(run)),
        _section("map", "Map of the embeddings", lambda: embedding_map.section(context, sheet)),
        _section("temperature", "What the temperature does here", lambda: explorer.section(context)),
        _section("neighbours", "Nearest neighbours", lambda: gallery.neighbours(context, sheet)),
        _section("negatives", "Similar images of other classes", lambda: gallery.negatives(context, sheet)),
        _section("confusion", "kNN confusion matrix", lambda: confusion.section(context)),
        _section("views", "Augmented views", lambda: views.section(context)),
        _section("configuration", "Configuration", lambda: configuration.section(run)),
    ]
    opening = summary.of_one(context, sheet)
    sections[-1] = dataclasses.replace(sections[-1], style=sheet.style())
    return render(run.name, opening, sections)


def comparison_page(runs: Sequence[Run], by: str | None = None, **options: Any) -> str:
    """The report that compares several runs; that of two runs shows where they weigh negatives differently.

    Args:
        runs: runs to compare.
        by: key whose values are compared.
        options: options of `ReportContext`, with which the images of two runs are embedded.

    Raises:
        InputError: The config of a run cannot be read, or Plotly is not installed.
    """
    names = _distinct_names(runs)
    sections = [
        _section("curves", "Training curves", lambda: curves.overlaid(runs, names)),
        _section("comparison", "Paired comparison", lambda: comparison.section(runs, by)),
        _section(
            "configuration", "Differences in configuration", lambda: configuration.differing(runs, names)
        ),
    ]
    if len(runs) == 2:
        title = "Where the runs weigh negatives differently"
        sections.insert(
            -1, _section("temperature", title, lambda: explorer.comparison(runs, names, **options))
        )
    subjects = list(dict.fromkeys(map(_subject, runs)))
    title = ", ".join(subjects) if len(subjects) <= 3 else f"{len(subjects)} settings"
    return render(f"{len(runs)} runs: {title}", summary.of_several(runs, names), sections)


def _section(key: str, title: str, make: Callable[[], Section]) -> Section:
    try:
        return make()
    except (Missing, InputError) as error:
        return Section(key, title, missing=str(error).replace(f"{Path.home()}{os.sep}", f"~{os.sep}"))


def _subject(run: Run) -> str:
    return f"{run.setting('objective')} on {run.setting('data')}"


def _distinct_names(runs: Sequence[Run]) -> list[str]:
    """The names of the runs, or their paths if two names are equal."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [below_home(str(run.folder.path)) for run in runs]
