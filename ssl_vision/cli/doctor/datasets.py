"""Checks of data sets on disk and of the W&B settings."""

import hashlib
import importlib
import netrc
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from ssl_vision.cli.doctor.check import Check

_IMAGE = 3 * 96 * 96
_STL10 = {
    "train_X.bin": 5_000 * _IMAGE,
    "train_y.bin": 5_000,
    "test_X.bin": 8_000 * _IMAGE,
    "test_y.bin": 8_000,
    "unlabeled_X.bin": 100_000 * _IMAGE,
}
"""Sizes of the official files in bytes."""


def data_sets(root: Path) -> Iterator[Check]:
    """Check the data sets below ``root``: CIFAR by MD5 sums, STL-10 by file sizes."""
    yield Check("digits", "included in scikit-learn")
    try:
        readers = importlib.import_module("torchvision.datasets")
    except Exception:  # reported by the package checks
        return
    yield _cifar("CIFAR-10", "cifar10", readers.CIFAR10, root)
    yield _cifar("CIFAR-100", "cifar100", readers.CIFAR100, root)
    yield _stl10(root / "stl10_binary")


def _cifar(name: str, config: str, reader: Any, root: Path) -> Check:
    folder = root / reader.base_folder
    if not folder.is_dir():
        return Check(name, f"not in {root}", "note", _fetch(config, root))
    parts = [*reader.train_list, *reader.test_list, (reader.meta["filename"], reader.meta["md5"])]
    damaged = [part for part, md5 in parts if not _has_md5(folder / part, md5)]
    if damaged:
        return Check(
            name,
            f"missing or damaged: {', '.join(damaged)}",
            "broken",
            _replace(folder, config, root),
        )
    return Check(name, f"{folder}, complete")


def _has_md5(path: Path, md5: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == md5
    except OSError:
        return False


def _stl10(folder: Path) -> Check:
    if not folder.is_dir():
        return Check("STL-10", f"not in {folder.parent}", "note", _fetch("stl10", folder.parent))
    sizes = {name: (folder / name).stat().st_size if (folder / name).is_file() else 0 for name in _STL10}
    missing = [name for name, size in sizes.items() if not size]
    if missing == ["unlabeled_X.bin"]:
        return Check(
            "STL-10", f"{folder}, without unlabeled_X.bin", "note", "train with --data.unlabeled false"
        )
    if missing:
        return Check(
            "STL-10",
            f"missing: {', '.join(missing)}",
            "broken",
            _replace(folder, "stl10", folder.parent),
        )
    different = [name for name, size in sizes.items() if size != _STL10[name]]
    if different:
        report = f"{folder}, sizes differ from the official files: {', '.join(different)}"
        return Check("STL-10", report, "note")
    return Check("STL-10", f"{folder}, complete")


def _fetch(config: str, root: Path) -> str:
    return f"name its directory with --root; or download and train: {_download(config, root)}"


def _replace(folder: Path, config: str, root: Path) -> str:
    return f"rm -r {shlex.quote(str(folder))}; {_download(config, root)}"


def _download(config: str, root: Path) -> str:
    """Return the command that downloads a data set and trains on it."""
    option = "" if root == Path("data") else f" --data.root {shlex.quote(str(root))}"
    return f"ssl-vision fit --config configs/pretrain/{config}.yaml --data.download true{option}"


def wandb() -> Iterator[Check]:
    """Check the mode of W&B and whether there is an API key; the key is never shown."""
    mode = os.environ.get("WANDB_MODE", "online")
    host = urlparse(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    key = bool(os.environ.get("WANDB_API_KEY")) or _in_netrc(host)
    if mode == "online" and not key:
        advice = "wandb login; or --wandb offline, which needs no account"
        yield Check("W&B", f"online with --wandb true, no key for {host}", "note", advice)
    else:
        yield Check("W&B", f"{mode} with --wandb true, {'a' if key else 'no'} key for {host}")


def _in_netrc(host: str) -> bool:
    path = os.environ.get("NETRC")
    files = [Path(path)] if path else [Path.home() / ".netrc", Path.home() / "_netrc"]
    for file in files:
        try:
            if netrc.netrc(file).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False
