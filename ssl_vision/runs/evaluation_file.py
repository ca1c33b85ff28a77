"""Rows of evaluation.json: reading, merging and selecting them, and one name for each measurement."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ssl_vision.descriptions import LAYERS, description_of
from ssl_vision.errors import InputError
from ssl_vision.runs.config import DATA_OF_ROOT, class_name
from ssl_vision.runs.files import read_json

Rows = list[dict[str, Any]]

OUTCOME = {
    "value", "low", "high", "gain", "gain_low", "gain_high", "test_images", "train_images", "chance",
    "weights", "title", "unit", "direction",
}  # fmt: skip
"""Fields of a row that do not state how it was measured."""

DEFAULT_PROTOCOL = "macl"
"""The protocol whose name is left out."""

TEST_PREFIXES = ("test/", "evaluation/")
"""Prefixes of names: for the test split, or for the split that is evaluated in its place."""

VARIANTS = {
    "k": "k={}",
    "distance": "{}",
    "vote": "{}",
    "temperature": "T={}",
    "augmentation": "{}",
    "labels": "{} labels",
}
"""Fields in which two rows of one metric differ, and how a heading or a name states them."""

_TRAINING = ("lr", "weight_decay", "options")
"""Fields that are stated only for rows that do not differ in `VARIANTS`."""

_NEXT_OPTION = re.compile(r", (?=[a-z]\w* )")
"""Separator of the options in a row; the values of an option may contain commas."""


def chosen_fields(metric: object) -> set[str]:
    """Return the fields of a metric's rows that a grid search selects; other metrics have none."""
    return {"lr", "weight_decay"} if metric == "grid_top1" else set()


def read_rows(file: Path) -> Rows:
    """Read the rows of an evaluation file; none if the file does not exist.

    Raises:
        InputError: the file was not written by ``ssl-vision evaluate``.
    """
    if not file.exists():
        return []
    rows = read_json(file)
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and {"metric", "value"} <= row.keys() for row in rows
    ):
        raise InputError(f"{file} is not a list of rows")
    return rows


