"""images.csv, the list of a run's training images."""

import csv
from collections.abc import Mapping
from pathlib import Path

from ssl_vision.data.loading.fingerprint import FileRecord
from ssl_vision.runs.atomic_files import atomic_write

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
