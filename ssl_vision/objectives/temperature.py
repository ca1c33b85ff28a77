"""Temperature rules, which compute τ at each step. Most contrastive objectives accept any of them.

A rule maps the detached positive similarities of a batch to τ. Parameters that could bring τ to zero or below
are rejected, unless the rule clamps τ.
"""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from ssl_vision.errors import check
from ssl_vision.objectives.logit_margin import at_least_float32

SMALLEST = 1e-3
"""Smallest temperature; cosine similarities are divided by it."""


class TemperatureRule(nn.Module):
    """Base class of rules that compute τ from the batch's positive similarities and the epoch.

    Attributes:
        reads_epoch: False if τ does not depend on the Python number ``epoch``, so that a step recorded as a
            CUDA graph is not recorded again in each epoch.

    Example:
        >>> class Halved(TemperatureRule):
        ...     def forward(self, positive):
        ...         return positive.new_full((), 0.2 / 2**self.epoch)
        >>> objective = InfoNCE(temperature=Halved())
        >>> objective.set_epoch(1)
        >>> loss = objective(torch.eye(4), torch.eye(4))
        >>> objective.statistics()["temperature"]
        tensor(0.1000)
    """

    epoch: int = 0
    reads_epoch: bool = True

    def set_epoch(self, epoch: int) -> None:
        """Set the current epoch, counted from 0."""
        self.epoch = epoch

    def forward(self, positive: Tensor) -> Tensor:
        """Compute τ for a batch.

        Args:
            positive: detached positive similarities s⁺ of the batch, shape (N,).

        Returns:
            A scalar, or one temperature for each image, shape (N,).
        """
        raise NotImplementedError


class Constant(TemperatureRule):
    """τ = ``temperature`` at every step.

    Args:
        temperature: temperature τ, at least 0.001.

    Raises:
        ValueError: ``temperature`` is below 0.001.

    Example:
        >>> Constant(0.2)(torch.tensor([0.5, 0.9]))
        tensor(0.2000)
    """

    reads_epoch = False

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        check("temperature", temperature, at_least=SMALLEST)
        self.temperature = temperature

    def forward(self, positive: Tensor) -> Tensor:
        """Return τ, a scalar."""
        return positive.new_full((), self.temperature)


class EpochRule(TemperatureRule):
    """Base class of rules in which τ depends only on the epoch.

    τ is a tensor that `set_epoch` changes in place, so that a step recorded as a CUDA graph follows it.

    Example:
        >>> class Halved(EpochRule):
        ...     def at(self, epoch):
        ...         return 0.2 / 2**epoch
        >>> rule = Halved()
        >>> rule.set_epoch(1)
        >>> rule(torch.tensor([0.5, 0.9]))
        tensor(0.1000)
    """

    reads_epoch = False
    _tau: Tensor | None = None

    def at(self, epoch: int) -> float:
        """Compute τ in an epoch, counted from 0."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Set the current epoch, counted from 0, and τ."""
        super().set_epoch(epoch)
        if self._tau is not None:
            self._tau.fill_(self.at(epoch))

    def forward(self, positive: Tensor) -> Tensor:
        """τ of the epoch, a scalar in the dtype and on the device of ``positive``."""
        tau = self._tau
        if tau is None or (tau.dtype, tau.device) != (positive.dtype, positive.device):
            with torch.inference_mode(False):  # a validation may come first
                self._tau = tau = positive.new_full((), self.at(self.epoch))
        return tau


