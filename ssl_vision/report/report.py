"""``ssl-vision report``: a page about a run, or about several beside each other."""

import dataclasses
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

from ssl_vision.cli.classes import add_allow_class, allowed_classes
from ssl_vision.cli.parser import OneLineErrors
from ssl_vision.data import ImageData
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.report import (
    comparison,
    configuration,
    confusion,
    costs,
    curves,
    embedding_map,
    gallery,
    plane,
    protocols,
    spectrum,
    summary,
    views,
    weights,
)
from ssl_vision.report.material import ReportContext
from ssl_vision.report.page import Missing, Section, missing, render
from ssl_vision.report.sheet import SpriteSheet
from ssl_vision.runs.atomic_files import atomic_write
from ssl_vision.runs.registry import Run, find_runs, readable

_SIDE = 64


def run(args: Sequence[str]) -> None:
    """Writes a page about the runs at or below the paths: one file, to be opened in any browser, offline.

    Of one run it shows all that there is, and takes the features of its images from the run folder or makes
    them; of several, what tells them apart.

    Raises:
        InputError: a path without a run, a wrong option, or a page that cannot be written.
    """
    parser = OneLineErrors(prog="ssl-vision report", description=run.__doc__)
    parser.add_argument("runs", nargs="+", type=str, help="Run folders, or folders of run folders.")
    parser.add_argument(
        "-o", "--output", type=str | None, default=None,
        help="The page; else report.html in the run folder, of several runs in this folder.",
    )  # fmt: skip
    parser.add_argument(
        "--by", type=str | None, default=None, help="Of several: the key that is compared, else what differs."
    )
    parser.add_argument("--embed", type=bool, default=True, help="Make features where they are not kept.")
    parser.add_argument("--cache", type=bool, default=True, help="Keep features in the run folder.")
    parser.add_argument("--device", type=Literal["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--data.root", type=str | None, default=None,
        help="Folder of one run's images, instead of the one in its config; another user's run needs it.",
    )  # fmt: skip
    add_allow_class(parser)
    allowed, options = allowed_classes(args), parser.parse_args(list(args))
    found = find_runs(options.runs)
    if len(found) > 1:
        found = readable(found, "report")
    if len(found) == 1:
        found[0].folder.check_links()
        material = ReportContext(
            found[0], embed=options.embed, cache=options.cache, device=options.device,
            root=options.data.root, allowed=allowed,
        )  # fmt: skip
        output, page = found[0].folder.report_file, of_one(material)
    else:
        output, page = Path("report.html"), of_several(found, options.by)
    output = Path(options.output) if options.output else output
    _write(output, page)
    print(f"written to {output}")


def write(
    path: Path,
    *,
    data: object = None,
    embedded: FeatureExtractor | None = None,
    allowed: Collection[str] = (),
) -> None:
    """Writes the page of a run into its folder, at the end of what has made the run or its features.

    Nothing is embedded for it. What goes wrong is a line on stderr: the run is whole without its page.

    Args:
        path: the run folder.
        data: its data module.
        embedded: its features, if they were made.
        allowed: classes outside this package that the run may name.
    """
    try:
        images = data if isinstance(data, ImageData) else None
        material = ReportContext(Run(path), data=images, embedded=embedded, embed=False, allowed=allowed)
        _write(material.run.folder.report_file, of_one(material))
    except Exception as error:
        print(f"{path}: no page was written ({' '.join(str(error).split())})", file=sys.stderr)


def of_one(material: ReportContext) -> str:
    """The page of a run: every section, or why it is not there.

    Raises:
        InputError: the run's config cannot be read, or Plotly is not installed.
    """
    own, sheet = material.run, SpriteSheet("image", side=_SIDE)
    sections = [
        _made("curves", "Curves", lambda: curves.section(own)),
        _made("plane", "Alignment and uniformity", lambda: plane.section(own)),
        _made("weights", "Gradient weight W", lambda: weights.section(own)),
        _made("protocols", "Evaluation", lambda: protocols.section(own)),
        _made("map", "Map of the embeddings", lambda: embedding_map.section(material, sheet)),
        _made("neighbours", "Nearest neighbours", lambda: gallery.neighbours(material, sheet)),
        _made("negatives", "Most confusing negatives", lambda: gallery.negatives(material, sheet)),
        _made("confusion", "Confusion of kNN", lambda: confusion.section(material)),
        _made("spectrum", "Spectrum of the features", lambda: spectrum.section(material)),
        _made("views", "Augmented views", lambda: views.section(material)),
        _made("costs", "Time and memory", lambda: costs.section(own)),
        _made("configuration", "Configuration", lambda: configuration.section(own)),
    ]
    pictures = dataclasses.replace(sections[-1], style=sheet.style())
    return render(f"{own.name}: {_subject(own)}", summary.of_one(own), [*sections[:-1], pictures])


def of_several(runs: Sequence[Run], by: str | None = None) -> str:
    """The page of several runs.

    Raises:
        InputError: a run's config cannot be read, or Plotly is not installed.
    """
    names = _told_apart(runs)
    sections = [
        _made("curves", "Curves", lambda: curves.overlaid(runs, names)),
        _made("comparison", "Paired comparison", lambda: comparison.section(runs, by)),
        _made("configuration", "Differences in configuration", lambda: configuration.differing(runs, names)),
    ]
    subjects = list(dict.fromkeys(_subject(own) for own in runs))
    what = ", ".join(subjects) if len(subjects) <= 3 else f"{len(subjects)} settings"
    return render(f"{len(runs)} runs: {what}", summary.of_several(runs, names), sections)


def _made(key: str, title: str, make: Callable[[], Section]) -> Section:
    try:
        return make()
    except (Missing, InputError) as error:
        return missing(key, title, str(error))


def _subject(own: Run) -> str:
    return f"{own.setting('objective')} on {own.setting('data')}"


def _told_apart(runs: Sequence[Run]) -> list[str]:
    """The runs' names; where two are equal, their paths."""
    names = [own.name for own in runs]
    return names if len(set(names)) == len(names) else [str(own.folder.path) for own in runs]


def _write(output: Path, page: str) -> None:
    with atomic_write(output) as partial:
        partial.write_text(page, encoding="utf-8")
