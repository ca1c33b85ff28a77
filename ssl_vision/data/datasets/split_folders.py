"""Which subfolders of a folder of images are its splits."""

import os
from pathlib import Path

from ssl_vision.errors import InputError

NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
"""Names by which the folder of a split is recognised, in lower case; the first one is the default."""

OPTIONS = {"train": "--data.train", "val": "--data.val_folder", "test": "--data.test"}
"""The option that names the folder of a split."""

TITLES = {"train": "train", "val": "validation", "test": "test"}


class SplitFolders:
    """The folders of the splits below a root.

    A folder that is chosen must exist. Otherwise a folder with one of the split's known names is taken, in
    upper or lower case; the default name wins over the others.

    Args:
        root: Folder of the images.
        chosen: Path of each split's folder below root; the default name means that none was chosen.

    Raises:
        InputError: The root does not exist or cannot be read.
    """

    def __init__(self, root: Path, chosen: dict[str, str]) -> None:
        if not root.is_dir():
            raise InputError(f"no folder {root}")
        self.root = root
        self.chosen = chosen
        try:
            with os.scandir(root) as entries:
                folders = [entry.name for entry in entries if entry.is_dir()]
        except OSError as error:
            raise InputError(f"{root} cannot be read ({error.strerror})") from error
        self._folders = sorted(name for name in folders if not name.startswith("."))

    def find(self, split: str) -> Path | None:
        """The folder of a split; None if there is none.

        Raises:
            InputError: The chosen folder does not exist, or several folders could be the split.
        """
        name = self.chosen[split]
        if (folder := self.root / name).is_dir():
            return folder
        if self._is_chosen(split):
            raise InputError(f"no folder {folder} for the {TITLES[split]} split: {self._advice(split)}")
        known = self._known(split)
        if len(known) > 1:
            raise InputError(
                f"{self.root}: {_listed(known)} could each be the {TITLES[split]} split: "
                f"choose one with {OPTIONS[split]} FOLDER"
            )
        return self.root / known[0] if known else None

    def get(self, split: str) -> Path:
        """The folder of a split.

        Raises:
            InputError: There is none, or several folders could be it.
        """
        folder = self.find(split)
        if folder is None:
            raise InputError(f"no folder for the {TITLES[split]} split in {self.root}: {self._advice(split)}")
        return folder

    def others(self, folder: Path) -> set[Path]:
        """The folders below a train folder whose images are not trained on: those of the other splits.

        If root is the train split because it has no train folder, no folder with a known name is trained on,
        whatever was chosen.
        """
        names = {self.chosen["val"], self.chosen["test"]}
        if folder.resolve() == self.root.resolve():
            for split in ("val", "test"):
                if not self._is_chosen("train") or not self._is_chosen(split):
                    names |= set(self._known(split))
        return {self.root / name for name in names}

    def _is_chosen(self, split: str) -> bool:
        return self.chosen[split] != NAMES[split][0]

    def _known(self, split: str) -> list[str]:
        return [name for name in self._folders if name.lower() in NAMES[split]]

    def _advice(self, split: str) -> str:
        there = f"the folders there are {_listed(self._folders)}" if self._folders else "there are no folders"
        return f"name it with {OPTIONS[split]} FOLDER ({there})"


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= 12 else [*names[:11], f"{len(names) - 11} more"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
