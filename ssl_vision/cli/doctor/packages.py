"""Python, the packages that are needed, those that add something, and which FAISS there is."""

import importlib
import platform
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata

from packaging.requirements import Requirement

import ssl_vision
from ssl_vision.cli.doctor.check import Check

_OLDEST = (3, 11)
_IMPORTED = ("torch", "torchvision", "pytorch_lightning")
"""What fails on import, rather than on installation, where versions or drivers do not fit."""

_NOT_FOR_USERS = ("cpu", "gpu", "test", "dev", "docs", "notebooks")
"""Extras that are FAISS, of which there is a line anyway, or for who works on the package."""


def software() -> Iterator[Check]:
    """Everything that pip installs."""
    version = platform.python_version()
    if sys.version_info < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        yield Check("python", version, "broken", f"install Python {oldest} or later")
    else:
        yield Check("python", version)
    try:
        required = [Requirement(line) for line in metadata.requires("ssl_vision") or ()]
    except metadata.PackageNotFoundError:
        yield Check(
            "ssl_vision", f"{ssl_vision.__version__}, not installed", "note", "pip install -e '.[cpu]'"
        )
        return
    yield Check("ssl_vision", ssl_vision.__version__)
    yield from _needed([one for one in required if one.marker is None or one.marker.evaluate({"extra": ""})])
    yield from map(_imported, _IMPORTED)
    yield from _extras(required)
    yield _faiss()


def _needed(required: list[Requirement]) -> Iterator[Check]:
    wrong = [(one, found) for one in required if (found := _unmet(one)) is not None]
    for one, found in wrong:
        yield Check(one.name, found, "broken", f"pip install '{one}'")
    yield Check("requirements", f"{len(required) - len(wrong)} of {len(required)} met")


def _unmet(one: Requirement) -> str | None:
    """What there is in its place; None where it is met."""
    try:
        version = metadata.version(one.name)
    except metadata.PackageNotFoundError:
        return "not installed"
    return None if one.specifier.contains(version, prereleases=True) else f"{version}, not {one.specifier}"


def _imported(name: str) -> Check:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a binary that does not fit fails in any way
        cause = next(iter(str(error).splitlines()), "")
        advice = "pip install --force-reinstall torch torchvision"
        return Check(name, f"cannot be imported: {type(error).__name__}: {cause}", "broken", advice)
    return Check(name, str(module.__version__))


def _extras(required: Iterable[Requirement]) -> Iterator[Check]:
    extras: dict[str, list[Requirement]] = {}
    for one in required:
        for name in metadata.metadata("ssl_vision").get_all("Provides-Extra") or ():
            if one.marker and not one.marker.evaluate({"extra": ""}) and one.marker.evaluate({"extra": name}):
                extras.setdefault(name, []).append(one)
    for name, members in extras.items():
        if name in _NOT_FOR_USERS:
            continue
        wrong = ", ".join(one.name for one in members if _unmet(one) is not None)
        if wrong:
            yield Check(f"extra {name}", f"without {wrong}", "note", f"pip install -e '.[{name}]'")
        else:
            yield Check(f"extra {name}", ", ".join(one.name for one in members))


def _faiss() -> Check:
    """Which of the two builds there is: both own the same files, so that neither works beside the other."""
    builds = [name for name in ("faiss-cpu", "faiss-gpu") if _version(name)]
    if len(builds) > 1:
        advice = "pip uninstall -y faiss-cpu faiss-gpu, then install one of them"
        return Check("FAISS", "faiss-cpu and faiss-gpu in each other's place", "broken", advice)
    try:
        faiss = importlib.import_module("faiss")
    except ImportError as error:
        if builds:
            return Check(
                "FAISS",
                f"cannot be imported: {error}",
                "broken",
                f"pip install --force-reinstall {builds[0]}",
            )
        return Check(
            "FAISS", "absent: neighbours are found by torch", "note", "pip install -e '.[cpu]' or '.[gpu]'"
        )
    kind = f"{builds[0] if builds else 'of another source'} {getattr(faiss, '__version__', '')}".rstrip()
    gpus = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0  # the CPU's build may not know it
    if gpus:
        return Check("FAISS", f"{kind} on {gpus} GPU{'s' * (gpus > 1)}")
    if _cuda():
        advice = "pip uninstall -y faiss-cpu; pip install -e '.[gpu]'"
        return Check("FAISS", f"{kind}, beside a GPU", "note", advice)
    return Check("FAISS", kind)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cuda() -> bool:
    try:
        return bool(importlib.import_module("torch").cuda.is_available())
    except Exception:  # said of torch already
        return False
