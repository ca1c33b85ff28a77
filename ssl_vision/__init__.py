"""Contrastive self-supervised pretraining of vision backbones."""

__version__ = "0.1.0"
