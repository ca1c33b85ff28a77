"""Decoding of image files to squares of pixels."""

import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from torch import Tensor
from torch.nn import functional as F
from torchvision.io import ImageReadMode, decode_image

from ssl_vision.data.loading.fingerprint import digest_of_content
from ssl_vision.data.loading.prefetch import prefetched
from ssl_vision.errors import InputError
from ssl_vision.progress import tracked

_LARGEST = 2**28
"""Maximum size of an image file in bytes, twice that of 4096 × 4096 uncompressed 16-bit RGBA pixels."""

PngImagePlugin.MAX_TEXT_CHUNK = _LARGEST
"""Metadata of more than the default of 1 MiB, such as a colour profile, does not make an image unusable."""

_JPEG_START = b"\xff\xd8\xff"
_ORIENTATION_MARKS = (b"Exif\0\0", b"tiff:Orientation")
"""Signs of an orientation in Exif or XMP metadata."""
_ORIENTATION = 0x0112
_LARGEST_DECODED = 2**27
"""Largest number of pixels of a file that is not left to Pillow, which refuses decompression bombs."""

_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262
"""Tags of TIFF files."""

PixelRange = tuple[float, float]
"""Values of grey images of more than 8 bits that become black and white."""

Square = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class Decoded(NamedTuple):
    """A decoded image.

    Attributes:
        name: Path of a file relative to the image folder, or number of a row of a data set.
        pixels: (3, side, side) uint8.
        content: `digest_of_content` of a file, or label of a row.
    """

    name: str
    pixels: Square
    content: str


def squares(
    folder: Path, names: Sequence[str], *, side: int, strict: bool, pixel_range: PixelRange | None = None
) -> Iterator[Decoded]:
    """Decode files on all cores, keeping only a few images in memory at a time.

    Args:
        folder: Directory of the files.
        names: Their paths relative to it.
        side: Side of the squares in pixels.
        strict: Raise an error for a file that cannot be decoded, instead of skipping it.
        pixel_range: Values of grey images of more than 8 bits that become black and white.

    Yields:
        Each decodable file, in order.

    Raises:
        InputError: no file can be decoded, or `strict` is set and one cannot.
    """

    def decode(name: str) -> Decoded:
        content = read_content(folder / name)
        return Decoded(name, square(open_image(content), side, pixel_range), digest_of_content(content))

    yield from decodable(decode, names, where=lambda name: str(folder / name), strict=strict)


def decodable(
    decode: Callable[[str], Decoded],
    names: Sequence[str],
    *,
    where: Callable[[str], str],
    strict: bool,
    workers: int = os.cpu_count() or 1,
) -> Iterator[Decoded]:
    """Decode images in threads, keeping only a few of them in memory at a time.

    Args:
        decode: Function of a name, which may raise any error for a damaged image.
        names: Names of the images.
        where: Function that returns the place of an image for messages.
        strict: Raise an error for an image that cannot be decoded, instead of skipping it.
        workers: Number of threads.

    Yields:
        Each decodable image, in order.

    Raises:
        InputError: no image can be decoded, or `strict` is set and one cannot, or `decode` raises one.
    """

    def attempt(name: str) -> Decoded | Exception:
        try:
            return decode(name)
        except InputError:
            raise
        except Exception as error:  # Pillow may raise nearly anything for damaged files
            return error

    results = prefetched(attempt, names, workers=workers, depth=8 * workers)
    first: Exception | None = None
    failed = 0
    for name, decoded in zip(
        names, tracked(results, "decoding", total=len(names), unit="images"), strict=True
    ):
        if not isinstance(decoded, Exception):
            yield decoded
        elif strict:
            raise decoding_error(where(name), decoded) from decoded
        else:
            first, failed = first or decoded, failed + 1
    if first is not None and failed == len(names):
        reason = " ".join(f"{type(first).__name__}: {first}".split())
        example = f"{where(names[0])} ({reason})"
        raise InputError(f"none of the {len(names)} images can be decoded, for example {example}") from first


def decoding_error(path: str | Path, cause: object, *, strict: bool = True) -> InputError:
    """Return the error for a file that cannot be decoded."""
    advice = ", or set strict false to skip it" if strict else ""
    return InputError(f"{path} cannot be decoded ({' '.join(str(cause).split())}); remove it{advice}")


def read_content(path: Path) -> bytes:
    """Read an image file.

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger than 256 MiB.
    """
    if not path.is_file():
        raise OSError("not a regular file")
    if path.stat().st_size > _LARGEST:
        raise OSError(f"larger than {_LARGEST // 2**20} MiB")
    return path.read_bytes()


def open_image(content: bytes) -> Image.Image:
    """Open an encoded image; its pixels are decoded when they are used.

    Raises:
        UnidentifiedImageError: Pillow does not know its format.
    """
    try:
        return Image.open(io.BytesIO(content))
    except UnidentifiedImageError as error:  # its message has the address of the bytes in memory
        kind = "unknown image format" if content else "the file is empty"
        if content[:4] in TiffImagePlugin.PREFIXES:
            kind = (
                "a TIFF file of a data type or number of channels that --data Dataset reads, but not Pillow"
            )
        raise UnidentifiedImageError(kind) from error


