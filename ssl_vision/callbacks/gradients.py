"""Diagnostics of the objective's gradient on the embeddings."""

import torch
from torch import Tensor, nn

from ssl_vision.callbacks.objective_eval import ObjectiveEvaluation, loss_of
from ssl_vision.errors import check
from ssl_vision.metrics import gradient_statistics
from ssl_vision.objectives import Anchors, Contrastive, Objective, redundancy, uniformity


class GradientDiagnostics(ObjectiveEvaluation):
    """Logs ``gradient/gate`` and `metrics.GradientStatistics` of the training step's embeddings.

    ``gradient/gate`` is a mean. For a contrastive objective, it is the derivative of an anchor's loss with
    respect to its logit margin, which is W for InfoNCE. For hinges, it is the share of anchors inside the
    margin, and for the other objectives of this package, which have no gate, the share of embeddings with a
    gradient. It is omitted for objectives of your own or of other libraries, unless they are `Contrastive`.
    The other values are computed from autograd's gradient of the embeddings. Those that are only defined for
    functions of cosines are omitted for other objectives. For RECLAIM, the objective inside it is measured.

    It works in any LightningModule that calls its objective with the embeddings of both views first.

    Each measurement costs three evaluations of the objective on M = min(N, ``images``) images of the batch,
    one of them with embeddings of width D + 2M, and O(M² D), but no pass through the network. Only these M
    images are negatives, so there are fewer than in training if the batch is larger. With several processes,
    each measures its own images, and the means are logged.

    Args:
        every: steps between measurements; a run with fewer steps logs nothing and warns at its end.
        images: maximum M.
        objective: submodule path of the training objective.

    Raises:
        ValueError: every is below 1, or images below 2.
        InputError: in training, the module has no such submodule, or the objective needs more than embeddings
            and labels and has no inner objective.

    Example:
        >>> from ssl_vision.objectives import InfoNCE
        >>> z1, z2 = torch.eye(4), torch.eye(4)
        >>> values = GradientDiagnostics(every=10).measure(InfoNCE(temperature=1.0), z1, z2, None)
        >>> round(float(values["gradient/gate"]), 4)
        0.6882
    """

    def __init__(self, every: int = 50, images: int = 256, *, objective: str = "objective") -> None:
        super().__init__(every, objective)
        check("images", images, at_least=2)
        self.images = images

    def measure(
        self, objective: Objective, z1: Tensor, z2: Tensor, labels: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the statistics of the gradient of the first images."""
        z1, z2 = z1[: self.images], z2[: self.images]
        labels = None if labels is None else labels[: self.images]
        statistics = gradient_statistics(loss_of(objective, labels), z1, z2)._asdict()
        statistics["gate"] = _gate(objective, z1, z2, labels)
        return {f"gradient/{key}": value for key, value in statistics.items()}


def _gate(objective: Objective, z1: Tensor, z2: Tensor, labels: Tensor | None) -> Tensor:
    """Return the mean derivative of the loss with respect to the logit margin, its replacement, or NaN."""
    calls: list[tuple[Tensor, Tensor]] = []

    def record_call(margin_loss: nn.Module, anchors: tuple[Anchors], losses: Tensor) -> None:
        calls.append((anchors[0].logit_margin, losses))

    if isinstance(objective, Contrastive):
        objective.margin_loss.register_forward_hook(record_call)
    z = torch.cat([z1, z2]).requires_grad_()
    with torch.enable_grad():
        loss = loss_of(objective, labels)(*z.chunk(2))
    if calls:
        logit_margin, losses = calls[0]
        return torch.autograd.grad(losses.sum(), logit_margin)[0].mean()
    statistics = objective.statistics()
    for key in ("gate_mean", "active_share"):
        if key in statistics:
            gate: Tensor = statistics[key]
            return gate
    if type(objective).__module__ not in (redundancy.__name__, uniformity.__name__):  # without a gate
        return z.new_tensor(torch.nan)
    return (torch.autograd.grad(loss, z)[0] != 0).any(dim=1).to(z.dtype).mean()
