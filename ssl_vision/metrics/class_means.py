"""Geometry of class means, which measures neural collapse."""

from typing import NamedTuple

import torch
from torch import Tensor

from ssl_vision.descriptions import describe
from ssl_vision.metrics.rows import UNLABELLED, check_features, checked_labels

describe(
    "nc1",
    title="NC1",
    direction="lower",
    sections=(),
    needs=("labels",),
    note="This is the spread within classes divided by the spread between them, 0 at neural collapse.",
    order=220,
)
describe(
    "nc2_norms",
    title="NC2 norms",
    direction="lower",
    sections=(),
    needs=("labels",),
    note="This is the variation of the norms of the class means, 0 at neural collapse.",
    order=230,
)
describe(
    "nc2_angles",
    title="NC2 angles",
    direction="lower",
    sections=(),
    needs=("labels",),
    note="This is the deviation of the angles between class means from a simplex, 0 at neural collapse.",
    order=240,
)


class ClassMeans(NamedTuple):
    """Measures of neural collapse (Papyan, Han & Donoho 2020), float64 scalars that are 0 at full collapse.

    Example:
        >>> import torch
        >>> measures = class_means(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1]))
        >>> float(measures.nc1)  # all features of a class coincide
        0.0
    """

    nc1: Tensor
    """tr(Σ_W Σ_B⁺)/C, the spread within classes relative to that between them."""
    nc2_norms: Tensor
    """Standard deviation of the norms ‖m_c‖ of centred class means, divided by their mean."""
    nc2_angles: Tensor
    """Mean of |cos(m_c, m_c') + 1/(C − 1)| over pairs c ≠ c', which is 0 for a simplex."""


def class_means(features: Tensor, labels: Tensor) -> ClassMeans:
    """Measure variability collapse (NC1) and convergence of class means to a simplex (NC2).

    With μ_c the mean of class c, m_c = μ_c − mean_c μ_c, and C the number of non-empty classes,
    Σ_B = mean_c m_c m_cᵀ and Σ_W = mean_c mean_{x in c} (x − μ_c)(x − μ_c)ᵀ. All classes have equal weight,
    which agrees with the paper's definition for classes of equal size. Σ_B⁺ is the pseudo-inverse. Features
    are not normalised. A centred mean of zero has cosine 0 to all others. Computed in float64, in O(N F C)
    time.

    Args:
        features: features, shape (N, F).
        labels: integer labels, shape (N,); rows with -1 are ignored.

    Returns:
        The measures; all are NaN with fewer than two classes, equal class means, or labelled features that
        are not finite.

    Raises:
        ValueError: shapes or types are invalid, or a label is below -1.

    Example:
        >>> import torch
        >>> features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
        >>> measures = class_means(features, torch.tensor([0, 0, 1, 1]))
        >>> measures.nc1, measures.nc2_norms, measures.nc2_angles
        (tensor(0., dtype=torch.float64), tensor(0., dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    check_features(features)
    labels = checked_labels(labels, len(features))
    if len(labels) and labels.min() < UNLABELLED:
        raise ValueError(f"labels: expected -1 (unlabelled) or more, got {int(labels.min())}")
    labelled = labels != UNLABELLED
    rows = features[labelled].double()
    classes, member, sizes = labels[labelled].unique(return_inverse=True, return_counts=True)
    nan = rows.new_full((), torch.nan)
    if len(classes) < 2 or not rows.isfinite().all():
        return ClassMeans(nan, nan, nan)
    # subtract the first row, so that rounding errors do not look like differences of means
    rows = rows - rows[0]
    means = rows.new_zeros(len(classes), rows.shape[1]).index_add_(0, member, rows) / sizes[:, None]
    centred = means - means.mean(dim=0)
    _, values, directions = torch.linalg.svd(centred, full_matrices=False)
    scale = torch.maximum(values[0], rows.norm(dim=1).max())
    significant = values > scale * max(centred.shape) * torch.finfo(torch.float64).eps
    if not significant.any():
        return ClassMeans(nan, nan, nan)
    # tr(Σ_W Σ_B⁺) = C Σ_k v_kᵀ Σ_W v_k / s_k², with centred = U diag(s) Vᵀ
    within = ((rows - means[member]) @ directions[significant].T).square()
    within = (within / sizes[member, None]).sum(dim=0) / len(classes)
    norms = centred.norm(dim=1)
    unit = centred / norms.where(norms > 0, 1.0)[:, None]
    others = ~torch.eye(len(classes), dtype=torch.bool, device=rows.device)
    angles = (unit @ unit.T)[others] + 1 / (len(classes) - 1)
    return ClassMeans(
        nc1=(within / values[significant].square()).sum(),
        nc2_norms=norms.std(correction=0) / norms.mean(),
        nc2_angles=angles.abs().mean(),
    )
