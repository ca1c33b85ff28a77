"""The command ``ssl-vision data``: what a folder of images contains."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from PIL import Image

from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.data import ImageFolder
from ssl_vision.data.loading.decoding import GreyValues, grey_values, open_image, read_content, squares
from ssl_vision.data.loading.file_listing import class_of
from ssl_vision.data.loading.fingerprint import digest_of_content
from ssl_vision.data.loading.prefetch import prefetched
from ssl_vision.data.module import Split
from ssl_vision.errors import InputError
from ssl_vision.metrics.neighbours import nearest_others
from ssl_vision.progress import tracked
from ssl_vision.tables import aligned

_SPLITS: tuple[Split, ...] = ("train", "val", "test")
_SHOWN = 20

_NEAR = 0.95
"""Least correlation of the thumbnails of near duplicates.

Copies of another compression, size or brightness exceed it. So do some images of little but sky, or of one
object on a plain background.
"""


Thumbnail = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


class ImageFile(NamedTuple):
    """Properties of an image file, as far as they could be read."""

    split: str
    label: str
    path: Path
    content: str = ""
    size: tuple[int, int] = (0, 0)
    grey: tuple[str, float, float] | None = None
    """Kind of the grey values of an image of more than 8 bits, the smallest and the largest."""
    damage: str = ""
    thumbnail: Thumbnail | None = None
    """8 × 8 pixels minus their mean, flat, to find near duplicates."""


def run(args: Sequence[str]) -> None:
    """Check a folder of images, or compute the mean and the standard deviation of its channels.

    ``check`` decodes every file and prints the number and the sizes of the images of each class and split,
    files that cannot be decoded, and files with equal content. ``check --near`` also prints pairs of images
    that look nearly the same: copies that were compressed again, resized or made brighter. ``stats`` prints
    the options that normalise the train split.

    Raises:
        InputError: The folder does not exist, or contains no images.
    """
    parser = ArgumentParser(prog="ssl-vision data", description=run.__doc__)
    parser.add_argument("action", type=Literal["check", "stats"], help="check or stats.")
    parser.add_argument("folder", type=str, help="Folder of images, as for --data ImageFolder --data.root.")
    parser.add_argument("--image_size", type=int, default=96, help="Side of the squares for stats.")
    text = "Values of grey images of more than 8 bits that become black and white, for stats."
    parser.add_argument("--pixel_range", type=tuple[float, float] | None, default=None, help=text)
    parser.add_argument("--near", action="store_true", help="Also find near duplicates, for check.")
    options = parser.parse_args(list(args))
    if not Path(options.folder).is_dir():
        raise InputError(f"no folder {options.folder}: give the directory of the images")
    data = ImageFolder(
        root=options.folder, image_size=options.image_size, pixel_range=options.pixel_range, val="train"
    )
    if options.action == "check":
        splits = (split for split in _SPLITS if data.has(split))
        files = [file for split in splits for file in _files(data, split, thumbnails=options.near)]
        print("\n".join(_report(files)))
    else:
        mean, std = channel_statistics(data)
        print(f"--data.views.mean {_listed(mean)} --data.views.std {_listed(std)}")


def channel_statistics(data: ImageFolder) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation of each channel of the train split, for pixels in [0, 1]."""
    listing = data.listing("train")
    count = 0
    sums, sums_of_squares = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)
    for decoded in squares(
        listing.folder, listing.names, side=data.image_size, strict=False, pixel_range=data.pixel_range
    ):
        pixels = decoded.pixels.reshape(3, -1).astype(np.int64)
        count += pixels.shape[1]
        sums += pixels.sum(axis=1)
        sums_of_squares += (pixels**2).sum(axis=1)
    mean = sums / count
    std = np.sqrt(sums_of_squares / count - mean**2)
    return (mean / 255).tolist(), (std / 255).tolist()


def _files(data: ImageFolder, split: Split, *, thumbnails: bool) -> Iterator[ImageFile]:
    listing = data.listing(split)

    def look(name: str) -> ImageFile:
        path = listing.folder / name
        file = ImageFile(split, class_of(name), path)
        try:
            content = read_content(path)
            file = file._replace(content=digest_of_content(content))
            image = open_image(content)
            if (grey := grey_values(image)) is None:
                image.load()
                if thumbnails:
                    file = file._replace(thumbnail=_thumbnail(image))
        except Exception as error:  # Pillow may raise nearly anything for damaged files
            return file._replace(damage=" ".join(str(error).split()))
        return file._replace(size=image.size, grey=grey and _summary(grey))

    workers = os.cpu_count() or 1
    files = prefetched(look, listing.names, workers=workers, depth=8 * workers)
    return iter(tracked(files, f"checking {split}", total=len(listing.paths), unit="images"))


