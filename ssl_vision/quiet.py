"""Control of printed output: ``--quiet`` prints only results and errors, and warnings take one line."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "SSL_VISION_QUIET"
_LIGHTNING = ("pytorch_lightning", "lightning_fabric")


def quiet() -> bool:
    """Return True if only results and errors are printed."""
    return bool(os.environ.get(_VARIABLE))


@contextmanager
def silenced() -> Iterator[None]:
    """Context manager that prints only results and errors, in this process and in those that it starts."""
    before = os.environ.get(_VARIABLE)
    levels = {name: logging.getLogger(name).level for name in _LIGHTNING}
    os.environ[_VARIABLE] = "1"
    for name in _LIGHTNING:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def one_line_warnings() -> None:
    """Print warnings without their file and source line, from now on; Lightning sets a form of its own."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"


@contextmanager
def without_noise() -> Iterator[None]:
    """Context manager that hides warnings and messages of Lightning that do not concern the run."""
    with warnings.catch_warnings():
        for message in (
            "LightningCLI's args parameter",  # which equal sys.argv here
            ".*does not have many workers",
            "The number of training batches .* is smaller than the logging",
            "Be aware that when using `ckpt_path`",
            ".*LeafSpec.*is deprecated",
        ):
            warnings.filterwarnings("ignore", message=message)
        # Lightning's use of jsonargparse
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"pytorch_lightning\.cli")
        logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(_is_about_the_run)
        for name in ("lightning_fabric.utilities.seed", "pytorch_lightning.accelerators.cuda"):
            logging.getLogger(name).setLevel(logging.WARNING)
        yield


def _is_about_the_run(record: logging.LogRecord) -> bool:
    noise = (
        "TPU available", "GPU available", "litlogger", "litmodels", "Loading `train_dataloader`",
        "Automatic Mixed Precision", "was configured so", "has Tensor Cores", "Restoring states",
        "Restored all states", "Loaded model weights", "`Trainer.fit` stopped",
    )  # fmt: skip
    return not any(words in record.getMessage() for words in noise)
