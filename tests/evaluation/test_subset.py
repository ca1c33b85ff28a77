"""The subsets of the labels: fixed, balanced, nested in nothing but the train split."""

import pytest
import torch

from ssl_vision.data import CIFAR10, Digits
from ssl_vision.evaluation.stratified import stratified
from ssl_vision.evaluation.subset import SEED, label_subset, write

LABELS = torch.arange(50_000) % 10


@pytest.mark.parametrize(
    ("share", "count"), [("1%", 500), ("5%", 2_500), ("10%", 5_000), ("30%", 15_000), ("50%", 25_000)]
)
def test_a_subset_has_its_share_once_each(share, count):
    kept = label_subset(LABELS, share, "CIFAR10")
    assert int((kept >= 0).sum()) == count
    assert torch.equal(kept[kept >= 0], LABELS[kept >= 0])
    assert torch.equal(label_subset(LABELS, "all", "CIFAR10"), LABELS)


def test_other_data_sets_have_a_subset_that_is_as_fixed():
    labels = Digits().split("train").labels
    kept = label_subset(labels, "10%", "Digits")
    assert torch.equal(kept >= 0, stratified(labels, 0.1, seed=SEED))
    assert torch.equal(kept, label_subset(labels, "10%", "Digits"))


def test_a_smaller_train_split_is_refused():
    with pytest.raises(ValueError, match="larger train split than 100 rows"):
        label_subset(LABELS[:100], "1%", "CIFAR10")


@pytest.mark.realdata
def test_the_files_of_cifar10_are_balanced_and_what_the_script_writes(data_root, tmp_path):
    labels = CIFAR10(root=data_root).split("train").labels
    write(tmp_path, data_root)
    for share, each, name in (("1%", 50, "1"), ("10%", 500, "10")):
        kept = label_subset(labels, share, "CIFAR10")
        assert kept[kept >= 0].bincount().tolist() == [each] * 10
        written = (tmp_path / f"cifar10_{name}_percent.txt").read_text().split()
        assert (kept >= 0).nonzero()[:, 0].tolist() == list(map(int, written))
