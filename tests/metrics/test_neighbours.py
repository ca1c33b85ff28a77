import importlib
import types

import numpy as np
import pytest
import torch
from knn_oracle import BACKENDS

from ssl_vision.metrics import faiss_kind, nearest
from ssl_vision.metrics import neighbours as module


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(module, "QUERY_TILE", 3)
    monkeypatch.setattr(module, "BANK_TILE", 7)


def brute_force(queries, bank, k):
    """Compute float64 cosines one pair at a time, in decreasing order, with ties ordered by index."""
    similarity, index = np.zeros((len(queries), k)), np.zeros((len(queries), k), dtype=np.int64)
    for i, q in enumerate(queries.double().numpy()):
        cosines = []
        for b in bank.double().numpy():
            length = np.linalg.norm(q) * np.linalg.norm(b)
            cosines.append(float(q @ b) / length if length else 0.0)
        index[i] = sorted(range(len(bank)), key=lambda j: (-cosines[j], j))[:k]
        similarity[i] = [cosines[j] for j in index[i]]
    return torch.from_numpy(similarity), torch.from_numpy(index)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [1, 5, 20, 40])
def test_cosine_equals_brute_force(backend, k, small_tiles):
    g = torch.Generator().manual_seed(k)
    queries, bank = torch.randn(11, 6, generator=g) * 50, torch.randn(40, 6, generator=g)
    result = nearest(queries, bank, k, backend=backend)
    similarity, index = brute_force(queries, bank, k)
    assert result.similarity.dtype == torch.float32
    assert result.index.dtype == torch.int64
    torch.testing.assert_close(result.similarity.double(), similarity, atol=1e-6, rtol=0)
    assert torch.equal(result.index, index)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [1, 3, 8, 30, 60])
@pytest.mark.parametrize("tiles", [(3, 7), (512, 65536)])
def test_equal_similarities_are_ordered_by_index(backend, k, tiles, monkeypatch):
    monkeypatch.setattr(module, "QUERY_TILE", tiles[0])
    monkeypatch.setattr(module, "BANK_TILE", tiles[1])
    g = torch.Generator().manual_seed(0)
    # ±1 rows of length 2: every cosine is a multiple of 1/2, which is exact in float32, and many are equal
    queries = torch.randint(0, 2, (9, 4), generator=g).float() * 2 - 1
    bank = torch.randint(0, 2, (60, 4), generator=g).float() * 2 - 1
    result = nearest(queries, bank, k, backend=backend)
    similarity, index = brute_force(queries, bank, k)
    assert torch.equal(result.similarity.double(), similarity)
    assert torch.equal(result.index, index)


@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_rows_have_zero_similarity(backend):
    queries, bank = (
        torch.tensor([[0.0, 0.0], [1.0, 0.0]]),
        torch.tensor([[-1.0, 0.0], [0.0, 0.0], [2.0, 0.0]]),
    )
    result = nearest(queries, bank, 3, backend=backend)
    assert result.similarity.tolist() == [[0, 0, 0], [1, 0, -1]]
    assert result.index.tolist() == [[0, 1, 2], [2, 1, 0]]


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("backend", BACKENDS)
def test_cosine_search_ignores_scale(backend, scale):
    rows = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    plain, scaled = nearest(rows, rows, 4, backend=backend), nearest(rows * scale, rows, 4, backend=backend)
    assert torch.equal(plain.index, scaled.index)
    torch.testing.assert_close(plain.similarity, scaled.similarity)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1e20, 0.0), (1e-20, 0.0), (1.0, 30.0)])
def test_euclidean_equals_brute_force(backend, k, scale, offset, small_tiles):
    g = torch.Generator().manual_seed(k)
    queries = (torch.randn(11, 6, generator=g) + offset) * scale
    bank = (torch.randn(40, 6, generator=g) + offset) * scale
    queries[3] = bank[7]
    queries[4] = bank[8] * (1 + 1e-5)
    result = nearest(queries, bank, k, backend=backend, metric="euclidean")
    distance = torch.tensor([[float((q - b).norm()) for b in bank.double()] for q in queries.double()])
    index = torch.tensor([sorted(range(40), key=row.__getitem__)[:k] for row in distance.tolist()])
    assert torch.equal(result.index, index)
    torch.testing.assert_close(result.similarity, -distance.gather(1, index).float(), rtol=1e-5, atol=0)
    assert result.similarity[3, 0] == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("k", [1, 3, 8, 30, 60])