def _report(files: list[ImageFile]) -> Iterator[str]:
    """Yield the lines of a report."""
    copies: dict[str, list[ImageFile]] = defaultdict(list)
    groups: dict[tuple[str, str], list[ImageFile]] = defaultdict(list)
    for file in files:
        groups[file.split, file.label].append(file)
        if file.content:
            copies[file.content].append(file)
    equal = [group for group in copies.values() if len(group) > 1]
    repeated = {file.path for group in equal for file in group[1:]}
    rows = [["split", "class", "images", "damaged", "copies", "smallest", "largest"]]
    for (split, label), group in groups.items():
        sizes = [file.size for file in group if not file.damage] or [(0, 0)]
        ends = [f"{width} x {height}" for width, height in (min(sizes, key=prod), max(sizes, key=prod))]
        damaged, same = sum(bool(file.damage) for file in group), sum(file.path in repeated for file in group)
        rows.append([split, label or "-", str(len(group)), str(damaged), str(same), *ends])
    yield aligned(rows, left=len(rows[0]))
    damaged_files = [f"{file.path} ({file.damage})" for file in files if file.damage]
    yield from _section("cannot be decoded", damaged_files)
    yield from _section("equal content", [" = ".join(str(file.path) for file in group) for group in equal])
    across = sum(len({file.split for file in group}) > 1 for group in equal)
    if across:
        yield f"{across} of them in several splits, so that evaluation sees images that were trained on"
    near = list(_near_duplicates(files))
    yield from _section("look nearly the same", near, most=len(near))
    if deep := [file.grey for file in files if file.grey]:
        kinds, lows, highs = (list(dict.fromkeys(column)) for column in zip(*deep, strict=True))
        yield f"{len(deep)} images have more than 8 bits, with values from {min(lows):g} to {max(highs):g}"
        yield f"({', '.join(kinds)}); --data.pixel_range [{min(lows):g},{max(highs):g}] uses all values"


def _thumbnail(image: Image.Image) -> Thumbnail:
    """Return 8 × 8 pixels minus their mean, flat."""
    small = image.convert("RGB").resize((8, 8), Image.Resampling.BOX)
    pixels: Thumbnail = np.asarray(small, dtype=np.float32).reshape(-1)
    pixels = pixels - pixels.mean()
    return pixels


def _near_duplicates(files: Sequence[ImageFile]) -> Iterator[str]:
    """Yield each image and its nearest one whose thumbnails correlate, unless their contents are equal."""
    shown = [file for file in files if file.thumbnail is not None]
    if len(shown) < 2:
        return
    rows = torch.from_numpy(np.stack([file.thumbnail for file in shown if file.thumbnail is not None]))
    neighbours = nearest_others(rows, min(2, len(shown) - 1))
    pairs: dict[tuple[int, int], float] = {}
    for row, (similarities, others) in enumerate(zip(*(each.tolist() for each in neighbours), strict=True)):
        for similarity, other in zip(similarities, others, strict=True):
            if similarity >= _NEAR and shown[row].content != shown[other].content:
                pairs[min(row, other), max(row, other)] = similarity
    for (row, other), similarity in sorted(pairs.items(), key=lambda pair: -pair[1]):
        yield f"{similarity:.3f} {shown[row].path} ~ {shown[other].path}"


def _summary(grey: GreyValues) -> tuple[str, float, float]:
    kind = "floating-point, by default clipped to 0 to 255"
    if grey.highest:
        kind = f"{grey.highest.bit_length()} bits, by default the upper 8"
    white = ", 0 is white" if grey.inverted else ""
    return kind + white, float(np.nanmin(grey.values)), float(np.nanmax(grey.values))


def _section(title: str, lines: list[str], most: int = _SHOWN) -> Iterator[str]:
    if lines:
        yield f"{title}: {len(lines)}"
        yield from (f"  {line}" for line in lines[:most])
        if len(lines) > most:
            yield f"  and {len(lines) - most} more"


def _listed(values: Sequence[float]) -> str:
    return f"[{','.join(f'{value:.4f}' for value in values)}]"
