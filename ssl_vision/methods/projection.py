"""Projection heads."""

from typing import Literal

from torch import Tensor, nn

from ssl_vision.encoders import MOST_PARAMETERS
from ssl_vision.errors import InputError

HeadBatchNorm = Literal["none", "hidden", "all"]


class ProjectionHead(nn.Module):
    """Layers that map features to embeddings; the names of their parameters begin with ``layers.``.

    Args:
        layers: modules that are called one after the other; the first ones end with the hidden layer's ReLU.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        """Map features (N, F) to embeddings (N, ``output_dim``)."""
        embeddings: Tensor = self.layers(features)
        return embeddings


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
    hidden_norm = [] if batch_norm == "none" else [nn.BatchNorm1d(hidden)]
    output_norm = [nn.BatchNorm1d(output)] if batch_norm == "all" else []
    return ProjectionHead(
        nn.Linear(features, hidden, bias=not hidden_norm), *hidden_norm, nn.ReLU(),
        nn.Linear(hidden, output, bias=not output_norm), *output_norm,
    )  # fmt: skip
