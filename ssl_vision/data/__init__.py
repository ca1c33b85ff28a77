"""Data sets, batches and views."""

from ssl_vision.data.augment.random_views import Views
from ssl_vision.data.augment.view_parameters import ViewParameters
from ssl_vision.data.datasets.built_in import CIFAR10, CIFAR100, STL10, Digits
from ssl_vision.data.datasets.hugging_face import HuggingFace
from ssl_vision.data.datasets.image_folder import ImageFolder
from ssl_vision.data.datasets.map_style import Dataset
from ssl_vision.data.datasets.shards import Shards
from ssl_vision.data.datasets.torchvision_data import Torchvision
from ssl_vision.data.images import Batch, Images
from ssl_vision.data.loading.loader import Batches
from ssl_vision.data.module import BANK, QUERIES, ImageData
from ssl_vision.data.random import fold, uniforms

__all__ = [
    "BANK",
    "CIFAR10",
    "CIFAR100",
    "QUERIES",
    "STL10",
    "Batch",
    "Batches",
    "Dataset",
    "Digits",
    "HuggingFace",
    "ImageData",
    "ImageFolder",
    "Images",
    "Shards",
    "Torchvision",
    "ViewParameters",
    "Views",
    "fold",
    "uniforms",
]
