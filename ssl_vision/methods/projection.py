"""Projection heads."""

from typing import Literal

from torch import Tensor, nn

from ssl_vision.errors import check

HeadBatchNorm = Literal["none", "hidden", "all"]


class ProjectionHead(nn.Module):
    """Layers that map features to embeddings; the names of their parameters begin with ``layers.``.

    Args:
        layers: modules that are called one after the other, linear layers with BatchNorm and ReLU.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        """Map features (N, F) to embeddings (N, ``output_dim``)."""
        embeddings: Tensor = self.layers(features)
        return embeddings


def projection_head(
    features: int, hidden: int, output: int, batch_norm: HeadBatchNorm, *, layers: int = 2
) -> ProjectionHead:
    """Return a head of linear layers with a ReLU between them.

    Raises:
        InputError: it has fewer than two layers.
    """
    check("head_layers", layers, at_least=2)
    modules: list[nn.Module] = []
    for width in (features, *[hidden] * (layers - 2)):
        modules.append(nn.Linear(width, hidden, bias=batch_norm == "none"))
        modules += [] if batch_norm == "none" else [nn.BatchNorm1d(hidden)]
        modules.append(nn.ReLU())
    modules.append(nn.Linear(hidden, output, bias=batch_norm != "all"))
    modules += [nn.BatchNorm1d(output)] if batch_norm == "all" else []
    return ProjectionHead(*modules)


def last_relu(head: ProjectionHead) -> int:
    """Return the position after a head's last ReLU, whose output is the layer `Layers.hidden`."""
    return 1 + max(i for i, module in enumerate(head.layers) if isinstance(module, nn.ReLU))
