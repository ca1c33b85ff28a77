"""Classification data sets of torchvision: their splits, and why others are left out."""

from typing import Any

Splits = dict[str, Any]

_TRAIN_TEST: Splits = {"train": "train", "test": "test"}
_TRAIN_VAL: Splits = {"train": "train", "val": "val"}
_ALL: Splits = {"train": "train", "val": "val", "test": "test"}
_BOOLEAN: Splits = {"train": True, "test": False}
_ONE: Splits = {"train": None}

DATASETS: dict[str, Splits] = {
    "CIFAR10": _BOOLEAN,
    "CIFAR100": _BOOLEAN,
    "CLEVRClassification": _TRAIN_VAL,
    "Caltech101": _ONE,
    "Caltech256": _ONE,
    "Country211": {"train": "train", "val": "valid", "test": "test"},
    "DTD": _ALL,
    "EMNIST": {"train": {"train": True}, "test": {"train": False}},
    "EuroSAT": _ONE,
    "FER2013": _TRAIN_TEST,
    "FGVCAircraft": _ALL,
    "FakeData": {"train": {}, "test": {"random_offset": 1_000_000}},
    "FashionMNIST": _BOOLEAN,
    "Flowers102": _ALL,
    "Food101": _TRAIN_TEST,
    "GTSRB": _TRAIN_TEST,
    "INaturalist": {"train": "2021_train", "val": "2021_valid"},
    "ImageNet": _TRAIN_VAL,
    "Imagenette": _TRAIN_VAL,
    "KMNIST": _BOOLEAN,
    "LFWPeople": _TRAIN_TEST,
    "MNIST": _BOOLEAN,
    "OxfordIIITPet": {"train": "trainval", "test": "test"},
    "PCAM": _ALL,
    "Places365": {"train": "train-standard", "val": "val"},
    "QMNIST": _BOOLEAN,
    "RenderedSST2": _ALL,
    "SEMEION": _ONE,
    "STL10": _TRAIN_TEST,
    "SUN397": _ONE,
    "SVHN": _TRAIN_TEST,
    "StanfordCars": _TRAIN_TEST,
    "USPS": _BOOLEAN,
}
"""Splits of each data set, with the value of the constructor's argument that selects them.

The argument is the one of `ARGUMENTS` in the signature. None: there is one split and no argument. A
dictionary has several arguments, or one of a parent class.
"""

ARGUMENTS = ("split", "train", "version")
"""Names of arguments that select a split."""

_DETECTION = "has no class for a whole image"
_PAIRS = "has pairs of images and their displacement"
_VIDEO = "consists of videos"

EXCLUDED = {
    "CREStereo": _PAIRS,
    "CarlaStereo": _PAIRS,
    "CelebA": "has 40 attributes for each image and no class",
    "Cityscapes": _DETECTION,
    "CocoCaptions": _DETECTION,
    "CocoDetection": _DETECTION,
    "DatasetFolder": "reads folders, as --data ImageFolder does",
    "ETH3DStereo": _PAIRS,
    "FallingThingsStereo": _PAIRS,
    "Flickr30k": _DETECTION,
    "Flickr8k": _DETECTION,
    "FlyingChairs": _PAIRS,
    "FlyingThings3D": _PAIRS,
    "HD1K": _PAIRS,
    "HMDB51": _VIDEO,
    "ImageFolder": "reads folders, as --data ImageFolder does",
    "InStereo2k": _PAIRS,
    "Kinetics": _VIDEO,
    "Kitti": _DETECTION,
    "Kitti2012Stereo": _PAIRS,
    "Kitti2015Stereo": _PAIRS,
    "KittiFlow": _PAIRS,
    "LFWPairs": "has pairs of images",
    "LSUN": "is read from LMDB files, which only one thread can open; export its images to folders",
    "LSUNClass": "is one class of LSUN",
    "Middlebury2014Stereo": _PAIRS,
    "MovingMNIST": _VIDEO,
    "Omniglot": "numbers its classes in the order in which the disk lists them",
    "PhotoTour": "has patches to match and no class",
    "SBDataset": _DETECTION,
    "SBU": _DETECTION,
    "SceneFlowStereo": _PAIRS,
    "Sintel": _PAIRS,
    "SintelStereo": _PAIRS,
    "UCF101": _VIDEO,
    "VOCDetection": _DETECTION,
    "VOCSegmentation": _DETECTION,
    "VisionDataset": "is a base class",
    "WIDERFace": _DETECTION,
}
"""Reasons why the other data sets of torchvision are not read."""
