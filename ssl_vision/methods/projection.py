"""Projection heads."""

from typing import Literal

from lightly.models.modules.heads import ProjectionHead
from torch import nn

from ssl_vision.encoders import MOST_PARAMETERS
from ssl_vision.errors import InputError

HeadBatchNorm = Literal["none", "hidden", "all"]


def projection_head(features: int, hidden: int, output: int, batch_norm: HeadBatchNorm) -> ProjectionHead:
    """Return a head of two linear layers with a ReLU between them.

    Raises:
        InputError: it would have more than 2³⁰ parameters.
    """
    if (count := (features + output) * hidden) > MOST_PARAMETERS:
        raise InputError(
            f"hidden_dim {hidden} and output_dim {output} make {count:.1e} parameters, "
            f"over {MOST_PARAMETERS:.1e}"
        )
    hidden_norm = None if batch_norm == "none" else nn.BatchNorm1d(hidden)
    output_norm = nn.BatchNorm1d(output) if batch_norm == "all" else None
    return ProjectionHead([(features, hidden, hidden_norm, nn.ReLU()), (hidden, output, output_norm, None)])
