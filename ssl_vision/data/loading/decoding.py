"""Image files to squares of pixels."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from ssl_vision.data.loading.fingerprint import digest_of_content
from ssl_vision.data.loading.prefetch import ahead
from ssl_vision.errors import InputError
from ssl_vision.progress import tracked

_LARGEST = 2**28
"""Bytes of an image file; 4096 × 4096 pixels of 16 bits in 4 channels without compression have half of it."""

Square = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class Decoded(NamedTuple):
    """A decoded image file.

    Attributes:
        name: Path of the file within its folder.
        pixels: (3, side, side) uint8.
        content: Digest of the file's bytes, as `digest_of_content` gives it.
    """

    name: str
    pixels: Square
    content: str


def squares(folder: Path, names: list[str], *, side: int, strict: bool) -> Iterator[Decoded]:
    """Decodes files on all cores, holding a few images at a time, whatever their number.

    Args:
        folder: Where the files lie.
        names: Their paths within it.
        side: Of the squares, pixels.
        strict: Stop at a file that cannot be decoded, instead of leaving it out.

    Yields:
        Each file that can be decoded, in order.

    Raises:
        InputError: A file cannot be decoded and `strict` is set, or none can.
    """

    def decode(name: str) -> Decoded | Exception:
        try:
            content = _content(folder / name)
            return Decoded(name, _square(content, side), digest_of_content(content))
        except Exception as error:  # damaged bytes make Pillow raise nearly anything
            return error

    workers = os.cpu_count() or 1
    made = ahead(decode, names, workers=workers, depth=8 * workers)
    shown = tracked(made, "decoding", total=len(names), unit="images")
    empty = True
    for name, decoded in zip(names, shown, strict=True):
        if not isinstance(decoded, Exception):
            empty = False
            yield decoded
        elif strict:
            raise corrupt(folder / name, decoded) from decoded
    if empty:
        raise InputError(f"none of the {len(names)} images can be decoded, such as {folder / names[0]}")


def corrupt(path: Path, cause: object) -> InputError:
    """The error for a file that cannot be decoded."""
    reason = " ".join(str(cause).split())
    return InputError(f"{path} cannot be decoded ({reason}): remove it, or set strict false to leave it out")


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise OSError("not a regular file")
    if path.stat().st_size > _LARGEST:
        raise OSError(f"larger than {_LARGEST // 2**20} MiB")
    return path.read_bytes()


def _square(content: bytes, side: int) -> Square:
    """(3, side, side): shorter side resized (antialiased bilinear), centre cropped, RGB.

    Upright as EXIF says; of an animation its first frame, of 16 bits a channel the upper 8, without
    transparency. What Pillow takes for a decompression bomb (179 million pixels) is not decoded.
    """
    with Image.open(io.BytesIO(content)) as file:
        image = to_rgb(ImageOps.exif_transpose(file))
    image = ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def to_rgb(image: Image.Image) -> Image.Image:
    """The image with 8 bits a channel; Pillow by itself makes nearly all of 16-bit grey white."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    if image.mode == "P":
        image = image.convert("RGBA")  # straight to RGB would warn of transparency
    return image.convert("RGB")
