"""Data sets, batches and views."""

from ssl_vision.data.cifar import CIFAR10, CIFAR100
from ssl_vision.data.digits import Digits
from ssl_vision.data.folder import ImageFolder
from ssl_vision.data.images import Batch, Images
from ssl_vision.data.loader import Batches
from ssl_vision.data.module import BANK, QUERIES, ImageData
from ssl_vision.data.parameters import ViewParameters
from ssl_vision.data.random import fold, uniforms
from ssl_vision.data.stl10 import STL10
from ssl_vision.data.views import Views

__all__ = [
    "BANK",
    "CIFAR10",
    "CIFAR100",
    "QUERIES",
    "STL10",
    "Batch",
    "Batches",
    "Digits",
    "ImageData",
    "ImageFolder",
    "Images",
    "ViewParameters",
    "Views",
    "fold",
    "uniforms",
]
