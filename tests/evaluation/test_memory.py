"""Tests of the raw-pixel baseline: it matches whole tensors, and memory does not grow with the images."""

import os
import subprocess
import sys

import pytest
import torch
from sklearn.linear_model import LogisticRegression

import ssl_vision.metrics.rows
from ssl_vision.data import Digits
from ssl_vision.data.module import Split
from ssl_vision.evaluation.logistic import logistic_correct
from ssl_vision.evaluation.probe import Grid, ProbeRule, grid_probe, linear_probe
from ssl_vision.evaluation.splits import Pixels, Splits
from ssl_vision.metrics import knn_table, nearest

COUNT: dict[Split, int] = {"train": 300, "test": 80}


@pytest.fixture(params=[2**20, 20_000], ids=["one part", "several parts"])
def splits(request, monkeypatch):
    """Splits of the digits that are read in one part or in several."""
    monkeypatch.setattr(ssl_vision.metrics.rows, "_VALUES", request.param)
    data = Digits()
    return Splits.of(data, {name: data.split(name).select(torch.arange(n)) for name, n in COUNT.items()})


def lazy_and_whole(splits, name):
    images = splits.images[name]
    return Pixels(splits).plain(name, "raw"), images.images.flatten(1).float() / 255, images.labels


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_lazy_pixel_neighbours_match_whole_tensors(splits, metric):
    (bank, whole_bank, labels), (queries, whole, truth) = (lazy_and_whole(splits, n) for n in COUNT)
    result, expected = (
        nearest(*rows, 9, metric=metric) for rows in ((queries, bank), (whole.double(), whole_bank.double()))
    )
    torch.testing.assert_close(result.similarity, expected.similarity, atol=1e-6, rtol=1e-6)
    assert (result.index == expected.index).float().mean() > 0.99  # except for ties within rounding
    options = {"num_classes": 10, "ks": (1, 5, 20), "temperatures": (0.1, None), "metric": metric}
    for one, other in zip(
        knn_table(queries, truth, bank, labels, **options),
        knn_table(whole, truth, whole_bank, labels, **options),
        strict=True,
    ):
        assert one == pytest.approx(other, abs=1 / COUNT["test"])


def test_lazy_pixel_probes_match_whole_tensors(splits):
    (train, whole_train, labels), (test, whole, truth) = (lazy_and_whole(splits, n) for n in COUNT)
    labels = labels.clone()
    labels[::7] = -1
    lazy, plain = (train, labels, test, truth), (whole_train, labels, whole, truth)
    rule = ProbeRule(epochs=3, lr=0.1)
    lazy_probe, plain_probe = (
        linear_probe(*data, num_classes=10, rule=rule, seed=1) for data in (lazy, plain)
    )
    torch.testing.assert_close(lazy_probe.weight, plain_probe.weight, atol=1e-6, rtol=1e-5)
    assert torch.equal(lazy_probe.correct, plain_probe.correct)
    assert lazy_probe.train_top1 == pytest.approx(plain_probe.train_top1)
    grid = Grid(lrs=(0.01, 0.1), epochs=3)
    lazy_grid, plain_grid = (grid_probe(*data, num_classes=10, rule=grid, seed=1) for data in (lazy, plain))
    assert torch.equal(lazy_grid.correct, plain_grid.correct)
    assert lazy_grid[1:3] == plain_grid[1:3]
    assert lazy_grid.held_out_top1.tolist() == pytest.approx(plain_grid.held_out_top1.tolist())


@pytest.mark.parametrize("classes", [2, 10])
def test_lazy_pixel_logistic_regression_matches_scikit_learn(splits, classes):
    (train, whole_train, labels), (test, whole, truth) = (lazy_and_whole(splits, n) for n in COUNT)
    labels, truth = (torch.where(each < classes, each, -1) for each in (labels, truth))
    labelled, labelled_test = labels >= 0, truth >= 0
    mean, std = whole_train[labelled].double().mean(0), whole_train[labelled].double().std(0, correction=0)
    varies = std > 1e-7 * mean
    rows, queries = (
        ((x.double() - mean) / std)[:, varies] for x in (whole_train[labelled], whole[labelled_test])
    )
    regression = LogisticRegression(max_iter=1000).fit(rows.numpy(), labels[labelled].numpy())
    expected = regression.score(queries.numpy(), truth[labelled_test].numpy())
    correct = logistic_correct(train, labels, test, truth, num_classes=10)
    assert float(correct.double().mean()) == pytest.approx(expected)


GROWTH = """
import resource
import torch
import ssl_vision.metrics.neighbours
import ssl_vision.metrics.rows
from ssl_vision.data import Digits, Images
from ssl_vision.evaluation.splits import Pixels, Splits
from ssl_vision.evaluation.logistic import Logistic
from ssl_vision.evaluation.subject import run_protocol
from ssl_vision.evaluation.measurement import KNN, Source
from ssl_vision.evaluation.probe import Grid, Linear
from ssl_vision.evaluation.protocol import Protocol

ssl_vision.metrics.neighbours.DIFFERENCES = 2**20
ssl_vision.metrics.rows._VALUES = 2**18
store = torch.randint(256, (50, 3, 96, 96), dtype=torch.uint8)
small = {"epochs": 1, "batch_size": 32}
measurements = (
    KNN(k=3), KNN(k=3, distance="euclidean"), Linear(**small), Grid(lrs=(0.1,), **small), Logistic(max_iter=1)
)
for count in (80, 320):
    rows = torch.arange(count) % 50
    images = Images(store, rows % 2, ("a", "b"), rows=rows)
    splits = Splits.of(Digits(), {"train": images, "test": images.select(torch.arange(count // 2))})
    source = Source(Pixels(splits), "raw")
    found = list(run_protocol(Protocol("p", ("backbone",), measurements), source))
    assert len(found) == len(measurements)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.long
def test_memory_does_not_grow_with_number_of_images():
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}  # freed memory leaves the process
    command = [sys.executable, "-c", GROWTH]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    small_peak, large_peak = map(int, done.stdout.split())
    bank_size = (320 - 80) * 3 * 96 * 96 * 4 / 2**20  # 25 MiB for the bank alone, in float32
    assert large_peak - small_peak < bank_size