def own_data(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the ``data``, ``root`` and ``folder`` fields of rows measured on a run's own data set."""
    data = config.get("data")
    if not isinstance(data, Mapping) or "class_path" not in data:
        return {}
    options = data.get("init_args") or {}
    paths = {"root": options.get("root"), "folder": options.get("test")}
    return {"data": class_name(data)} | {k: v for k, v in paths.items() if v}


def merged(before: Iterable[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> Rows:
    """Append new rows to existing ones, and drop the existing rows that they replace.

    A new row replaces one of the same measurement, that is, with equal fields apart from the value and what a
    grid search selected. Rows of a trained network are also dropped if the weights of their epoch have
    changed.
    """
    replaced = {_key(row) for row in new}
    weights = {row["epoch"]: row["weights"] for row in new if row.get("features") == "trained"}

    def stale(row: Mapping[str, Any]) -> bool:
        current = weights.get(row.get("epoch"))
        return row.get("features") == "trained" and current not in (None, row.get("weights"))

    return [*(dict(row) for row in before if _key(row) not in replaced and not stale(row)), *map(dict, new)]


def preferred(rows: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> Rows:
    """Select the rows of one data set, preferably of the run's own data and of its test split.

    Otherwise, rows of the same data class at another path are preferred to those of the first data set.
    """

    def distance(row: Mapping[str, Any]) -> tuple[Any, ...]:
        data_of_run = own_data(config)
        differs = tuple(row.get(name) != data_of_run.get(name) for name in ("data", "root", "folder"))
        return (*differs, row.get("split") != "test", row.get("settings") is not None)

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in ("data", "root", "folder", "split", "settings"))

    if not rows:
        return []
    best = place(min(rows, key=distance))
    return [row for row in rows if place(row) == best]


def _key(row: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    left_out = OUTCOME | chosen_fields(row.get("metric"))
    return frozenset((name, str(value)) for name, value in row.items() if name not in left_out)


class Variant(NamedTuple):
    """One of several ways in which a metric was measured."""

    fields: tuple[str, ...]
    """Texts of the fields of `VARIANTS`, empty where a field does not apply."""
    training: tuple[str, ...]
    """Training options of a classifier, such as ``epochs=100``."""


def variant_of(row: Mapping[str, Any]) -> Variant:
    """Return the variant of a row; what a grid search selects is not part of it."""
    texts = {
        name: str(row[name])
        for name in (*VARIANTS, *_TRAINING)
        if row.get(name) is not None and name not in chosen_fields(row["metric"])
    }
    options = [f"{name} {texts[name]}" for name in ("lr", "weight_decay") if name in texts]
    options += _NEXT_OPTION.split(texts["options"]) if texts.get("options") else []
    return Variant(
        tuple(texts.get(name, "") for name in VARIANTS), tuple(each.replace(" ", "=", 1) for each in options)
    )


def stated_differences(variant: Variant, others: Iterable[Variant]) -> list[str]:
    """State in what a variant differs from others of the same metric.

    Training options are compared only with those of variants with the same fields.
    """
    others = list(others)
    stated = [
        VARIANTS[name].format(text)
        for i, (name, text) in enumerate(zip(VARIANTS, variant.fields, strict=True))
        if text not in ("", "none") and any(other.fields[i] != text for other in others)
    ]
    alike = [other.training for other in others if other.fields == variant.fields]
    return stated + [text for text in variant.training if not all(text in training for training in alike)]


def evaluation_summary(
    rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any], *, epoch: int
) -> dict[str, float]:
    """Return the values of `named_rows`."""
    return {name: float(row["value"]) for name, row in named_rows(rows, config, epoch=epoch).items()}


def named_rows(
    rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any], *, epoch: int
) -> dict[str, Mapping[str, Any]]:
    """Return the rows of the trained network on the run's own data that belong in a table, by name.

    A name is ``test/METRIC`` under the protocol ``macl`` at the backbone. Other layers have the suffix that
    they have in metrics.csv. Other protocols, and the fields that distinguish rows of one metric, come in
    between: ``test/linear_top1_projector``, ``test/lightly/knn_top1``, ``test/dinov2/k=20/knn_top1``.
    If there is no test split, names begin with ``evaluation/``.

    Args:
        rows: rows of evaluation.json.
        config: config of the run.
        epoch: the epoch whose rows are taken.
    """
    groups: dict[tuple[str, str], dict[Variant | None, Mapping[str, Any]]] = {}
    for row in rows_of_own_data(rows, config, epoch=epoch):
        if "table" not in description_of(row["metric"], stored=row).sections:
            continue
        prefix, protocol = TEST_PREFIXES[row.get("split") != "test"], row.get("protocol", DEFAULT_PROTOCOL)
        default = protocol == DEFAULT_PROTOCOL
        metric = f"{row['metric']}{LAYERS.get(str(row.get('layer')), '')}"
        # The default protocol has one row of each metric, which options of the command change.
        group = groups.setdefault((prefix if default else f"{prefix}{protocol}/", metric), {})
        group[None if default else variant_of(row)] = row
    named = {}
    for (place, metric), group in groups.items():
        for variant, row in group.items():
            stated = [] if variant is None else stated_differences(variant, filter(None, group))
            named[f"{place}{''.join(f'{text}/' for text in stated)}{metric}"] = row
    return named


def rows_of_own_data(
    rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any], *, epoch: int
) -> list[Mapping[str, Any]]:
    """Return the rows of the trained network at an epoch on the run's own data, unchanged.

    The root of a data set is only its place, except in `DATA_OF_ROOT`.
    """
    data_of_run = own_data(config)
    if data_of_run.get("data") not in DATA_OF_ROOT:
        data_of_run.pop("root", None)
    return [
        row
        for row in rows
        if row.get("features") == "trained"
        and row.get("epoch") == epoch
        and row.get("settings") is None
        and all(
            row.get(key) == value
            for key, value in data_of_run.items()
            if (key, row.get("split")) != ("folder", "val")  # which has a folder of its own
        )
    ]
