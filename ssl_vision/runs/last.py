"""The checkpoint that a run continues from."""

from pathlib import Path
from typing import Any

from pytorch_lightning.callbacks import ModelCheckpoint


class LastCheckpoint(ModelCheckpoint):
    """Keeps ``last.ckpt`` of the last completed epoch, beside whatever else the user checkpoints.

    It has no state of its own: no path of the machine that wrote it goes into a checkpoint.

    Args:
        folder: where ``last.ckpt`` lies.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(
            dirpath=folder,
            save_last=True,
            save_top_k=0,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing."""