class LinearInEpoch(EpochRule):
    """τ(e) = base + slope · e for epoch e, counted from 0 (MACL paper, Fig. 2).

    The paper's Linear-1 has slope 1.4e-4 and its Linear-2 has slope 2.8e-4, both with base 0.07.

    Args:
        base: temperature in the first epoch, at least 0.001.
        slope: increase of τ in each epoch, at least 0.

    Raises:
        ValueError: ``base`` is below 0.001, or ``slope`` is negative, which would lead to τ ≤ 0.

    Example:
        >>> rule = LinearInEpoch(base=0.07, slope=1e-3)
        >>> rule.set_epoch(10)
        >>> rule(torch.tensor([0.5, 0.9]))
        tensor(0.0800)
    """

    def __init__(self, base: float = 0.07, slope: float = 1.4e-4) -> None:
        super().__init__()
        check("base", base, at_least=SMALLEST)
        check("slope", slope, at_least=0)
        self.base, self.slope = base, slope

    def at(self, epoch: int) -> float:
        """Base + slope · epoch."""
        return self.base + self.slope * epoch


class CosineInEpoch(EpochRule):
    """τ(e) = end + (start − end) · (1 + cos(π e / epochs)) / 2, then ``end``.

    Args:
        start: temperature in the first epoch, at least 0.001.
        end: temperature after ``epochs`` epochs, at least 0.001.
        epochs: number of epochs of the change, at least 1.

    Raises:
        ValueError: ``start`` or ``end`` is below 0.001, or ``epochs`` is below 1.

    Example:
        >>> rule = CosineInEpoch(0.1, 0.2, epochs=200)
        >>> rule.set_epoch(100)
        >>> rule(torch.tensor([0.5, 0.9]))
        tensor(0.1500)
    """

    def __init__(self, start: float = 0.1, end: float = 0.2, *, epochs: int = 200) -> None:
        super().__init__()
        check("start", start, at_least=SMALLEST)
        check("end", end, at_least=SMALLEST)
        check("epochs", epochs, at_least=1)
        self.start, self.end, self.epochs = start, end, epochs

    def at(self, epoch: int) -> float:
        """Half a period of a cosine from start to end."""
        share = min(epoch / self.epochs, 1.0)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * share)) / 2


class AlignmentRule(TemperatureRule):
    """Base class of rules in which τ follows the detached batch alignment Ā = mean_i s⁺_i.

    Example:
        >>> class Quadratic(AlignmentRule):
        ...     def at(self, alignment):
        ...         return 0.1 + 0.1 * alignment**2
        >>> Quadratic()(torch.tensor([0.2, 0.8]))  # τ at an alignment of 0.5
        tensor(0.1250)
    """

    reads_epoch = False

    def at(self, alignment: Tensor) -> Tensor:
        """Compute τ at alignments in [−1, 1], of any shape."""
        raise NotImplementedError

    def forward(self, positive: Tensor) -> Tensor:
        """τ(Ā), a scalar."""
        return self.at(positive.mean())


class AlignmentExponential(AlignmentRule):
    """τ_a = base · alpha^Ā, between base / alpha and base · alpha (MACL paper, Eq. 8).

    Args:
        base: base temperature τ₀, which is τ at an alignment of 0.
        alpha: base α ≥ 1 of the power; 1 keeps τ at ``base``.

    Raises:
        ValueError: ``alpha`` is below 1, or ``base / alpha`` is below 0.001.

    Example:
        >>> AlignmentExponential(0.1, alpha=2.0).at(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.0500, 0.1000, 0.2000])
    """

    def __init__(self, base: float = 0.1, alpha: float = 2.0) -> None:
        super().__init__()
        check("alpha", alpha, at_least=1)
        check("base / alpha", base / alpha, at_least=SMALLEST)
        self.base, self.alpha = base, alpha

    def at(self, alignment: Tensor) -> Tensor:
        """base · alpha^alignment."""
        return self.base * torch.exp(math.log(self.alpha) * alignment)


