import pytest
import torch

from ssl_vision.metrics import Representation

FEATURES = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + 0.5
PAIR_METRICS = {"tolerance", "same_cosine", "different_cosine", "sensitivity"}


@pytest.mark.parametrize("extended", [False, True])
def test_label_statistics_are_nan_without_labels(extended):
    metric = Representation(extended=extended)
    metric.update(FEATURES)
    assert {name for name, value in metric.compute().items() if value.isnan()} == PAIR_METRICS


def test_invalid_t_and_mixed_widths_raise_value_error():
    metric = Representation()
    with pytest.raises(ValueError, match=r"t must .*0"):
        Representation(t=0)
    metric.update(FEATURES)
    metric.update(FEATURES[:, :4])
    with pytest.raises(ValueError, match=r"\[4, 6\]"):
        metric.compute()
