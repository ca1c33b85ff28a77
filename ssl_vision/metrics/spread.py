"""Feature standard deviation, the spread of features per dimension."""

import torch
from torch import Tensor

from ssl_vision.descriptions import DescribedMetric
from ssl_vision.metrics.rows import check_features, unit_rows


def feature_std(features: Tensor) -> Tensor:
    """√F · mean_d std_n(x_nd/‖x_n‖): 1 for an isotropic spread, 0 for a collapse (SimSiam: Chen & He 2021).

    The standard deviation of L2-normalised features over the rows uses the divisor N, not N − 1; SimSiam's
    Figure 2 shows it without the factor √F. It is in [0, 1], because the variances sum to 1 − ‖mean‖².

    Args:
        features: features of any scale, shape (N, F); zero rows stay zero.

    Returns:
        A float64 scalar; NaN for features that are empty or not finite.

    Raises:
        ValueError: the shape is invalid.

    Example:
        >>> import torch
        >>> float(feature_std(torch.ones(8, 4)))  # a collapse
        0.0
    """
    check_features(features)
    if len(features) == 0 or not features.isfinite().all():
        return features.new_full((), torch.nan, dtype=torch.float64)
    deviation = unit_rows(features).double().std(dim=0, correction=0)
    scaled: Tensor = deviation.mean() * features.shape[1] ** 0.5
    return scaled


class FeatureStd(DescribedMetric):
    """The number that `feature_std` returns."""

    metric_name = "feature_std"
    title = "feature std"
    higher_is_better = True
    sections = ()
    note = "This is the spread in each dimension: 1 for isotropic features and 0 for collapsed ones."
    order = 210
