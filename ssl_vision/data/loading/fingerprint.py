"""Fingerprints, which detect whether the images of a data set have changed."""

import hashlib
from collections.abc import Mapping

import torch

from ssl_vision.data.images import Images

_DIGITS = 16
_ROWS = 256
_SAMPLE = 2**28


def digest_of_files(contents: Mapping[str, str]) -> str:
    """Return 16 hexadecimal digits of the paths of files and the digests of their contents, in any order."""
    digest = hashlib.sha256()
    for path in sorted(contents):
        digest.update(f"{path}\0{contents[path]}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:_DIGITS]


def digest_of_content(content: bytes) -> str:
    """Return 16 hexadecimal digits of the content of a file."""
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def digest_of_images(images: Images) -> str:
    """Return the SHA-256 digest of the pixels of a split, in order, or of the files if they are streamed."""
    if images.digest:
        assert images.rows is not None
        return hashlib.sha256(images.digest.encode() + images.rows.numpy().tobytes()).hexdigest()
    digest = hashlib.sha256(str((len(images), *images.store.shape[1:])).encode())
    for start in range(0, len(images), _ROWS):
        rows = torch.arange(start, min(start + _ROWS, len(images)))
        digest.update(images.at(rows).contiguous().numpy().data)
    return digest.hexdigest()


def digest_of_splits(splits: Mapping[str, Images]) -> str:
    """Return 16 hexadecimal digits of the labels and pixels of splits.

    Of splits larger than 256 MiB, all labels but only 256 MiB of evenly spaced images are used. CIFAR-10 is
    smaller and takes about 0.2 s.
    """
    digest = hashlib.sha256()
    for name, images in splits.items():
        digest.update(f"{name} {len(images)} {images.classes}".encode())
        digest.update(images.labels.numpy().data)
        count = min(len(images), _SAMPLE // images.store[:1].nbytes)
        sample = images.select(torch.arange(count) * len(images) // max(count, 1))
        digest.update(digest_of_images(sample).encode())
    return digest.hexdigest()[:_DIGITS]


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Describe the changes of the contents of files by path, such as "2 were removed (such as cat/1.png)".

    The description is empty if nothing has changed.
    """
    kinds = {
        "removed": sorted(old.keys() - new.keys()),
        "added": sorted(new.keys() - old.keys()),
        "changed": sorted(path for path in old.keys() & new.keys() if old[path] != new[path]),
    }
    texts = []
    for kind, paths in kinds.items():
        if len(paths) == 1:
            texts.append(f"1 was {kind} ({paths[0]})")
        elif paths:
            texts.append(f"{len(paths):,} were {kind} (such as {paths[0]})")
    return " and ".join(texts)
