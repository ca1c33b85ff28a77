"""Small images combined into one picture in the CSS of the page."""

import base64
import io
import math

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ssl_vision.experiments.report.page import macros

COLUMNS = 32
"""Number of images in a row."""

_LOSSLESS = 2**18
"""Largest number of pixels of a sheet that is stored without loss."""


class SpriteSheet:
    """Images of one size in a grid, each displayed as a part of the whole.

    Args:
        name: CSS class of the images.
        side: longest side in pixels; larger images are shrunk.
    """

    def __init__(self, name: str, *, side: int) -> None:
        self.name, self.side = name, side
        self._tiles: list[Tensor] = []
        self._count = 0

    def add(self, images: Tensor) -> range:
        """Add uint8 images, shape (N, C, H, W), the same size in all calls; returns their places.

        Other images than RGB show their first three channels, or the first one if they have fewer.
        """
        images = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
        size = images.shape[-2:]
        if max(size) > self.side:
            shrunk = [max(1, round(length * self.side / max(size))) for length in size]
            pixels = F.interpolate(images.float(), size=shrunk, mode="bilinear", antialias=True)
            images = pixels.round_().clamp_(0, 255).to(torch.uint8)
        self._tiles.append(images.cpu())
        start, self._count = self._count, self._count + len(images)
        return range(start, self._count)

    @property
    def rows(self) -> int:
        """Number of rows of images, at least two."""
        return max(2, math.ceil(self._count / COLUMNS))

    def tile(self, place: int, about: str, *, classes: str = "") -> Markup:
        """An element that displays one image.

        Args:
            place: place of the image in the sheet.
            about: text alternative.
            classes: further CSS classes.
        """
        return macros.tile(f"{self.name} {classes}", about, place)

    def style(self) -> Markup:
        """CSS with the picture, as PNG if it is small and as WebP otherwise; empty without images."""
        if not self._tiles:
            return Markup()
        tiles = torch.cat(self._tiles)
        height, width = tiles.shape[-2:]
        padded = torch.zeros(self.rows * COLUMNS, 3, height, width, dtype=torch.uint8)
        padded[: len(tiles)] = tiles
        grid = padded.view(self.rows, COLUMNS, 3, height, width).permute(0, 3, 1, 4, 2)
        picture = Image.fromarray(grid.reshape(self.rows * height, COLUMNS * width, 3).numpy())
        buffer, kind = io.BytesIO(), "png" if picture.width * picture.height <= _LOSSLESS else "webp"
        picture.save(buffer, format=kind, **({"optimize": True} if kind == "png" else {"quality": 82}))
        content = base64.b64encode(buffer.getvalue()).decode()
        return Markup(
            f"<style>.{self.name}{{background-image:url(data:image/{kind};base64,{content});"
            f"aspect-ratio:{width}/{height};--columns:{COLUMNS};--rows:{self.rows}}}</style>"
        )
