import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssl_vision.metrics.rows import unit_rows


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3)))
def test_rows_have_length_one_or_stay_zero(rows):
    features = torch.tensor(rows).reshape(-1, 3)
    lengths = unit_rows(features).double().norm(dim=1)
    expected = (features.abs().amax(dim=1) > 0).double()
    torch.testing.assert_close(lengths, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8])
def test_is_float32_of_any_input(dtype):
    unit = unit_rows(torch.tensor([[3, 4]], dtype=dtype))
    assert unit.dtype == torch.float32
    torch.testing.assert_close(unit, torch.tensor([[0.6, 0.8]]))
