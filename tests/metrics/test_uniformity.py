import math

import pytest
import torch

from ssl_vision.metrics import Uniformity


@pytest.mark.parametrize("t", [0.5, 2.0])
def test_uniformity_of_chunked_updates_matches_pdist(t):
    """The reference is Wang and Isola's formula over unordered pairs of different rows."""
    features = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(features.double())
    expected = torch.pdist(unit).pow(2).mul(-t).exp().mean().log().item()
    metric = Uniformity(t)
    for rows in features.split(13):
        metric.update(rows * 3)
    assert metric.compute().item() == pytest.approx(expected, abs=1e-6)


def test_uniform_samples_on_sphere_match_closed_form():
    """For uniform samples, U = log Σ_m t^{2m} Γ(d/2) / (m! Γ(m + d/2)) − 2t."""
    d, t = 8, 2.0
    terms = (
        t ** (2 * m) * math.gamma(d / 2) / (math.factorial(m) * math.gamma(m + d / 2)) for m in range(40)
    )
    metric = Uniformity()
    metric.update(torch.randn(4000, d, generator=torch.Generator().manual_seed(0)))
    assert metric.compute().item() == pytest.approx(math.log(sum(terms)) - 2 * t, abs=4e-3)


def test_invalid_t_and_single_row_raise_value_error():
    with pytest.raises(ValueError, match=r"t: .*-1"):
        Uniformity(t=-1)
    with pytest.raises(ValueError, match="at most 20, got 21"):  # exp(−4t) would be 0 in float32
        Uniformity(t=21)
    metric = Uniformity()
    metric.update(torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"\(1, 3\)"):
        metric.compute()


def test_uniformity_of_opposite_rows_is_exact_for_largest_t():
    metric = Uniformity(t=20)
    metric.update(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    assert float(metric.compute()) == pytest.approx(-80)
