"""``ssl-vision report``: an HTML report of one run, or a comparison of several."""

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from markupsafe import Markup

from ssl_vision.cli.import_paths import add_allow_class, allowed_classes
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.data import ImageData
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.experiments.report import accuracies, curves, explorer, feature_charts, gallery
from ssl_vision.experiments.report.context import ReportContext
from ssl_vision.experiments.report.page import macros, make_section, render
from ssl_vision.experiments.report.several_runs import comparison_page, flat
from ssl_vision.experiments.report.sprite_sheet import SpriteSheet
from ssl_vision.runs.config import as_yaml
from ssl_vision.runs.files import write_text
from ssl_vision.runs.registry import Run, find_runs, readable
from ssl_vision.tracking.wandb import log_later


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

    No features are computed. With ``--wandb_media`` the page is uploaded. An error is reported in one line on
    stderr, as the run is complete without its report.

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
            _log_page(context)
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
    run, sheet, section = context.run, SpriteSheet("image", side=explorer.SIDE), make_section
    sections = [
        section("curves", "Training curves", lambda: curves.of_layers(run)),
        section("plane", "Alignment and uniformity", lambda: curves.alignment_uniformity(run)),
        section("weights", "Gradient weight W", lambda: curves.weights(run)),
        section("protocols", "Test results by protocol", lambda: accuracies.protocols(run)),
        section("map", "Map of the embeddings", lambda: feature_charts.embedding_map(context, sheet)),
        section("temperature", "What the temperature does here", lambda: explorer.section(context)),
        section("neighbours", "Nearest neighbours", lambda: gallery.neighbours(context, sheet)),
        section("negatives", "Similar images of other classes", lambda: gallery.negatives(context, sheet)),
        section("confusion", "kNN confusion matrix", lambda: feature_charts.confusion_matrix(context)),
        section("views", "Augmented views", lambda: gallery.views(context)),
        section("configuration", "Configuration", lambda: _configuration(run)),
    ]
    return render(run.name, sheet.style() + accuracies.summary(context), sections)


def _configuration(run: Run) -> tuple[str, Markup]:
    """List every key with its value, and show config.yaml."""
    lead = "Settings of model, data and trainer can be passed to ssl-vision fit as --KEY VALUE."
    table = macros.table(["key", "value"], list(flat(run.config).items()), caption="Configuration")
    file = Markup('<pre tabindex="0">{}</pre>').format(as_yaml(run.config))
    return lead, macros.details("All keys", table) + macros.details("config.yaml", file)


def _log_page(context: ReportContext) -> None:
    """Upload the page to W&B."""
    import wandb

    run = context.run
    page = wandb.Html(str(run.folder.report_file), inject=False)
    log_later(run.folder, run.config, lambda each: each.log({"media/report": page}), command="report")
