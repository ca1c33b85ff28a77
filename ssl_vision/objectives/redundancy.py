"""Redundancy reduction: objectives without negatives that decorrelate the dimensions of embeddings."""

import torch.nn.functional as F
from torch import Tensor

from ssl_vision.errors import check
from ssl_vision.objectives.logit_margin import linear, normalize
from ssl_vision.objectives.objective import TwoViews


class BarlowTwins(TwoViews):
    """Barlow Twins: distance of the views' correlation matrix from identity (Zbontar et al. 2021, Eq. 1).

        L = Σ_d (1 − C_dd)² + λ Σ_{d≠d'} C_dd'²,    C = x̂ᵀŷ/N

    with every dimension of x and y centred and divided by √(variance + ε) over the batch.

    Statistics: ``invariance`` and ``redundancy``, the two sums without λ.

    Args:
        weight: weight λ ≥ 0 of the second term.
        epsilon: ε > 0; the authors use 1e-5, as in BatchNorm.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``; means,
            variances and C are those of the whole batch.

    Raises:
        ValueError: a weight is negative, or epsilon is not positive.

    Example:
        >>> z = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])  # uncorrelated dimensions
        >>> round(BarlowTwins()(z, z).item(), 2)
        0.0
        >>> round(BarlowTwins()(z, -z).item(), 2)  # (1 + 1)² for each dimension
        8.0

    Naive form:
        ```python
        x, y = ((z - z.mean(dim=0)) / (z.var(dim=0, correction=0) + epsilon).sqrt() for z in (z1, z2))
        correlation = x.T @ y / len(x)
        diagonal = correlation.diagonal()
        redundancy = correlation.square().sum() - diagonal.square().sum()
        loss = (1 - diagonal).square().sum() + weight * redundancy
        ```
    """

    def __init__(self, *, weight: float = 0.005, epsilon: float = 1e-5, gather: bool = True) -> None:
        super().__init__(gather=gather)
        check("weight", weight, at_least=0)
        check("epsilon", epsilon, above=0)
        self.weight, self.epsilon = weight, epsilon

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute invariance plus redundancy."""
        x, y = (_standardised(z, self.epsilon) for z in (z1, z2))
        return self._loss_of(x, y, alignment=F.cosine_similarity(z1, z2).mean())

    def _loss_of(self, x: Tensor, y: Tensor, *, alignment: Tensor) -> Tensor:
        correlation = linear(x.T, y.T) / len(x)
        invariance = (1 - correlation.diagonal()).square().sum()
        redundancy = _off_diagonal(correlation).square().sum()
        self.record(alignment=alignment, invariance=invariance, redundancy=redundancy)
        return invariance + self.weight * redundancy


class SphericalBarlowTwins(BarlowTwins):
    """Barlow Twins on unit vectors, C = eᵀe′/N without centring or scaling of dimensions.

    The unified-gradient paper analyses this form: for an anchor e_i, negative j has the weight 2λ e′_i ·
    e′_j/N². The value depends on the basis, so a rotation of both views changes it.

    Args:
        weight: weight λ ≥ 0 of the second term.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: the weight is negative.

    Example:
        >>> z = torch.tensor([[1.0, 0], [0, 1], [1, 0], [0, 1]])
        >>> SphericalBarlowTwins()(z, z)  # C is half the identity
        tensor(0.5000)

    Naive form:
        ```python
        x, y = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        correlation = x.T @ y / len(x)
        diagonal = correlation.diagonal()
        redundancy = correlation.square().sum() - diagonal.square().sum()
        loss = (1 - diagonal).square().sum() + weight * redundancy
        ```
    """

    def __init__(self, *, weight: float = 30.0, gather: bool = True) -> None:
        super().__init__(weight=weight, gather=gather)

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute invariance plus redundancy."""
        x, y = normalize(z1), normalize(z2)
        return self._loss_of(x, y, alignment=(x * y).sum(dim=1).mean())


