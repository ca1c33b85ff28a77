"""Decoding of compressed images directly to squares of the working size."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_vision.data.loading.decoding import PixelRange, open_image, square

_JPEG_START = b"\xff\xd8\xff"
_ORIENTATION_MARKS = (b"Exif\0\0", b"tiff:Orientation")
"""Signs of an orientation in Exif or XMP metadata."""
_ORIENTATION = 0x0112
_LARGEST = 2**27
"""Largest number of pixels of a file that is not left to Pillow, which refuses decompression bombs."""


def reduced_square(content: bytes, side: int, pixel_range: PixelRange | None = None) -> Tensor:
    """Decode an image file to RGB (3, side, side).

    JPEG files are decoded at the smallest scale (1/8, 2/8, …, 1) at which they still cover the square, which
    saves most of the inverse cosine transform and of the resizing. The centre is then cropped at whole
    pixels and resized (antialiased bilinear). Pixels therefore differ slightly from those of `square`, which
    decodes all other files, JPEG files with another orientation or with four channels, and damaged ones.

    Args:
        content: The file.
        side: Side of the square in pixels.
        pixel_range: Values of grey images of more than 8 bits that become black and white.

    Returns:
        (3, side, side) uint8.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (500, 375), "red").save(file, "JPEG")
        >>> reduced_square(file.getvalue(), 96)[:, 0, 0]
        tensor([254,   0,   0], dtype=torch.uint8)
    """
    if not content.startswith(_JPEG_START):
        return torch.from_numpy(square(open_image(content), side, pixel_range))
    import simplejpeg  # which training on other files does not need

    turned = any(sign in content for sign in _ORIENTATION_MARKS)
    if not turned or open_image(content).getexif().get(_ORIENTATION, 1) == 1:
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(content)
            if height * width <= _LARGEST:
                return _resized(simplejpeg.decode_jpeg(content, min_height=side, min_width=side), side)
        except ValueError:  # damaged, or four channels
            pass
    image = open_image(content)
    image.draft(None, (side, side))
    return torch.from_numpy(square(image, side))


def _resized(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], side: int) -> Tensor:
    """Resize the central square of (H, W, 3)."""
    height, width, _ = pixels.shape
    shorter = min(height, width)
    top, left = (height - shorter) // 2, (width - shorter) // 2
    centre = torch.from_numpy(pixels[top : top + shorter, left : left + shorter]).permute(2, 0, 1)
    return F.interpolate(centre[None], size=(side, side), mode="bilinear", antialias=True)[0]
