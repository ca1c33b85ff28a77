"""Methods whose keys are computed by a momentum network, a moving average of the trained network."""

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor, nn

from ssl_vision.data.images import Batch
from ssl_vision.encoders import floating_dtype
from ssl_vision.errors import check, check_choice
from ssl_vision.methods.method import Method
from ssl_vision.objectives import PairSet
from ssl_vision.objectives.logit_margin import at_least_float32

Schedule = Literal["constant", "cosine"]


class MomentumMethod(Method):
    """Base class of methods whose queries come from the network and whose keys come from a momentum network.

    After every update t of T, the weights ξ of the momentum network follow the weights θ of the network:

        ξ ← m_t ξ + (1 − m_t) θ,   m_t = m, or m_t = 1 − (1 − m) (cos(π t/T) + 1)/2 with the cosine schedule

    where t is 0 at the first update and T − 1 at the last.

    The first views are the queries, and the second views the keys. With ``symmetric``, the loss is the mean
    over both directions. The momentum network is not trained by gradients, and its BatchNorm layers
    normalise with the statistics of the keys. With ``trainer.precision`` ``bf16-true`` or ``16-true``, its
    weights stay in float32 and it runs under autocast, because its small steps would otherwise be lost.

    A subclass defines `loss_of_direction`.

    Args:
        momentum: decay m of the moving average, 0 to 1.
        momentum_schedule: ``"constant"``, or ``"cosine"`` from m to 1 over the run (Grill et al. 2020).
        symmetric: use both directions. The trained network then embeds both views, according to ``bn``.
        **options: those of `Method`.

    Attributes:
        momentum_backbone: The encoder of the momentum network.
        momentum_head: Its projection head.
        predictor: Network that the embeddings of queries pass and those of keys do not; an identity.
        key_embeddings: (V, N, ``output_dim``) embeddings of the keys in the last training step; V is 2 with
            ``symmetric``, otherwise 1.

    Raises:
        InputError: momentum is not between 0 and 1, or the schedule is unknown; otherwise as `Method`.

    Example:
        >>> import torch
        >>> from ssl_vision.data import Batch
        >>> class Follow(MomentumMethod):
        ...     def loss_of_direction(self, batch, queries, keys):
        ...         return self.objective(queries, keys)
        >>> method = Follow(objective=nn.MSELoss(), momentum=0.9, seed=0)
        >>> images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
        >>> batch = Batch(images, torch.zeros(4), torch.arange(4), views=torch.rand(8, 3, 32, 32))
        >>> method.loss(batch).requires_grad
        True
    """

    available_inputs = frozenset({"labels"})
    pairs: ClassVar[tuple[PairSet, ...]] = ("keys", "queue")
    key_embeddings: Tensor

    def __init__(
        self,
        *,
        momentum: float = 0.99,
        momentum_schedule: Schedule = "constant",
        symmetric: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        check("momentum", momentum, at_least=0, at_most=1)
        check_choice("momentum_schedule", momentum_schedule, get_args(Schedule))
        self.momentum, self.momentum_schedule = momentum, momentum_schedule
        self.symmetric = symmetric
        self._steps: float = math.inf
        self.momentum_backbone = copy.deepcopy(self.backbone).requires_grad_(False)
        self.momentum_head = copy.deepcopy(self.head).requires_grad_(False)
        self.predictor: nn.Module = nn.Identity()

    @abstractmethod
    def loss_of_direction(self, batch: Batch, queries: Tensor, keys: Tensor) -> Tensor:
        """Compute the loss of queries that have passed the predictor, (N, D), and their keys, (N, D)."""

    def loss(self, batch: Batch) -> Tensor:
        """Compute the loss of the first views as queries, or the mean of both directions."""
        views = self.checked_views(batch.views)
        first, second = views.chunk(2)
        if not self.symmetric:
            self.key_embeddings = self.keys(second)[None]
            (queries,) = self.embed_views(first, 1).embeddings
            return self.loss_of_direction(batch, self.predictor(queries), self.key_embeddings[0])
        key2, key1 = self.keys(second), self.keys(first)
        self.key_embeddings = torch.stack([key1, key2])
        query1, query2 = map(self.predictor, self.embed_views(views).embeddings)
        loss_of_first = self.loss_of_direction(batch, query1, key2)
        return (loss_of_first + self.loss_of_direction(batch, query2, key1)) / 2

    @torch.no_grad()
    def keys(self, images: Tensor) -> Tensor:
        """Compute embeddings (N, D) of one view (N, 3, S, S) by the momentum network."""
        dtype = floating_dtype(self.backbone, images.dtype)
        with torch.autocast(images.device.type, dtype) if dtype.itemsize < 4 else nullcontext():
            return self.embed(images, self.momentum_backbone, self.momentum_head).embeddings[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for name, module in self.named_children() if recurse else ():
            slow = name in ("momentum_backbone", "momentum_head")
            module._apply(at_least_float32(fn) if slow else fn)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse=False)  # type: ignore[no-untyped-call]
        return self

    def after_update(self) -> None:
        """Move the momentum network towards the network."""
        slow: list[Tensor] = [*self.momentum_backbone.parameters(), *self.momentum_head.parameters()]
        weights = (*self.backbone.parameters(), *self.head.parameters())
        fast = [weight.to(moved.dtype) for weight, moved in zip(weights, slow, strict=True)]
        with torch.no_grad():
            torch._foreach_lerp_(slow, fast, 1 - self._momentum_of_step())

    def after_initial_weights(self) -> None:
        """Copy the weights to the momentum network."""
        self.momentum_backbone.load_state_dict(self.backbone.state_dict())
        self.momentum_head.load_state_dict(self.head.state_dict())

    def configure_optimizers(self) -> Any:
        """Return optimizer and schedule, and compute the number of steps for the schedule of the momentum."""
        if self.momentum_schedule == "cosine":
            self._steps = self.steps_of_run("momentum_schedule")
        return super().configure_optimizers()

    def _momentum_of_step(self) -> float:
        if self.momentum_schedule == "constant":
            return self.momentum
        share = self.trainer.global_step / self._steps
        return 1 - (1 - self.momentum) * (math.cos(math.pi * share) + 1) / 2
