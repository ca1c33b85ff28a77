"""SimCo: MoCo without a queue and without a momentum network."""

from typing import Any, Literal

from ssl_vision.methods.simclr import SimCLR
from ssl_vision.objectives import DualTemperature


class SimCo(SimCLR):
    """MoCo without a queue and a momentum network (Zhang et al. 2022).

    This is `SimCLR` with the paper's defaults: dual temperature, negatives from the other view only, and
    BatchNorm over each view.

    Args:
        bn: as in `Method`.
        **options: those of `Method`.

    Example:
        >>> SimCo(seed=0).objective.pairs
        'cross'
    """

    default_objective = DualTemperature
    pairs = ("cross", "keys")

    def __init__(self, *, bn: Literal["joint", "per_view"] = "per_view", **options: Any) -> None:
        super().__init__(bn=bn, **options)
