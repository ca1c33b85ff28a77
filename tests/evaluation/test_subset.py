"""Tests of label subsets: balanced, and the same images on every machine and in every version."""

import hashlib

import pytest
import torch

from ssl_vision.data import CIFAR10
from ssl_vision.evaluation.splits import label_subset

LABELS = torch.arange(50_000) % 10


def hash_of(subset: torch.Tensor) -> str:
    rows = (subset >= 0).nonzero()[:, 0].tolist()
    return hashlib.sha256(" ".join(map(str, rows)).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("share", "count"), [("1%", 500), ("5%", 2_500), ("10%", 5_000), ("30%", 15_000), ("50%", 25_000)]
)
def test_subset_has_requested_share_of_each_class(share, count):
    subset = label_subset(LABELS, share)
    assert subset[subset >= 0].bincount().tolist() == [count // 10] * 10
    assert torch.equal(subset[subset >= 0], LABELS[subset >= 0])


def test_subset_all_keeps_all_labels():
    assert torch.equal(label_subset(LABELS, "all"), LABELS)


@pytest.mark.parametrize(("share", "expected"), [("1%", "39d94247ddef4983"), ("10%", "86b199ac43a9816c")])
def test_subset_matches_recorded_hash(share, expected):
    assert hash_of(label_subset(LABELS, share)) == expected


@pytest.mark.realdata
@pytest.mark.parametrize(("share", "expected"), [("1%", "05ea4486ce9a4b8f"), ("10%", "284356f197c2c917")])
def test_cifar10_subset_matches_recorded_hash(data_root, share, expected):
    assert hash_of(label_subset(CIFAR10(root=data_root).split("train").labels, share)) == expected
