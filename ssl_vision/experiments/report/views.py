"""Two augmented views of a dozen images, as in training."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_vision.data import ImageData, Views
from ssl_vision.data.loading.loader import Order
from ssl_vision.experiments.report.context import ReportContext
from ssl_vision.experiments.report.markup import macros
from ssl_vision.experiments.report.page import Missing, Section
from ssl_vision.experiments.report.sprite_sheet import SpriteSheet

_IMAGES = 12
_SIDE = 96


def section(context: ReportContext) -> Section:
    """Show images of the first batch with their views in the first and the last epoch.

    Raises:
        Missing: The images cannot be read.
    """
    data = context.images()
    epochs = max(1, context.run.epoch)
    shown = list(dict.fromkeys((0, epochs - 1)))
    indices = Order(len(data.split("pretrain")), shuffle=True, seed=data.seed).rows()[:_IMAGES]
    if not len(indices):
        raise Missing("the pretraining split has no images")
    originals, sheet = SpriteSheet("original", side=_SIDE), SpriteSheet("view", side=_SIDE)
    images = data.split("pretrain").at(indices)
    originals.add(images)
    both = [views for epoch in shown for views in training_views(data, indices, epoch)]
    side = max(views.shape[-1] for views in both)  # progressive resizing changes it
    places = [list(sheet.add(F.interpolate(views, size=side))) for views in both]
    content = []
    for i, index in enumerate(indices.tolist()):
        tiles = [
            sheet.tile(place[i], f"view {1 + number % 2} of image {index} in epoch {shown[number // 2] + 1}")
            for number, place in enumerate(places)
        ]
        original = originals.tile(i, f"image {index} without augmentation")
        content.append({"original": original, "images": tiles, "caption": []})
    rows = " and ".join(f"epoch {epoch + 1}" for epoch in shown)
    each = ", one row for each epoch" if len(shown) > 1 else ""
    lead = (
        f"Each image is followed by its two views in {rows}{each}. "
        "Both views must still show the same object. If a view has lost it, the crops or the colour changes "
        "are too strong."
    )
    return Section("views", "Augmented views", lead, macros.cards(content), originals.style() + sheet.style())


def training_views(data: ImageData, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
    """Both views, uint8 (N, 3, S, S), of images of the pretraining split in an epoch from 0."""
    images, views = data.split("pretrain").at(indices), data.training_views(epoch)
    first, second = pixels(views(images, indices, seed=data.seed, epoch=epoch), views).chunk(2)
    return first, second


def pixels(normalised: Tensor, views: Views) -> Tensor:
    """Undo the normalisation of views; returns uint8 images, shape (N, 3, S, S)."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (views.mean, views.std))
    return ((normalised * std + mean) * 255).round_().clamp_(0, 255).to(torch.uint8)
