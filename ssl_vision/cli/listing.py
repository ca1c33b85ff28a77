"""The command ``ssl-vision list``, which does not import torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ssl_vision.cli.known_options import classes_of, first_sentence
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.cli.recipes import CONFIGS, recipes
from ssl_vision.cli.suggestions import closest_match
from ssl_vision.descriptions import described, read_catalogue
from ssl_vision.errors import InputError

_CLASSES = {"objectives": "objective", "encoders": "encoder", "methods": "model", "data": "data"}
_FOLDERS = {"configs": CONFIGS, "protocols": CONFIGS.parent / "evaluation" / "protocols"}

KINDS = (*_CLASSES, "metrics", *_FOLDERS)
"""Kinds of objects that can be listed."""


def run(args: Sequence[str]) -> None:
    """List the objectives, encoders, methods, data sets, metrics, recipes or protocols, a sentence each.

    Raises:
        InputError: there is nothing of this kind.
    """
    parser = ArgumentParser(prog="ssl-vision list", description=run.__doc__)
    parser.add_argument("kind", nargs="?", help=f"What to list: {', '.join(KINDS)}.")
    kind = parser.parse_args(list(args)).kind
    if kind is None:
        print("\n".join(f"ssl-vision list {each}" for each in KINDS))
        return
    if kind not in KINDS:
        raise InputError(f"cannot list '{kind}'{closest_match(kind, KINDS)}")
    rows = sentences(kind)
    width = max(map(len, rows))
    print("\n".join(f"{name:<{width}}  {sentence}".rstrip() for name, sentence in rows.items()))
    if kind == "data":
        print(f"\n--data Torchvision --data.name NAME: {', '.join(read_catalogue()['torchvision'])}")


def sentences(kind: str) -> Mapping[str, str]:
    """Return the names of a kind and a sentence about each."""
    if kind == "metrics":
        return {each.name: first_sentence(f"{each.long_title}: {each.note}") for each in described()}
    if kind in _FOLDERS:
        return {name: _comment(file) for name, file in recipes(_FOLDERS[kind]).items()}
    return {name: each.sentence for name, each in classes_of(_CLASSES[kind]).items()}


def _comment(file: Path) -> str:
    """Return the first sentence of the comment at the head of a file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    head = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    return first_sentence(" ".join(line.lstrip("# ") for line in head))