class AlignmentLinear(AlignmentRule):
    """τ_b = max(base · (1 + beta · (Ā − threshold)), minimum).

    With ``threshold`` 0, this is Eq. 9 of the MACL paper, and τ is between base (1 − beta) and base (1 +
    beta). With another threshold, it is the form of MACL's ICML 2023 release, which calls beta α and the
    threshold A₀. Neither has a ``minimum``. Without it, β = 1 (the default of the paper's code) would reach τ
    = 0 at Ā = −1, and α = 1 with A₀ = 1 would reach it at Ā = 0.

    Args:
        base: base temperature τ₀, which is τ at an alignment of ``threshold``.
        beta: slope β in [0, 1] of τ over the alignment; 0 keeps τ at ``base``.
        threshold: alignment A₀ in [−1, 1] at which τ is ``base``.
        minimum: lower bound of τ, from 0.001 to ``base``.

    Raises:
        ValueError: a parameter is outside its range.

    Example:
        >>> rule = AlignmentLinear(0.1, beta=1.0, threshold=1.0)
        >>> rule.at(torch.tensor([-1.0, 0.5, 1.0]))
        tensor([0.0100, 0.0500, 0.1000])
    """

    def __init__(
        self, base: float = 0.1, beta: float = 0.5, threshold: float = 0.0, minimum: float = 0.01
    ) -> None:
        super().__init__()
        check("base", base, at_least=SMALLEST)
        check("beta", beta, at_least=0, at_most=1)
        check("threshold", threshold, at_least=-1, at_most=1)
        check("minimum", minimum, at_least=SMALLEST, at_most=base)
        self.base, self.beta, self.threshold, self.minimum = base, beta, threshold, minimum

    def at(self, alignment: Tensor) -> Tensor:
        """base · (1 + beta · (alignment − threshold)), at least ``minimum``."""
        tau = self.base * (1 + self.beta * (alignment - self.threshold))
        return tau.clamp(min=self.minimum)


class PerAnchor(TemperatureRule):
    """A temperature for each image: an alignment rule applied to s⁺_i instead of the batch mean.

    Args:
        rule: alignment rule that maps each s⁺_i to τ_i.

    Example:
        >>> rule = PerAnchor(AlignmentLinear(0.1, beta=0.5))
        >>> rule(torch.tensor([0.0, 1.0]))
        tensor([0.1000, 0.1500])
    """

    reads_epoch = False

    def __init__(self, rule: AlignmentRule) -> None:
        super().__init__()
        self.rule = rule

    def forward(self, positive: Tensor) -> Tensor:
        """Temperatures τ(s⁺_i), shape (N,)."""
        return self.rule.at(positive)


class Learnable(TemperatureRule):
    """τ = exp(ω), with ω trained with the network and clamped to [log minimum, log maximum].

    ω stays in float32 if the network is converted to bfloat16 or float16.

    Args:
        temperature: initial temperature.
        minimum: lower bound of τ, at least 0.001.
        maximum: upper bound of τ.

    Raises:
        ValueError: 0.001 ≤ minimum ≤ temperature ≤ maximum does not hold.

    Example:
        >>> rule = Learnable(0.1)
        >>> round(rule(torch.tensor([0.5, 0.9])).item(), 4)
        0.1
        >>> rule.log_temperature.requires_grad
        True
    """

    reads_epoch = False

    def __init__(self, temperature: float = 0.1, minimum: float = 0.01, maximum: float = 1.0) -> None:
        super().__init__()
        check("minimum", minimum, at_least=SMALLEST)
        check("temperature", temperature, at_least=minimum, at_most=maximum)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.minimum, self.maximum = minimum, maximum

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(at_least_float32(fn), recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, positive: Tensor) -> Tensor:
        """τ, a scalar with a gradient."""
        with torch.no_grad():  # the parameter itself: a clamp in the graph would leave it stuck outside
            self.log_temperature.clamp_(math.log(self.minimum), math.log(self.maximum))
        return self.log_temperature.exp()


def as_rule(temperature: float | TemperatureRule) -> TemperatureRule:
    """Return a rule unchanged, and the constant rule for a number."""
    return temperature if isinstance(temperature, TemperatureRule) else Constant(temperature)
