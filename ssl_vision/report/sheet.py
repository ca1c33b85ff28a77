"""Many small images as one picture in the page's style."""

import base64
import io
import math

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ssl_vision.report.markup import text

COLUMNS = 32
"""Images in a row."""

_LOSSLESS = 2**18
"""Pixels up to which a sheet is kept to the bit."""


class SpriteSheet:
    """Images of one size side by side, each shown as a part of the whole.

    Args:
        name: CSS class of its images.
        side: images larger than this, pixels, are shrunk to it.
    """

    def __init__(self, name: str, *, side: int) -> None:
        self.name, self.side = name, side
        self._tiles: list[Tensor] = []
        self._count = 0

    def add(self, images: Tensor) -> range:
        """Takes in (N, 3, H, W) uint8 images and returns their places; all calls bring one size."""
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
        """Rows of images, two at least."""
        return max(2, math.ceil(self._count / COLUMNS))

    def tile(self, number: int, about: str, *, more: str = "") -> str:
        """An element that shows an image.

        Args:
            number: its place.
            about: what is to be seen.
            more: further CSS classes.
        """
        row, column = divmod(number, COLUMNS)
        return (
            f'<span class="tile {self.name} {more}" role="img" aria-label="{text(about)}" '
            f'title="{text(about)}" style="--column:{column};--row:{row}"></span>'
        )

    def style(self) -> str:
        """CSS with the picture itself: PNG of few pixels, WebP of many. Without images it is empty."""
        if not self._tiles:
            return ""
        tiles = torch.cat(self._tiles)
        height, width = tiles.shape[-2:]
        whole = torch.zeros(self.rows * COLUMNS, 3, height, width, dtype=torch.uint8)
        whole[: len(tiles)] = tiles
        grid = whole.view(self.rows, COLUMNS, 3, height, width).permute(0, 3, 1, 4, 2)
        picture = Image.fromarray(grid.reshape(self.rows * height, COLUMNS * width, 3).numpy())
        buffer, kind = io.BytesIO(), "png" if picture.width * picture.height <= _LOSSLESS else "webp"
        picture.save(buffer, format=kind, **({"optimize": True} if kind == "png" else {"quality": 82}))
        content = base64.b64encode(buffer.getvalue()).decode()
        return (
            f".{self.name}{{background-image:url(data:image/{kind};base64,{content});aspect-ratio:{width}/{height};"
            f"--columns:{COLUMNS};--rows:{self.rows}}}"
        )
