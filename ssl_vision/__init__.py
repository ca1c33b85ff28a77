"""Contrastive self-supervised pretraining of vision encoders."""

from typing import TYPE_CHECKING

from ssl_vision._version import __version__

if TYPE_CHECKING:
    from ssl_vision.api import evaluate, fit
    from ssl_vision.pretrained.backbones import load_encoder

__all__ = ["__version__", "evaluate", "fit", "load_encoder"]

if not TYPE_CHECKING:
    _MODULES = {
        "evaluate": "ssl_vision.api",
        "fit": "ssl_vision.api",
        "load_encoder": "ssl_vision.pretrained.backbones",
    }

    def __getattr__(name: str) -> object:
        """Import a function on first access, so that ``import ssl_vision`` does not import torch."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)
