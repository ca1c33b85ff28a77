"""Images with any number of channels, such as those of a multispectral sensor."""

from typing import Any

import numpy as np
from PIL import Image, ImageOps

from ssl_vision.data.loading.decoding import PixelRange, Square

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class Bands:
    """An image with any number of channels, with the attributes of a PIL image that a data set reads.

    Args:
        values: channels of the image, (C, H, W), of any real dtype.

    Attributes:
        size: (width, height).
        mode: number of channels and dtype, for example "13 uint16".

    Example:
        >>> Bands(np.zeros((13, 8, 12), dtype=np.uint16)).square(8, (0, 10_000)).shape
        (13, 8, 8)
    """

    def __init__(self, values: Array) -> None:
        self.values = values
        self.size = (values.shape[2], values.shape[1])
        self.mode = f"{len(values)} {values.dtype}"

    def load(self) -> None:
        """Do nothing, because the values are in memory."""

    def tobytes(self) -> bytes:
        """Return the values as bytes."""
        return self.values.tobytes()

    def square(self, side: int, pixel_range: PixelRange | None) -> Square:
        """Resize the shorter side (antialiased bilinear), crop the centre and scale to 8 bits.

        Args:
            side: side of the square in pixels.
            pixel_range: values that become 0 and 255, in all channels; None keeps the values of uint8.

        Returns:
            (C, side, side) uint8.
        """
        low, high = pixel_range or (0, 255)
        planes = [Image.fromarray(plane.astype(np.float32)) for plane in self.values]
        squares = np.stack(
            [np.asarray(ImageOps.fit(plane, (side, side), Image.Resampling.BILINEAR)) for plane in planes]
        )
        scaled = np.nan_to_num((squares.astype(np.float64) - low) * (255 / (high - low)))
        return scaled.round().clip(0, 255).astype(np.uint8)
