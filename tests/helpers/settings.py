"""The directory of the configs, and options with which a run on Digits takes about a second."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ssl_vision.encoders import ResNet

CONFIGS = Path(__file__).parents[2] / "configs"

TINY = [
    "--model.encoder.width=4",
    "--model.hidden_dim=16",
    "--model.output_dim=8",
    "--data.batch_size=64",
    "--trainer.max_epochs=2",
    "--trainer.enable_progress_bar=false",
    "--trainer.limit_train_batches=4",
    "--trainer.log_every_n_steps=1",
    "--trainer.accelerator=cpu",
    "--metrics.k=5",
    "--report=false",
]
UNVALIDATED = [*TINY, "--trainer.limit_val_batches=0"]
"""These options without validations, for tests that do not read their results."""


def resnet(**options: Any) -> Callable[[], ResNet]:
    """Return a function that builds a ResNet with the given options."""
    return partial(ResNet, **options)
