"""images.csv, the list of a run's training images, and the check of a continued run against it."""

import csv
from collections.abc import Mapping
from pathlib import Path

from pytorch_lightning.utilities import rank_zero_warn

from ssl_vision.data import ImageData
from ssl_vision.data.loading.fingerprint import FileRecord, changes, digest_of_files
from ssl_vision.errors import InputError
from ssl_vision.runs.atomic_files import atomic_write
from ssl_vision.runs.checkpoint import Checkpoint
from ssl_vision.runs.folder import RunFolder

_COLUMNS = ("path", "size", "modified", "content", "decoded")


def write_images(file: Path, images: Mapping[str, FileRecord]) -> None:
    """Write the list of a run's image files, if it has any."""
    if not images:
        return
    with (
        atomic_write(file) as partial,
        partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as out,
    ):
        writer = csv.writer(out)
        writer.writerow(_COLUMNS)
        writer.writerows((path, *record[:-1], int(record.decoded)) for path, record in images.items())


def read_images(file: Path) -> dict[str, FileRecord]:
    """Read the list of a run's image files; empty if the file does not exist or cannot be read."""
    try:
        with file.open(newline="", encoding="utf-8", errors="surrogateescape") as lines:
            rows = csv.reader(lines)
            next(rows, None)
            return {
                path: FileRecord(int(size), int(modified), content, decoded == "1")
                for path, size, modified, content, decoded in rows
            }
    except (OSError, ValueError, csv.Error):
        return {}


def check_images(data: ImageData, checkpoint: Checkpoint) -> None:
    """Refuse to continue a run if its images have changed; with ``--data.changed allow``, warn instead.

    The images are compared by the digest in the checkpoint. ``images.csv`` in the run directory tells which
    files changed; files whose size and modification time match it are not read again. Checkpoints of earlier
    versions, which have no digest, are accepted.

    Raises:
        InputError: the images have changed, or cannot be read.
    """
    if checkpoint.images is None:
        return
    if data.download:
        data.prepare_data()
    before = read_images(RunFolder(checkpoint.path.parent.parent).images_file)
    now = data.fingerprint(before)
    if now.digest == checkpoint.images:
        return
    if not now.files:
        description = f"{now.compared} of {type(data).__name__} differ"
    elif digest_of_files(before) == checkpoint.images:
        description = changes(before, now.files)
    else:
        description = "the run's images.csv does not list the changes"
    message = f"{checkpoint.path}: the images have changed since it was written: {description}"
    if data.changed == "refuse":
        raise InputError(f"{message}; restore them, or continue with --data.changed allow")
    rank_zero_warn(f"{message}; training continues on the current images")
