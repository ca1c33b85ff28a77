"""SimCo: MoCo without a queue and without a momentum network."""

from typing import Any, Literal

from torch import nn

from ssl_vision.errors import InputError
from ssl_vision.methods.simclr import SimCLR
from ssl_vision.objectives import Contrastive, DualTemperature


class SimCo(SimCLR):
    """MoCo without a queue and a momentum network (Zhang et al. 2022).

    This is `SimCLR` with the paper's defaults: dual temperature, negatives from the other view only, and
    BatchNorm over each view.

    Args:
        objective: `DualTemperature` with ``pairs="cross"`` by default.
        bn: as in `Method`.
        **options: those of `Method`.

    Raises:
        InputError: the objective has negatives from both views.

    Example:
        >>> SimCo(seed=0).objective.pairs
        'cross'
    """

    def __init__(
        self,
        *,
        objective: nn.Module | None = None,
        bn: Literal["joint", "per_view"] = "per_view",
        **options: Any,
    ) -> None:
        objective = DualTemperature(pairs="cross") if objective is None else objective
        super().__init__(objective=objective, bn=bn, **options)
        contract = self._contract
        if isinstance(contract, Contrastive) and contract.pairs == "both":
            raise InputError(
                f"SimCo requires negatives from the other view, but {type(contract).__name__} also has "
                "those of the anchor's own view: add --model.objective.pairs cross"
            )