class VICReg(TwoViews):
    """Variance, invariance and covariance regularisation (Bardes et al. 2022).

        L = λ mean (x − y)² + μ/2 Σ_views mean_d max(0, 1 − √(var_d + ε)) + ν/D Σ_views Σ_{d≠d'} cov_dd'²

    with variances and covariances over the N embeddings of a view, divided by N − 1. The ½ of the second term
    is in the authors' code but not in the paper. Embeddings are not normalised, so their scale matters.

    Statistics: ``invariance``, ``variance`` and ``covariance``, the three terms without their weights.

    Args:
        invariance_weight: weight λ ≥ 0 of the invariance term.
        variance_weight: weight μ ≥ 0 of the variance term.
        covariance_weight: weight ν ≥ 0 of the covariance term.
        epsilon: ε > 0, which keeps the gradient of the standard deviation finite.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``; all three
            terms are those of the whole batch.

    Raises:
        ValueError: a weight is negative, or epsilon is not positive.

    Example:
        >>> z = torch.tensor([[2.0, 2], [2, -2], [-2, 2], [-2, -2]])  # uncorrelated, large variances
        >>> VICReg()(z, z)
        tensor(0.)
        >>> round(VICReg()(z, z + 1).item(), 2)  # λ times a mean squared difference of 1
        25.0

    Naive form:
        ```python
        loss = invariance_weight * F.mse_loss(z1, z2)
        for z in (z1, z2):
            matrix = z.T.cov()
            variance = F.relu(1 - (matrix.diagonal() + epsilon).sqrt()).mean() / 2
            covariance = (matrix.square().sum() - matrix.diagonal().square().sum()) / z.shape[1]
            loss = loss + variance_weight * variance + covariance_weight * covariance
        ```
    """

    def __init__(
        self,
        *,
        invariance_weight: float = 25.0,
        variance_weight: float = 25.0,
        covariance_weight: float = 1.0,
        epsilon: float = 1e-4,
        gather: bool = True,
    ) -> None:
        super().__init__(gather=gather)
        check("invariance_weight", invariance_weight, at_least=0)
        check("variance_weight", variance_weight, at_least=0)
        check("covariance_weight", covariance_weight, at_least=0)
        check("epsilon", epsilon, above=0)
        self.invariance_weight, self.variance_weight = invariance_weight, variance_weight
        self.covariance_weight, self.epsilon = covariance_weight, epsilon

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute the weighted sum of the three terms."""
        invariance = (z1 - z2).square().mean()
        variance, covariance = z1.new_zeros(()), z1.new_zeros(())
        for z in (z1, z2):
            centred = z - z.mean(dim=0)
            matrix = linear(centred.T, centred.T) / (len(z) - 1)
            variance = variance + F.relu(1 - (matrix.diagonal() + self.epsilon).sqrt()).mean() / 2
            covariance = covariance + _off_diagonal(matrix).square().sum() / z.shape[1]
        self.record(
            alignment=F.cosine_similarity(z1, z2).mean(),
            invariance=invariance,
            variance=variance,
            covariance=covariance,
        )
        return (
            self.invariance_weight * invariance
            + self.variance_weight * variance
            + self.covariance_weight * covariance
        )


class SphericalVICReg(TwoViews):
    """VICReg on unit vectors without variance term and centring, as in the unified-gradient paper.

        L = mean_i ‖e_i − e′_i‖² + λ/2 (‖eᵀe/N‖² + ‖e′ᵀe′/N‖²)

    For an anchor e_i, negative j of its own view has the weight 2λ e_i · e_j/N².

    Statistics: ``covariance``, the second term without λ.

    Args:
        weight: weight λ ≥ 0 of the second term.
        gather: use the embeddings of all processes as one batch, as in ``Contrastive``.

    Raises:
        ValueError: the weight is negative.

    Example:
        >>> SphericalVICReg(weight=1.0)(torch.eye(4), torch.eye(4))  # ‖eᵀe/N‖² = 1/4 in each view
        tensor(0.2500)

    Naive form:
        ```python
        x, y = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        covariance = ((x.T @ x / len(x)).square().sum() + (y.T @ y / len(y)).square().sum()) / 2
        loss = (x - y).square().sum(dim=1).mean() + weight * covariance
        ```
    """

    def __init__(self, *, weight: float = 30.0, gather: bool = True) -> None:
        super().__init__(gather=gather)
        check("weight", weight, at_least=0)
        self.weight = weight

    def loss(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Compute alignment plus covariance."""
        x, y = normalize(z1), normalize(z2)
        products = linear(x.T, x.T), linear(y.T, y.T)
        covariance = (products[0].square().sum() + products[1].square().sum()) / (2 * len(x) ** 2)
        self.record(alignment=(x * y).sum(dim=1).mean(), covariance=covariance)
        return (x - y).square().sum(dim=1).mean() + self.weight * covariance


def _standardised(z: Tensor, epsilon: float) -> Tensor:
    centred = z - z.mean(dim=0)
    return centred / (centred.square().mean(dim=0) + epsilon).sqrt()


def _off_diagonal(square: Tensor) -> Tensor:
    return square - square.diagonal().diag_embed()
