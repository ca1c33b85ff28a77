"""``--quiet``: results and errors, and nothing else."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "SSL_VISION_QUIET"
_TALKERS = ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric")


def quiet() -> bool:
    """Whether no more than results and errors is to be printed."""
    return bool(os.environ.get(_VARIABLE))


@contextmanager
def silenced() -> Iterator[None]:
    """Quiet for as long as the context lasts, in this process and in those that it starts."""
    before = os.environ.get(_VARIABLE)
    levels = {name: logging.getLogger(name).level for name in _TALKERS}
    os.environ[_VARIABLE] = "1"
    for name in _TALKERS:
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
