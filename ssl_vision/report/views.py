"""Two augmented views of a dozen images, as the model saw them."""

import torch
from torch import Tensor

from ssl_vision.data import ImageData
from ssl_vision.data.augment.views import Views
from ssl_vision.data.loading.loader import Order
from ssl_vision.report.material import ReportContext
from ssl_vision.report.page import Missing, Section
from ssl_vision.report.sheet import SpriteSheet

_IMAGES = 12
_SIDE = 96


def section(material: ReportContext) -> Section:
    """Images of the first batch, beside them their views in the first epoch and in the last.

    Raises:
        Missing: the images cannot be read.
    """
    data = material.images()
    epochs = max(1, material.run.epoch)
    shown = list(dict.fromkeys((0, epochs - 1)))
    indices = Order(len(data.split("pretrain")), shuffle=True, seed=data.seed).rows()[:_IMAGES]
    if not len(indices):
        raise Missing("the split that is pretrained on has no images")
    originals, sheet = SpriteSheet("original", side=_SIDE), SpriteSheet("view", side=_SIDE)
    images = data.split("pretrain").at(indices)
    originals.add(images)
    places = [list(sheet.add(views)) for epoch in shown for views in made(data, indices, epoch)]
    cards = []
    for i, index in enumerate(indices.tolist()):
        tiles = "".join(
            sheet.tile(place[i], f"view {1 + number % 2} of image {index} in epoch {shown[number // 2] + 1}")
            for number, place in enumerate(places)
        )
        original = originals.tile(i, f"image {index} as it is in the data", more="large")
        cards.append(f'<li>{original}<span class="pair">{tiles}</span></li>')
    rows = " and ".join(f"epoch {epoch + 1}" for epoch in shown)
    lead = (
        f"Left the image, right the two views that training makes of it in {rows}"
        f"{', one row each' if len(shown) > 1 else ''}. A positive pair must still show the same thing: "
        "where a view has lost it, the crop or the colours are too strong."
    )
    content = f'<ul class="cards">{"".join(cards)}</ul>'
    return Section("views", "Augmented views", lead, content, originals.style() + sheet.style())


def made(data: ImageData, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
    """(N, 3, S, S) uint8: both views of images of the split that is trained on, in an epoch from 0."""
    images = data.split("pretrain").at(indices)
    views = data.views(images, indices, seed=data.seed, epoch=epoch)
    first, second = pixels(views, data.views).chunk(2)
    return first, second


def pixels(normalised: Tensor, views: Views) -> Tensor:
    """(N, 3, S, S) uint8 of images that are normalised as the views are."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (views.mean, views.std))
    return ((normalised * std + mean) * 255).round_().clamp_(0, 255).to(torch.uint8)
