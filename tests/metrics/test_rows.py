import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssl_vision.metrics.rows import LazyRows, unit_rows


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3)))
def test_unit_rows_have_length_one_or_stay_zero(rows):
    features = torch.tensor(rows).reshape(-1, 3)
    lengths = unit_rows(features).double().norm(dim=1)
    expected = (features.abs().amax(dim=1) > 0).double()
    torch.testing.assert_close(lengths, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8])
def test_unit_rows_are_float32_for_any_dtype(dtype):
    unit = unit_rows(torch.tensor([[3, 4]], dtype=dtype))
    assert unit.dtype == torch.float32
    torch.testing.assert_close(unit, torch.tensor([[0.6, 0.8]]))


def test_lazy_rows_stay_on_their_device_when_indexed():
    meta, values = torch.device("meta"), torch.arange(6.0).view(3, 2)
    rows = LazyRows(lambda numbers: values[numbers].to(meta), (3, 2), device=meta)
    selected = rows.select(torch.tensor([True, False, True])).map(lambda part: part[:, :1], width=1)
    assert (rows.device, selected.device, selected.shape) == (meta, meta, (2, 1))
    assert selected[torch.tensor([1])].device == meta
    on_cpu = LazyRows(lambda numbers: values[numbers], (3, 2)).cpu()
    assert on_cpu.device == torch.device("cpu")
    assert on_cpu[1:].tolist() == [[2, 3], [4, 5]]
