"""Checks of Python, required and optional packages, and FAISS."""

import importlib
import platform
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata

from packaging.requirements import Requirement

import ssl_vision
from ssl_vision.cli.doctor.check import Check

_OLDEST = (3, 11, 4)
_IMPORTED = ("torch", "torchvision", "pytorch_lightning")
"""Packages that fail on import rather than on installation if versions or drivers do not match."""

_NOT_FOR_USERS = ("cpu", "gpu", "test", "dev", "docs", "notebooks")
"""Extras that are not listed: those of FAISS, which has its own check, and those for developers."""


def software() -> Iterator[Check]:
    """Check Python and the installed packages."""
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
    yield from _needed([req for req in required if req.marker is None or req.marker.evaluate({"extra": ""})])
    yield from map(_imported, _IMPORTED)
    yield from _extras(required)
    yield _faiss()


def _needed(required: list[Requirement]) -> Iterator[Check]:
    unmet = [(req, problem) for req in required if (problem := _problem(req)) is not None]
    for req, problem in unmet:
        yield Check(req.name, problem, "broken", f"pip install '{req}'")
    yield Check("requirements", f"{len(required) - len(unmet)} of {len(required)} met")


def _problem(req: Requirement) -> str | None:
    """Return how a requirement is not met; None if it is met."""
    version = _version(req.name)
    if version is None:
        return "not installed"
    return None if req.specifier.contains(version, prereleases=True) else f"{version}, not {req.specifier}"


def _imported(name: str) -> Check:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # an incompatible binary may raise anything
        cause = next(iter(str(error).splitlines()), "")
        advice = "pip install --force-reinstall torch torchvision"
        return Check(name, f"cannot be imported: {type(error).__name__}: {cause}", "broken", advice)
    return Check(name, str(module.__version__))


def _extras(required: Iterable[Requirement]) -> Iterator[Check]:
    extras: dict[str, list[Requirement]] = {}
    for req in required:
        for name in metadata.metadata("ssl_vision").get_all("Provides-Extra") or ():
            if req.marker and not req.marker.evaluate({"extra": ""}) and req.marker.evaluate({"extra": name}):
                extras.setdefault(name, []).append(req)
    for name, members in extras.items():
        if name in _NOT_FOR_USERS:
            continue
        unmet = ", ".join(req.name for req in members if _problem(req) is not None)
        if unmet:
            yield Check(f"extra {name}", f"without {unmet}", "note", f"pip install -e '.[{name}]'")
        else:
            yield Check(f"extra {name}", ", ".join(req.name for req in members))


def _faiss() -> Check:
    """Check which build of FAISS is installed; the two builds conflict, as both install the same files."""
    builds = [name for name in ("faiss-cpu", "faiss-gpu") if _version(name)]
    if len(builds) > 1:
        advice = "pip uninstall -y faiss-cpu faiss-gpu, then install one of them"
        return Check("FAISS", "faiss-cpu and faiss-gpu conflict", "broken", advice)
    try:
        faiss = importlib.import_module("faiss")
        if not hasattr(faiss, "IndexFlatIP"):  # of a partly removed build, an empty folder remains
            raise ImportError("its files are missing")
    except Exception as error:  # a GPU build without NVIDIA's libraries raises RuntimeError
        if builds:
            advice = f"pip install --force-reinstall {builds[0]}"
            return Check("FAISS", f"cannot be imported: {error}", "broken", advice)
        return Check(
            "FAISS", "not installed; torch is used instead", "note", "pip install -e '.[cpu]' or '.[gpu]'"
        )
    build = f"{builds[0] if builds else 'from another source'} {getattr(faiss, '__version__', '')}".rstrip()
    gpus = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0  # not in all CPU builds
    if gpus:
        return Check("FAISS", f"{build} on {gpus} GPU{'s' * (gpus > 1)}")
    if _cuda():
        advice = "pip uninstall -y faiss-cpu; pip install -e '.[gpu]'"
        return Check("FAISS", f"{build}, does not use the GPU", "note", advice)
    return Check("FAISS", build)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cuda() -> bool:
    try:
        return bool(importlib.import_module("torch").cuda.is_available())
    except Exception:  # reported by the check of torch
        return False
