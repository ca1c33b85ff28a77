"""Upload of the report and of its pictures to the W&B run that mirrors a run."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torchvision.utils import make_grid

from ssl_vision.data.loading.loader import Order
from ssl_vision.experiments.report.context import NEAR, ReportContext
from ssl_vision.experiments.report.embedding_map import projections
from ssl_vision.experiments.report.gallery import queries
from ssl_vision.experiments.report.page import Missing
from ssl_vision.experiments.report.sprite_sheet import displayed
from ssl_vision.experiments.report.views import training_views
from ssl_vision.metrics.rows import unit_rows
from ssl_vision.tracking.wandb import log_later

_IMAGES = 16


def mirror_media(context: ReportContext) -> None:
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
        "views": lambda: wandb.Image(_grid(*view_rows(context))),
        "neighbours": lambda: wandb.Image(_grid(*neighbour_rows(context))),
        "embedding_map": lambda: wandb.Table(**map_rows(context)),
    }
    for name, make in makers.items():
        with suppress(Missing):
            media[name] = make()
    return {f"media/{name}": item for name, item in media.items()}


def view_rows(context: ReportContext) -> tuple[Tensor, int]:
    """Images of the first batch with their two views in the last epoch, and the number of images in a row."""
    data = context.images()
    indices = Order(len(data.split("pretrain")), shuffle=True, seed=data.seed).rows()[:_IMAGES]
    if not len(indices):
        raise Missing("the pretraining split has no images")
    views = training_views(data, indices, max(0, context.run.epoch - 1))
    return torch.stack([*views], dim=1).flatten(0, 1), 2


def neighbour_rows(context: ReportContext) -> tuple[Tensor, int]:
    """Images of up to ten classes, each followed by its nearest neighbours, and the number in a row."""
    view = context.feature_view()
    bank = view.bank or view.images
    count = min(NEAR, view.neighbours.index.shape[1])
    rows = [
        torch.cat([view.images.at(torch.tensor([row])), bank.at(view.neighbours.index[row, :count])])
        for row in queries(view.images)
    ]
    return torch.cat(rows), 1 + count


def map_rows(context: ReportContext) -> dict[str, Any]:
    """Columns and rows of the map: coordinates by PCA and t-SNE, and the class."""
    view = context.feature_view()
    if len(view.shown) < 3:
        raise Missing("a map requires at least 3 images")
    layouts = projections(unit_rows(view.features["backbone"][view.shown]), seed=context.seed)
    columns = [f"{name} {axis}" for name in layouts for axis in "xy"]
    points = torch.cat([torch.as_tensor(axes) for axes in layouts.values()], dim=1).tolist()
    classes = [view.name(label) for label in view.images.labels[view.shown].tolist()]
    rows = [[*point, name] for point, name in zip(points, classes, strict=True)]
    return {"columns": [*columns, "class"], "data": rows}


def _grid(images: Tensor, columns: int) -> Any:
    """uint8 images (N, C, H, W) as one picture (H', W', 3)."""
    return make_grid(displayed(images), nrow=columns, padding=2, pad_value=255).permute(1, 2, 0).numpy()
