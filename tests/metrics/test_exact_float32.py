import pytest
import torch

from ssl_vision.metrics.rows import exact_float32

ROWS = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


def settings():
    onednn = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    return torch.backends.cuda.matmul.fp32_precision, onednn


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_exact_float32_gives_float32_products_and_restores_settings(precision):
    before = torch.get_float32_matmul_precision()
    exact = ROWS.double() @ ROWS.double()
    try:
        torch.set_float32_matmul_precision(precision)
        outside = settings()
        with torch.autocast("cpu", dtype=torch.bfloat16), exact_float32(ROWS.device):
            assert settings() == ("ieee", "ieee")
            assert not torch.backends.cuda.matmul.allow_tf32  # older code reads this flag
            torch.testing.assert_close((ROWS @ ROWS).double(), exact, atol=1e-4, rtol=0)
        assert settings() == outside
        with pytest.raises(KeyError), exact_float32(ROWS.device):
            raise KeyError
        assert settings() == outside
        assert torch.is_grad_enabled()
    finally:
        torch.set_float32_matmul_precision(before)


def test_exact_float32_restores_setting_of_single_backend():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with exact_float32(ROWS.device):
            assert settings() == ("ieee", "ieee")
        assert settings() == ("tf32", "ieee")
    finally:
        torch.set_float32_matmul_precision(before)