def test_equal_distances_are_ordered_by_index(backend, k, small_tiles):
    g = torch.Generator().manual_seed(0)
    queries = torch.randint(0, 2, (9, 4), generator=g).float()
    bank = torch.randint(0, 2, (60, 4), generator=g).float()
    # centred values are exact
    queries, bank = torch.cat((queries, 1 - queries)), torch.cat((bank, 1 - bank))
    result = nearest(queries, bank, k, backend=backend, metric="euclidean")
    square = (queries[:, None] - bank).square().sum(dim=2)
    values, index = square.sort(dim=1, stable=True)
    assert torch.equal(result.index, index[:, :k])
    assert torch.equal(result.similarity, -values[:, :k].sqrt())


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8])
def test_search_of_any_dtype_matches_float32(metric, dtype):
    g = torch.Generator().manual_seed(0)
    queries, bank = (torch.randint(0, 50, (n, 6), generator=g).to(dtype) for n in (9, 30))
    result = nearest(queries, bank, 4, metric=metric)
    expected = nearest(queries.float(), bank.float(), 4, metric=metric)
    assert torch.equal(result.index, expected.index)
    torch.testing.assert_close(result.similarity, expected.similarity)
    assert result.similarity.dtype == torch.float32


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_search_without_queries_returns_no_rows(backend, metric):
    result = nearest(torch.zeros(0, 3), torch.ones(4, 3), 2, backend=backend, metric=metric)
    assert result.similarity.shape == result.index.shape == (0, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_search_ignores_surrounding_low_precision_settings(backend):
    rows = torch.randn(50, 32, generator=torch.Generator().manual_seed(0), requires_grad=True)
    expected = nearest(rows, rows, 5, backend=backend)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = nearest(rows, rows, 5, backend=backend)
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"  # type: ignore[attr-defined]
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(result.similarity, expected.similarity)
    assert not result.similarity.requires_grad


@pytest.mark.parametrize(
    ("queries", "bank", "k", "options", "message"),
    [
        (torch.ones(2, 3), torch.ones(4, 3), 5, {}, "1 to 4.*got 5"),
        (torch.ones(2, 3), torch.ones(4, 3), 0, {}, "got 0"),
        (torch.ones(2, 3), torch.ones(0, 3), 1, {}, "1 to 0"),
        (torch.ones(2, 3), torch.ones(4, 2), 1, {}, r"queries \(2, 3\).*bank \(4, 2\)"),
        (torch.ones(3), torch.ones(4, 3), 1, {}, r"queries: .*\(3,\)"),
        (torch.ones(2, 3), torch.ones(4, 3, 1), 1, {}, r"bank: .*\(4, 3, 1\)"),
        (torch.full((2, 3), torch.nan), torch.ones(4, 3), 1, {}, "queries: .*finite"),
        (torch.ones(2, 3), torch.full((4, 3), torch.inf), 1, {}, "bank: .*finite"),
        (torch.ones(2, 3), torch.ones(4, 3), 1, {"backend": "annoy"}, "annoy"),
        (torch.ones(2, 3), torch.ones(4, 3), 1, {"metric": "dot"}, "metric must .*dot"),
    ],
)
def test_invalid_arguments_raise_value_error(queries, bank, k, options, message):
    with pytest.raises(ValueError, match=message):
        nearest(queries, bank, k, **options)


@pytest.mark.parametrize("error", [ImportError, RuntimeError, None])
def test_broken_faiss_counts_as_missing(error, monkeypatch):
    def fake_import(name):
        if error:
            raise error("libcudart.so.12")
        return types.ModuleType(name)  # a half-removed FAISS leaves an empty module

    monkeypatch.setattr(importlib, "import_module", fake_import)
    assert faiss_kind() == "none"
    rows = torch.eye(3)
    assert nearest(rows, rows, 1).index.squeeze(1).tolist() == [0, 1, 2]
    with pytest.raises(ImportError, match="not installed"):
        nearest(rows, rows, 1, backend="faiss")


def test_gpu_faiss_is_used_only_with_a_gpu(monkeypatch):
    faiss = types.SimpleNamespace(IndexFlatIP=0, StandardGpuResources=0, get_num_gpus=lambda: 0)
    monkeypatch.setattr(importlib, "import_module", lambda name: faiss)
    assert faiss_kind() == "cpu"
    faiss.get_num_gpus = lambda: 1
    assert faiss_kind() == "gpu"
    del faiss.StandardGpuResources
    assert faiss_kind() == "cpu"


def test_gpu_faiss_creates_resources_once(monkeypatch):
    created = []

    def knn_gpu(resources, queries, bank, count, **options):
        assert resources is created[0]
        return (queries @ bank.T).topk(count)

    def resources():
        created.append(object())
        return created[-1]

    faiss = types.SimpleNamespace(StandardGpuResources=resources, knn_gpu=knn_gpu, METRIC_INNER_PRODUCT=0)
    monkeypatch.setattr(importlib, "import_module", lambda name: faiss)
    module._gpu_resources.cache_clear()
    try:
        for _ in range(3):
            module._search_faiss(torch.eye(4), torch.eye(4), 2, on_gpu=True)
    finally:
        module._gpu_resources.cache_clear()
    assert len(created) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_cpu():
    g = torch.Generator().manual_seed(0)
    queries, bank = torch.randn(300, 16, generator=g), torch.randn(1000, 16, generator=g)
    on_cpu, on_cuda = nearest(queries, bank, 20, backend="torch"), nearest(queries.cuda(), bank.cuda(), 20)
    torch.testing.assert_close(on_cuda.similarity.cpu(), on_cpu.similarity, atol=1e-6, rtol=0)
    assert (on_cuda.index.cpu() == on_cpu.index).float().mean() > 0.99


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "options", [{"metric": "euclidean"}, {"dtype": torch.float16}, {"dtype": torch.bfloat16}]
)
def test_cuda_equals_cpu_under_every_option(options):
    g = torch.Generator().manual_seed(0)
    queries, bank = torch.randn(300, 16, generator=g), torch.randn(1000, 16, generator=g)
    on_cpu, on_cuda = (
        nearest(queries, bank, 20, **options),
        nearest(queries.cuda(), bank.cuda(), 20, **options),
    )
    torch.testing.assert_close(on_cuda.similarity.cpu(), on_cpu.similarity, atol=1e-5, rtol=0)
    assert (on_cuda.index.cpu() == on_cpu.index).float().mean() > 0.99


def test_nearest_others_match_brute_force_without_own_row():
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    similarity, index = brute_force(features, features, 6)
    found = module.nearest_others(features, 5)
    assert torch.equal(found.index, index[:, 1:])
    torch.testing.assert_close(found.similarity, similarity[:, 1:].float())


def test_nearest_others_of_equal_rows_leave_out_own_row():
    index = module.nearest_others(torch.ones(6, 2), 2).index
    assert index.shape == (6, 2)
    assert not (index == torch.arange(6)[:, None]).any()
