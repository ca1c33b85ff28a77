"""Tests of the approximate neighbour search and its recall against a brute-force search."""

import numpy as np
import pytest
import torch

import ssl_vision.metrics.neighbours as module
from ssl_vision.metrics import knn_table, nearest
from ssl_vision.metrics.knn_table import SAMPLE
from ssl_vision.metrics.neighbours import recall
from ssl_vision.metrics.rows import LazyRows

pytest.importorskip("faiss")
METRICS = pytest.mark.parametrize("metric", ["cosine", "euclidean"])
K = 30


@pytest.fixture(scope="module")
def rows():
    generator = torch.Generator().manual_seed(0)
    scale = torch.rand(3600, 1, generator=generator) + 0.5
    features = scale * torch.randn(3600, 24, generator=generator)
    return features[:600], features[600:]


def similarities(queries, bank, metric):
    """Compute all similarities in float64, shape (Q, N)."""
    queries, bank = (each.double().numpy() for each in (queries, bank))
    if metric == "euclidean":
        return -np.sqrt(((queries[:, None] - bank) ** 2).sum(axis=2))
    queries, bank = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, bank))
    return queries @ bank.T


@METRICS
def test_recall_matches_brute_force(rows, metric):
    queries, bank = rows
    labels = torch.arange(len(bank)) % 7
    (score,) = knn_table(
        queries, torch.arange(600) % 7, bank, labels,
        num_classes=7, ks=(K,), temperatures=(0.1,), metric=metric, index="ivf",
    )  # fmt: skip
    sample = np.arange(SAMPLE) * len(queries) // SAMPLE
    exact = np.argsort(-similarities(queries[sample], bank, metric), axis=1)[:, :K]
    approximate = nearest(queries, bank, K, metric=metric, index="ivf").index[sample].tolist()
    expected = np.mean(
        [len({*one} & {*other}) / K for one, other in zip(approximate, exact.tolist(), strict=True)]
    )
    assert score.recall == pytest.approx(expected)
    assert 0.1 < score.recall < 0.95  # random rows have no clusters


@METRICS
def test_approximate_neighbours_have_exact_sorted_similarities(rows, metric):
    queries, bank = rows[0][:100], rows[1]
    approximate = nearest(queries, bank, K, metric=metric, index="ivf")
    expected = np.take_along_axis(similarities(queries, bank, metric), approximate.index.numpy(), axis=1)
    np.testing.assert_allclose(approximate.similarity.numpy(), expected, atol=1e-5)
    assert (approximate.similarity.diff(dim=1) <= 0).all()
    assert all(len(set(row)) == K for row in approximate.index.tolist())


@METRICS
def test_sharded_bank_gives_same_neighbours(rows, metric, monkeypatch):
    queries, bank = rows
    whole = nearest(queries, bank, K, metric=metric, index="ivf")
    monkeypatch.setattr(module, "_SHARD", 24 * 1000)
    monkeypatch.setattr(module, "BANK_TILE", 300)
    lazy = LazyRows(lambda numbers: bank[numbers], tuple(bank.shape))
    parts = nearest(queries, lazy, K, metric=metric, index="ivf")
    assert torch.equal(parts.index, whole.index)
    torch.testing.assert_close(parts.similarity, whole.similarity)


@METRICS
def test_k_above_cluster_size_has_perfect_recall(rows, metric):
    queries, bank = rows[0][:50], rows[1][:400]
    approximate, exact = (
        nearest(queries, bank, 399, metric=metric, index=index) for index in ("ivf", "flat")
    )
    assert recall(approximate, exact, 399) == 1


def test_exact_search_has_no_recall(rows):
    queries, bank = rows
    labels = torch.zeros(len(bank), dtype=torch.int64)
    (score,) = knn_table(queries, labels[:600], bank, labels, num_classes=1, ks=(3,), temperatures=(None,))
    assert score.recall is None


def test_unknown_index_and_missing_faiss_raise_value_error(rows, monkeypatch):
    queries, bank = rows
    with pytest.raises(ValueError, match="index: expected flat or ivf, got 'hnsw'"):
        nearest(queries, bank, 3, index="hnsw")
    monkeypatch.setattr(module, "_faiss", lambda: None)
    with pytest.raises(ValueError, match="FAISS is not installed"):
        nearest(queries, bank, 3, index="ivf")
