"""``ssl-vision report``: an HTML report of one run, or a comparison of several."""

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from markupsafe import Markup
from torch import Tensor
from torchvision.utils import make_grid

from ssl_vision.cli.import_paths import add_allow_class, allowed_classes
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.data import ImageData
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.experiments.report import accuracies, curves, explorer, feature_charts, gallery
from ssl_vision.experiments.report.context import NEAR, ReportContext
from ssl_vision.experiments.report.page import Missing, macros, make_section, render
from ssl_vision.experiments.report.several_runs import comparison_page, flat
from ssl_vision.experiments.report.sprite_sheet import SpriteSheet, displayed
from ssl_vision.runs.config import as_yaml
from ssl_vision.runs.files import write_text
from ssl_vision.runs.registry import Run, find_runs, readable
from ssl_vision.tracking.wandb import log_later

_UPLOADED = 16
"""Number of images whose views are uploaded to W&B."""


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
            _log_media(context)
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
    opening = accuracies.summary(context, sheet)
    return render(run.name, sheet.style() + opening, sections)


def _configuration(run: Run) -> tuple[str, Markup]:
    """List every key with its value, and show config.yaml."""
    lead = "Settings of model, data and trainer can be passed to ssl-vision fit as --KEY VALUE."
    table = macros.table(["key", "value"], list(flat(run.config).items()), caption="Configuration")
    file = Markup('<pre tabindex="0">{}</pre>').format(as_yaml(run.config))
    return lead, macros.details("All keys", table) + macros.details("config.yaml", file)


def _log_media(context: ReportContext) -> None:
    """Upload the page, augmented views, nearest neighbours and the map of the embeddings.

    Pictures that require images or features that are missing are left out.
    """
    run = context.run
    log_later(run.folder, run.config, lambda wandb_run: wandb_run.log(_media(context)), command="report")


def _media(context: ReportContext) -> dict[str, Any]:
    import wandb

    page = wandb.Html(str(context.run.folder.report_file), inject=False)
    media: dict[str, Any] = {"report": page}
    makers: dict[str, Callable[[], Any]] = {
        "views": lambda: wandb.Image(_views(context)),
        "neighbours": lambda: wandb.Image(_neighbours(context)),
        "embedding_map": lambda: wandb.Table(**_map(context)),
    }
    for name, make in makers.items():
        with suppress(Missing):
            media[name] = make()
    return {f"media/{name}": item for name, item in media.items()}


def _views(context: ReportContext) -> Any:
    """Images of the first batch with their two views in the last epoch."""
    data = context.images()
    views = gallery.training_views(data, gallery.first_batch(data, _UPLOADED), max(0, context.run.epoch - 1))
    return _grid(torch.stack([*views], dim=1).flatten(0, 1), 2)


def _neighbours(context: ReportContext) -> Any:
    """Images of up to ten classes, each followed by its nearest neighbours."""
    view = context.feature_view()
    bank, shown = view.bank or view.images, gallery.queries(view.images)
    near = view.neighbours.index[shown, :NEAR]
    rows = [
        torch.cat([view.images.at(row[None]), bank.at(index)])
        for row, index in zip(torch.tensor(shown), near, strict=True)
    ]
    return _grid(torch.cat(rows), 1 + near.shape[1])


def _map(context: ReportContext) -> dict[str, Any]:
    """Columns and rows of the map: coordinates by PCA and t-SNE, and the class."""
    view, _, layouts = feature_charts.projected(context)
    points = torch.cat([torch.as_tensor(axes) for axes in layouts.values()], dim=1).tolist()
    classes = [view.name(label) for label in view.images.labels[view.shown].tolist()]
    rows = [[*point, name] for point, name in zip(points, classes, strict=True)]
    return {"columns": [*(f"{name} {axis}" for name in layouts for axis in "xy"), "class"], "data": rows}


def _grid(images: Tensor, columns: int) -> Any:
    """uint8 images (N, C, H, W) as one picture (H', W', 3)."""
    return make_grid(displayed(images), nrow=columns, padding=2, pad_value=255).permute(1, 2, 0).numpy()
