"""Recognition of the split directories of a folder of images."""

import os
from itertools import chain
from pathlib import Path

from ssl_vision.errors import InputError

NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
"""Recognised directory names of each split in lower case; the first one is the default."""

OPTIONS = {"train": "--data.train", "val": "--data.val_folder", "test": "--data.test"}
"""Options that set the directory of each split."""

TITLES = {"train": "train", "val": "validation", "test": "test"}


class SplitFolders:
    """Directories of the splits below a root.

    A chosen directory must exist. Otherwise, a directory with one of the recognised names of the split is
    used, in upper or lower case; the default name takes precedence.

    Args:
        root: Directory of the images.
        chosen: Path of each split's directory below root; the default name means that none was chosen.

    Raises:
        InputError: the root does not exist or cannot be read.
    """

    def __init__(self, root: Path, chosen: dict[str, str]) -> None:
        if not root.is_dir():
            raise InputError(f"no folder {root}: give the directory of the images with --data.root")
        self.root = root
        self.chosen = chosen
        try:
            with os.scandir(root) as entries:
                folders = [entry.name for entry in entries if entry.is_dir()]
        except OSError as error:
            raise InputError(f"{root} cannot be read ({error.strerror})") from error
        self._folders = sorted(name for name in folders if not name.startswith("."))

    def find(self, split: str) -> Path | None:
        """Return the directory of a split, or None.

        Raises:
            InputError: the chosen directory does not exist, or several directories match the split.
        """
        name = self.chosen[split]
        if (folder := self.root / name).is_dir():
            return folder
        if self._is_chosen(split):
            raise InputError(f"no folder {folder} for the {TITLES[split]} split: {self._advice(split)}")
        matches = self._matches(split)
        if len(matches) > 1:
            raise InputError(
                f"{self.root}: {_listed(matches)} could each be the {TITLES[split]} split; "
                f"choose one with {OPTIONS[split]} FOLDER"
            )
        return self.root / matches[0] if matches else None

    def get(self, split: str) -> Path:
        """Return the directory of a split.

        Raises:
            InputError: there is none, or several directories match the split.
        """
        folder = self.find(split)
        if folder is None:
            raise InputError(f"no folder for the {TITLES[split]} split in {self.root}: {self._advice(split)}")
        return folder

    def others(self, folder: Path) -> set[Path]:
        """Return the directories of the other splits, whose images are excluded from a train directory.

        If root itself is the train split because there is no train directory, directories with recognised
        names are always excluded.
        """
        names = {self.chosen["val"], self.chosen["test"]}
        if folder.resolve() == self.root.resolve():
            for split in ("val", "test"):
                if not self._is_chosen("train") or not self._is_chosen(split):
                    names |= set(self._matches(split))
        return {self._inside(self.root / name) for name in names}

    def taken(self, folder: Path) -> set[Path]:
        """Return the directories that are taken as splits, given that of train; empty if that is chosen."""
        if folder.resolve() == self.root.resolve():
            return {path for path in self.others(folder) if path.is_dir()}
        names = [] if self._is_chosen("train") else chain(self.chosen.values(), *map(self._matches, NAMES))
        return {self.root / name for name in names if (self.root / name).is_dir()}

    def _inside(self, folder: Path) -> Path:
        """Return a directory as a path below root, however it is written, if it is inside root."""
        top, real = self.root.resolve(), folder.resolve()
        return self.root / real.relative_to(top) if real.is_relative_to(top) else folder

    def _is_chosen(self, split: str) -> bool:
        return self.chosen[split] != NAMES[split][0]

    def _matches(self, split: str) -> list[str]:
        return [name for name in self._folders if name.lower() in NAMES[split]]

    def _advice(self, split: str) -> str:
        folders = f"folders: {_listed(self._folders)}" if self._folders else "there are no folders"
        return f"set it with {OPTIONS[split]} FOLDER ({folders})"


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= 12 else [*names[:11], f"{len(names) - 11} more"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
