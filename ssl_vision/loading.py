"""Import of the modules of a command."""

import gc
import sys
from importlib import import_module
from types import ModuleType

from ssl_vision.progress import Progress


def load(module: str) -> ModuleType:
    """Import a module, and show a line meanwhile.

    The first import of torch is done without garbage collection, and later collections leave out all objects
    that exist then. They last as long as the process, and searching them again and again would take about a
    fifth of the CPU time until training starts.
    """
    with Progress("loading", lines=False):
        if "torch" in sys.modules or not gc.isenabled():
            return import_module(module)
        gc.disable()
        try:
            return import_module(module)
        finally:
            gc.freeze()
            gc.enable()
