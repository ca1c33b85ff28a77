"""Control of printed output: ``--quiet`` prints only results and errors, and warnings take one line."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "SSL_VISION_QUIET"
_TALKERS = ("pytorch_lightning", "lightning_fabric", "lightning.pytorch", "lightning.fabric")


def quiet() -> bool:
    """Return True if only results and errors are printed."""
    return bool(os.environ.get(_VARIABLE))


@contextmanager
def silenced() -> Iterator[None]:
    """Context manager that prints only results and errors, in this process and in those that it starts."""
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


def one_line_warnings() -> None:
    """Print warnings without their file and source line, from now on; Lightning sets a form of its own."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
