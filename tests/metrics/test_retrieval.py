import math

import pytest
import torch

from ssl_vision.metrics import nearest, retrieval

KS = (1, 2, 5, 100)


def by_loops(features, labels, ks=KS):
    rows = []
    for row, label in zip(features.double().tolist(), labels.tolist(), strict=True):
        length = math.sqrt(sum(v * v for v in row)) or 1.0
        if label >= 0:
            rows.append(([v / length for v in row], label))
    precisions, hits = [], {k: [] for k in ks}
    for i, (query, own) in enumerate(rows):
        others = []
        for j, (row, label) in enumerate(rows):
            if i != j:
                cosine = sum(a * b for a, b in zip(query, row, strict=True))
                others.append((-round(cosine, 9), label == own))
        others.sort()  # at equal cosines, False (another class) comes first
        ranks = [rank for rank, (_, same) in enumerate(others, 1) if same]
        if ranks:
            precisions.append(sum(i / rank for i, rank in enumerate(ranks, 1)) / len(ranks))
            for k in ks:
                hits[k].append(ranks[0] <= k)
    if not precisions:
        return [math.nan] * (1 + len(ks))
    return [sum(v) / len(precisions) for v in (precisions, *hits.values())]


def values(result):
    assert result.mean_average_precision.dtype == result.recall.dtype == torch.float64
    return pytest.approx(
        [result.mean_average_precision.item(), *result.recall.tolist()], abs=1e-9, nan_ok=True
    )


@pytest.mark.parametrize("tile", [1, 7, 256])
@pytest.mark.parametrize("classes", [1, 3, 20])
def test_retrieval_matches_loops(classes, tile):
    g = torch.Generator().manual_seed(classes)
    labels = torch.randint(-1, classes, (50,), generator=g)
    features = torch.randn(50, 6, generator=g) * 10
    features[4] = 0.0
    assert by_loops(features, labels) == values(retrieval(features, labels, ks=KS, tile=tile))


@pytest.mark.parametrize(("tile", "rows"), [(1, 37), (256, 257)])
def test_ties_of_equal_rows_do_not_depend_on_tile(tile, rows):
    features = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))[torch.arange(rows) % 4]
    labels = torch.arange(rows) // 4 % 2
    assert by_loops(features, labels) == values(retrieval(features, labels, ks=KS, tile=tile))


@pytest.mark.parametrize("seed", range(5))
def test_ties_rank_other_classes_first_in_any_order(seed):
    g = torch.Generator().manual_seed(seed)
    # ±1 rows of length 2: every cosine is a multiple of 1/2, which is exact in float32, and many are equal
    features = torch.randint(0, 2, (30, 4), generator=g).float() * 2 - 1
    labels = torch.randint(0, 3, (30,), generator=g)
    result = retrieval(features, labels, ks=KS)
    assert by_loops(features, labels) == values(result)
    order = torch.randperm(30, generator=g)
    permuted = retrieval(features[order], labels[order], ks=KS)
    assert [result.mean_average_precision.item(), *result.recall.tolist()] == values(permuted)


def test_perfect_and_collapsed_features_match_closed_form():
    labels = torch.arange(40) % 4
    perfect = retrieval(torch.eye(4)[labels], labels, ks=(1,))
    assert values(perfect) == [1, 1]
    collapsed = retrieval(torch.ones(40, 3), labels, ks=(1, 30, 31))
    assert collapsed.mean_average_precision.item() == pytest.approx(
        sum(i / (30 + i) for i in range(1, 10)) / 9
    )
    assert collapsed.recall.tolist() == [0, 0, 1]


def test_recall_at_one_equals_nearest_neighbour_accuracy():
    g = torch.Generator().manual_seed(0)
    features, labels = torch.randn(60, 5, generator=g), torch.randint(3, (60,), generator=g)
    neighbour = nearest(features, features, 2).index[:, 1]
    expected = (labels[neighbour] == labels).double().mean().item()
    assert retrieval(features, labels, ks=(1,)).recall.item() == pytest.approx(expected)


def test_negative_zero_equals_zero():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-0.0, -1.0], [-1.0, 0.0]])
    labels = torch.tensor([0, 1, 0, 1])
    assert by_loops(features, labels) == values(retrieval(features, labels, ks=KS))


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [-1, -1, -1, -1], [-1, 0, -1, 1]])
def test_retrieval_without_queries_is_nan(labels):
    result = retrieval(torch.eye(4), torch.tensor(labels), ks=(1, 5))
    assert result.mean_average_precision.isnan()
    assert result.recall.isnan().all()


def test_retrieval_of_nan_features_is_nan():
    result = retrieval(torch.tensor([[1.0], [torch.nan]]), torch.tensor([0, 0]))
    assert result.mean_average_precision.isnan()
    assert result.recall.isnan().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_cpu():
    g = torch.Generator().manual_seed(0)
    features, labels = torch.randn(500, 16, generator=g), torch.randint(5, (500,), generator=g)
    on_cpu, on_cuda = retrieval(features, labels), retrieval(features.cuda(), labels.cuda())
    assert on_cuda.mean_average_precision.item() == pytest.approx(
        on_cpu.mean_average_precision.item(), abs=1e-5
    )


@pytest.mark.parametrize(
    ("features", "labels", "options", "message"),
    [
        (torch.ones(3, 2), torch.tensor([0, 0, 1]), {"ks": (1, 0)}, r"ks: .*\[1, 0\]"),
        (torch.ones(3, 2), torch.tensor([0, 0, 1]), {"tile": 0}, "tile: .*0"),
    ],
)
def test_invalid_options_raise_value_error(features, labels, options, message):
    with pytest.raises(ValueError, match=message):
        retrieval(features, labels, **options)