def square(image: Image.Image, side: int, pixel_range: PixelRange | None = None) -> Square:
    """Decode to RGB (3, side, side): resize the shorter side (antialiased bilinear), then crop the centre.

    The EXIF orientation is applied. Of an animation, the first frame is used; of 16-bit channels, the upper 8
    bits unless there is a `pixel_range`; transparency is dropped. Pillow refuses decompression bombs (above
    179 million pixels).
    """
    image = ImageOps.fit(to_rgb(image, pixel_range), (side, side), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


class GreyValues(NamedTuple):
    """Grey values of more than 8 bits, as stored in a file.

    Attributes:
        values: (H, W), of any real dtype.
        highest: Largest integer that the file can contain; 0 for floating-point numbers.
        inverted: True if small values are white.
    """

    values: np.ndarray[tuple[int, ...], np.dtype[Any]]
    highest: int
    inverted: bool


def grey_values(image: Image.Image) -> GreyValues | None:
    """Return the grey values of an upright image of more than 8 bits before it is decoded, or None."""
    tags = image.tag_v2 if isinstance(image, TiffImagePlugin.TiffImageFile) else {}
    tiles = image.tile if isinstance(image, ImageFile) else []
    stored = tiles[0].args if tiles else ()
    if stored == "LA;16B":  # a PNG file with transparency, of which Pillow reads the upper 8 bits
        image.fp.seek(0)  # type: ignore[attr-defined]
        content = np.frombuffer(bytearray(image.fp.read()), dtype=np.uint8)  # type: ignore[attr-defined]
        values = decode_image(torch.from_numpy(content), ImageReadMode.UNCHANGED)[0].numpy()
        return GreyValues(values, 65535, inverted=False)
    if not image.mode.startswith(("I", "F")):
        return None
    highest = 0 if image.mode == "F" else 2 ** int(tags.get(_BITS_PER_SAMPLE, (16,))[0]) - 1
    values = np.asarray(ImageOps.exif_transpose(image))
    if image.format == "PPM" and isinstance(stored, tuple):  # Pillow has scaled the values to 16 bits
        highest = stored[1]
        values = np.rint(values * (highest / 65535)).astype(np.int64)
    return GreyValues(values, highest, inverted=tags.get(_PHOTOMETRIC) == 0)


def to_rgb(image: Image.Image, pixel_range: PixelRange | None = None) -> Image.Image:
    """Convert to upright 8-bit RGB; Pillow itself would turn most 16-bit grey values white.

    Grey values of more than 8 bits are scaled linearly, so that `pixel_range`, in values as stored, becomes
    0..255. Without one, they lose all but the upper 8 of their bits, at most 16, and floating-point values
    are clipped to 0..255. Where small values are white, the result is inverted.
    """
    grey = grey_values(image)
    if grey is None:
        image = ImageOps.exif_transpose(image)
        # direct conversion of a palette to RGB would warn about transparency
        return (image.convert("RGBA") if image.mode == "P" else image).convert("RGB")
    values = np.nan_to_num(grey.values.astype(np.float64))
    if pixel_range is not None:
        values = ((values - pixel_range[0]) * (255 / (pixel_range[1] - pixel_range[0]))).round()
    elif grey.highest:
        values = np.rint(values * (65535 / min(grey.highest, 65535))) // 256
    elif values.max() <= 1:
        warnings.warn("floating-point images of values up to 1 are black without pixel_range", stacklevel=2)
    pixels = values.clip(0, 255).astype(np.uint8)
    return Image.fromarray(255 - pixels if grey.inverted else pixels).convert("RGB")


def decode_square(content: bytes, side: int, pixel_range: PixelRange | None = None) -> Tensor:
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
        >>> decode_square(file.getvalue(), 96)[:, 0, 0]
        tensor([254,   0,   0], dtype=torch.uint8)
    """
    if not content.startswith(_JPEG_START):
        return torch.from_numpy(square(open_image(content), side, pixel_range))
    import simplejpeg  # which training on other files does not need

    turned = any(sign in content for sign in _ORIENTATION_MARKS)
    if not turned or open_image(content).getexif().get(_ORIENTATION, 1) == 1:
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(content)
            if height * width <= _LARGEST_DECODED:
                return _resized(simplejpeg.decode_jpeg(content, min_height=side, min_width=side), side)
        except ValueError:  # damaged, or four channels
            pass
    image = open_image(content)
    image.draft(None, (side, side))
    return torch.from_numpy(square(image, side))


def _resized(pixels: Square, side: int) -> Tensor:
    """Resize the central square of (H, W, 3)."""
    height, width, _ = pixels.shape
    shorter = min(height, width)
    top, left = (height - shorter) // 2, (width - shorter) // 2
    centre = torch.from_numpy(pixels[top : top + shorter, left : left + shorter]).permute(2, 0, 1)
    return F.interpolate(centre[None], size=(side, side), mode="bilinear", antialias=True)[0]
