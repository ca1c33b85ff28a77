"""Contrastive self-supervised pretraining of vision backbones."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssl_vision.export.backbones import load_backbone

__version__ = "0.2.0.dev0"

__all__ = ["__version__", "load_backbone"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports what is asked for: ``import ssl_vision`` alone imports no torch."""
        if name != "load_backbone":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ssl_vision.export.backbones import load_backbone

        return load_backbone
