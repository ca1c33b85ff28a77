"""Encoders: networks that map images to feature vectors."""

from ssl_vision.encoders.resnet import Backbone

__all__ = ["Backbone"]
