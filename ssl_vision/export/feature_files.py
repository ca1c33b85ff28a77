"""Files of features and image names."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ssl_vision.errors import InputError
from ssl_vision.optional import needed

_ROW_GROUP = 2**16
"""Number of rows that a ``.parquet`` file is written by."""

Features = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Write = Callable[[Path, Features, list[str]], None]


def writer(path: Path) -> Write:
    """Return the function that writes features (N, F) and N file names in the format of the path's suffix.

    ``.npz`` files have the arrays ``features`` and ``names``. ``.parquet`` files have a row for each image:
    ``name`` and ``features``, a list of F numbers.

    Raises:
        InputError: The suffix is not supported, or pyarrow is required and not installed.
    """
    if path.suffix == ".npz":
        return _write_npz
    if path.suffix == ".parquet":
        needed("pyarrow", extra="parquet")
        return _write_parquet
    raise InputError(f"--output {path} must end with .npz or .parquet")


def _write_npz(path: Path, features: Features, names: list[str]) -> None:
    np.savez(path, features=features, names=np.array([_text(name) for name in names]))


def _write_parquet(path: Path, features: Features, names: list[str]) -> None:
    arrow, parquet = needed("pyarrow", extra="parquet"), needed("pyarrow.parquet", extra="parquet")
    item, width = arrow.float32(), features.shape[1]
    schema = arrow.schema({"name": arrow.string(), "features": arrow.list_(item, width)})
    with parquet.ParquetWriter(path, schema) as file:
        for start in range(0, len(names), _ROW_GROUP):
            rows = slice(start, start + _ROW_GROUP)
            lists = arrow.FixedSizeListArray.from_arrays(arrow.array(features[rows].reshape(-1)), width)
            named = arrow.array([_text(name) for name in names[rows]])
            file.write_table(arrow.table({"name": named, "features": lists}, schema))


def _text(name: str) -> str:
    """Return a name with ``/`` between folders; invalid bytes become replacement characters."""
    return os.fsencode(name).decode("utf-8", errors="replace").replace(os.sep, "/")
