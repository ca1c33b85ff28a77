"""RECLAIM: a critic distinguishes two representations of an image from those of similar images."""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, softplus
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.checkpoint import checkpoint

from ssl_vision.errors import check, check_choice
from ssl_vision.objectives.contrastive import InfoNCE
from ssl_vision.objectives.gather import gather, is_distributed, mean_over_processes
from ssl_vision.objectives.logit_margin import autocast_disabled, linear, normalize
from ssl_vision.objectives.objective import Objective, as_objective

TILE = 2**24
"""Maximum number of similarities in memory at a time."""

PAIRS = 2**17
"""Maximum number of pairs evaluated at once. More are evaluated in parts, again in the backward pass."""

_SLOPE = 0.2


class Critic(nn.Module):
    """1-Lipschitz logit c(u, v) of a pair; sigmoid(c) is the probability that u and v are from one image.

        û = A u,  v̂ = B v,  c = W₃ φ(W₂ φ(W₁ [û; v̂] + b₁) + b₂) + b₃,    φ = LeakyReLU(0.2)

    where A and B also have biases. Every matrix is divided by its largest singular value, which is estimated
    by one power iteration for each call in training. While the weights change fast, the Lipschitz constant
    can therefore be slightly above 1. The annex of the RECLAIM paper maps both to 64 dimensions, followed by
    three layers, and does not state the activations. Because |c(p) − c(q)| ≤ ‖p − q‖ for pairs p and q, c
    varies by at most 2√2 over unit u and v, and by at most 2 if one of them is fixed.

    Args:
        u_dim: dimension of u.
        v_dim: dimension of v.
        width: dimension of û, v̂ and the hidden layers.

    Example:
        >>> critic = Critic(u_dim=16, v_dim=8)
        >>> critic(torch.rand(4, 16), torch.rand(4, 8)).shape
        torch.Size([4])
    """

    def __init__(self, u_dim: int, v_dim: int, *, width: int = 64) -> None:
        super().__init__()
        self.u = spectral_norm(nn.Linear(u_dim, width))
        self.v = spectral_norm(nn.Linear(v_dim, width))
        self.first = spectral_norm(nn.Linear(2 * width, width))
        self.second = spectral_norm(nn.Linear(width, width))
        self.third = spectral_norm(nn.Linear(width, 1))

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Compute c for u of shape (…, ``u_dim``) and v of shape (…, ``v_dim``), which are broadcast."""
        weights = self.weights(u)
        return weights.joined(weights.left(u), weights.right(v))

    def weights(self, like: Tensor) -> "Weights":
        """Return the constrained weights in the dtype of ``like``, after one power iteration."""
        layers = [getattr(self, name) for name in Weights._fields]
        return Weights(*((layer.weight.to(like.dtype), layer.bias.to(like.dtype)) for layer in layers))


class Weights(NamedTuple):
    """Constrained weights of a critic. The layer that joins u and v is split, so each row is mapped once."""

    u: tuple[Tensor, Tensor]
    v: tuple[Tensor, Tensor]
    first: tuple[Tensor, Tensor]
    second: tuple[Tensor, Tensor]
    third: tuple[Tensor, Tensor]

    def detach(self) -> "Weights":
        """Return the same weights without gradient."""
        return Weights(*((weight.detach(), bias.detach()) for weight, bias in self))

    def left(self, u: Tensor) -> Tensor:
        """Compute the contribution of u to the first hidden layer, shape (…, width)."""
        return linear(linear(u, *self.u), self.first[0].chunk(2, dim=1)[0])

    def right(self, v: Tensor) -> Tensor:
        """Compute the contribution of v, including the bias, shape (…, width)."""
        return linear(linear(v, *self.v), self.first[0].chunk(2, dim=1)[1], self.first[1])

    def joined(self, left: Tensor, right: Tensor) -> Tensor:
        """Compute c from both contributions, of their broadcast shape without the last dimension."""
        hidden = leaky_relu(left + right, _SLOPE)
        hidden = leaky_relu(linear(hidden, *self.second), _SLOPE)
        return linear(hidden, *self.third)[..., 0]


def mean_over_negatives(
    weights: Weights, left: Tensor, right: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the mean softplus(c) and the mean c over the negatives of each anchor; 0 without negatives.

    Args:
        weights: weights of the critic.
        left: contributions of u from ``Weights.left``, shape (N or 1, K or 1, width).
        right: contributions of v from ``Weights.right``, in the same shape.
        counts: mask of the pairs to include, shape (N, K).

    Returns:
        The two means, shape (N,) each; only the first has a gradient.
    """
    anchors, negatives = counts.shape

    def part(left: Tensor, right: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        logits = weights.joined(left, right)
        number = counts.sum(dim=1).clamp(min=1)
        return (softplus(logits) * counts).sum(dim=1) / number, (logits.detach() * counts).sum(dim=1) / number

    size = max(1, PAIRS // negatives)
    if anchors <= size:
        return part(left, right, counts)
    parts = [
        checkpoint(
            part,
            *(side if len(side) == 1 else side[start : start + size] for side in (left, right)),
            counts[start : start + size],
            use_reentrant=False,
        )
        for start in range(0, anchors, size)
    ]
    losses, logits = zip(*parts, strict=True)
    return torch.cat(losses), torch.cat(logits)


class Chosen(NamedTuple):
    """Rows of a bank that were chosen for each of N anchors."""

    index: Tensor  # type: ignore[assignment]  # hides tuple.index
    """Indices of the rows, int64 of shape (N, K)."""
    counts: Tensor
    """Mask of the valid entries, bool of shape (N, K); False if there was no further row to choose."""


class Bank(nn.Module):
    """Memory bank with one unit row for each training image, a moving average of its representations.

        row ← unit((1 − ρ) z + ρ row)             (RECLAIM paper, Eq. 7, with the result normalised)

    A row is zero, and is never chosen, until its image is seen for the first time. It is then z itself. (In
    the paper, rows are random at first, so that the first negatives would be random.) Rows have no gradient.
    They are buffers and therefore part of a checkpoint.

    The search multiplies queries and rows in tiles.

    Args:
        images: number of rows.
        dim: dimension of a row.

    Example:
        >>> bank = Bank(images=100, dim=4)
        >>> bank.write(torch.tensor([7, 8, 9]), torch.eye(4)[:3], rho=0.5)
        >>> # the nearest other image of image 7
        >>> bank.nearest(torch.tensor([[0.8, 0.6, 0, 0]]), own=torch.tensor([7]), k=1).index
        tensor([[8]])
    """

    rows: Tensor
    written: Tensor

    def __init__(self, images: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(images, dim))
        self.register_buffer("written", torch.zeros(images, dtype=torch.bool))

    @torch.no_grad()
    def write(self, indices: Tensor, z: Tensor, *, rho: float) -> None:
        """Update the rows of some images; a row is unchanged if its z is not finite.

        Args:
            indices: unique indices of the images, int64 of shape (N,).
            z: unit rows, shape (N, D).
            rho: share ρ of the previous row.
        """
        finite = z.isfinite().all(dim=1)
        before = self.rows[indices]
        now = torch.where(finite[:, None], normalize((1 - rho) * z + rho * before).to(before.dtype), before)
        self.rows[indices] = now
        self.written[indices] |= finite

    @torch.no_grad()
    def nearest(self, queries: Tensor, own: Tensor, k: int) -> Chosen:
        """Find the k written rows of other images that are most similar to each query, in descending order.

        Args:
            queries: unit rows, shape (N, D).
            own: index of the image of each query, which is never chosen, int64 of shape (N,).
            k: number of rows, at least 1 and below the number of rows of the bank.
        """
        tile = max(1, TILE // max(1, len(queries)))
        similarity, index = queries.new_empty(len(queries), 0), own.new_empty(len(queries), 0)
        for start in range(0, len(self.rows), tile):
            rows, written = self.rows[start : start + tile], self.written[start : start + tile]
            products = queries @ rows.to(queries.dtype).T
            products.masked_fill_(~written, -torch.inf)
            column = (own - start)[:, None]
            outside = (column < 0) | (column >= len(rows))
            column = column.clamp(0, len(rows) - 1)
            products.scatter_(1, column, products.gather(1, column).where(outside, -torch.inf))
            values, columns = products.topk(min(k, len(rows)), dim=1)
            similarity, index = torch.cat((similarity, values), dim=1), torch.cat((index, columns + start), 1)
            similarity, order = similarity.topk(min(k, similarity.shape[1]), dim=1)
            index = index.gather(1, order)
        return Chosen(index, similarity > -torch.inf)


Pair = Literal["layers", "views", "depths"]
Negatives = Literal["nearest", "random", "batch"]

_ODD = 0x9E3779B97F4A7C15
"""Odd factor that separates the random streams of neighbouring seeds."""

_FROM: dict[str, tuple[str, str]] = {
    "layers": ("features", "embeddings"),
    "views": ("embeddings", "embeddings"),
    "depths": ("shallow", "features"),
}


class RECLAIM(Objective):
    """A contrastive objective plus a contrast of two representations u, v of an image by a critic.

        L = L_objective + λ mean_i [ softplus(−c(u_i, v_i))
                                     + γ/2 mean_{v' ∈ V_i} softplus(c(u_i, v'))
                                     + γ/2 mean_{u' ∈ U_i} softplus(c(u', v_i)) ]

    where c is the logit of ``Critic``, V_i are the K images of a memory bank whose v is most similar to v_i,
    and U_i those whose u is most similar to u_i (RECLAIM paper: Wasserstein-constrained critic, active
    negative selection). The bracket is −L_ANS of its Eq. 6 with γ = K. As printed, that equation has the
    opposite sign for the negatives; maximised with λ > 0, it would treat negatives as positives. u is from
    view 1 and v from view 2, both normalised. u', v' and the banks have no gradient, so it reaches the
    network through u_i and v_i.

    Call ``prepare`` first, and pass the inputs that ``required_inputs`` names. ``SimCLR`` does both. Loading
    the state of a prepared objective also prepares it. In the first ``warmup_epochs``, while the banks fill,
    the negatives are the other images of the batch. A row that is not yet written is never chosen.

    On several processes, each has the banks of all images, in-batch negatives are those of the whole batch,
    and value and averaged gradient are those of one process with the whole batch.

    Args:
        objective: objective of the embeddings that RECLAIM extends; the default is ``InfoNCE()``.
        weight: weight λ ≥ 0 of the second term. The paper tried 0.01, 0.1, 0.5 and 1; values up to 0.5
            helped.
        pair: representations u and v: ``"layers"`` for backbone features and embeddings, ``"views"`` for the
            embeddings of the two views, or ``"depths"`` for pooled features of the third stage and of the
            backbone.
        k: number K ≥ 1 of nearest images, below the number of training images.
        gamma: weight γ ≥ 0 of the negatives. None uses ``k``, which with the nearest images gives the paper's
            sum over the negatives. With γ = 1, λ is comparable over K.
        rho: share ρ in [0, 1) of a bank's row that remains when its image is seen again; the paper gives no
            value.
        negatives: ``"nearest"`` images, or for comparison ``"random"``, a new sample of ``share`` of the
            banks for all anchors at every step, or ``"batch"``, the other images of the batch.
        share: share of the banks in a random sample, in (0, 1].
        warmup_epochs: number of epochs with negatives from the batch while the banks fill.
        width: dimension of the critic's layers.

    Raises:
        ValueError: an argument is outside its range.

    Example:
        >>> objective = RECLAIM(k=2, pair="views", warmup_epochs=0)
        >>> objective.prepare(images=100, embeddings=4, features=8, shallow=None)
        >>> loss = objective(torch.eye(4), torch.eye(4), indices=torch.arange(4))
        >>> objective.required_inputs
        ('indices', 'labels')
        >>> "critic_gap" in objective.statistics()
        True
    """

    critic: Critic
    u_bank: Bank
    v_bank: Bank
    labels: Tensor
    steps: Tensor

    def __init__(
        self,
        *,
        objective: nn.Module | None = None,
        weight: float = 0.1,
        pair: Pair = "layers",
        k: int = 100,
        gamma: float | None = None,
        rho: float = 0.5,
        negatives: Negatives = "nearest",
        share: float = 0.8,
        warmup_epochs: int = 1,
        width: int = 64,
    ) -> None:
        super().__init__()
        check("weight", weight, at_least=0)
        check_choice("pair", pair, _FROM)
        check("k", k, at_least=1)
        check("gamma", gamma, at_least=0)
        check("rho", rho, at_least=0, below=1)
        check_choice("negatives", negatives, get_args(Negatives))
        check("share", share, above=0, at_most=1)
        check("warmup_epochs", warmup_epochs, at_least=0)
        check("width", width, at_least=1)
        self.objective = InfoNCE() if objective is None else objective
        if isinstance(self.objective, RECLAIM):
            raise ValueError("objective must not be RECLAIM itself")
        self.gather = self.embedding_objective.gather
        own_inputs = {"indices", "labels", *_FROM[pair]} - {"embeddings"}
        self.required_inputs = tuple(sorted(own_inputs.union(self.embedding_objective.required_inputs)))
        self.weight, self.pair, self.k, self.rho = weight, pair, k, rho
        self.gamma = float(k) if gamma is None else gamma
        self.negatives, self.share = negatives, share
        self.warmup_epochs, self.width = warmup_epochs, width
        self.epoch = 0
        self._stats: dict[str, Tensor] = {}
        self._chosen: tuple[Tensor, Chosen, Chosen] | None = None
        self._pairs: tuple[Weights, Tensor, Tensor] | None = None
        self._step: int | None = None
        self._seed = torch.initial_seed()
        self.register_load_state_dict_pre_hook(_prepare_for)  # type: ignore[no-untyped-call]

    @property
    def embedding_objective(self) -> Objective:
        """The objective of embeddings that RECLAIM extends."""
        return as_objective(self.objective)

    def set_epoch(self, epoch: int) -> None:
        """Set the current epoch, counted from 0, also of the inner objective."""
        self.epoch = epoch
        self.embedding_objective.set_epoch(epoch)

    def prepare(self, *, images: int | None, embeddings: int, features: int, shallow: int | None) -> None:
        """Create critic and banks, before the optimizer is created and the module is moved to a device.

        The inner objective is prepared, too. The critic's weights depend only on torch's initial seed. A
        second call changes nothing.

        Args:
            images: number of training images, an upper bound of ``indices``.
            embeddings: width of the embeddings.
            features: width of the encoder's output.
            shallow: width of its third stage, if ``pair`` or the inner objective uses it.

        Raises:
            ValueError: ``images`` is None or not above K, the sizes differ from those of an earlier call,
                or the inner objective raises it.
        """
        self._seed = torch.initial_seed()
        if images is None:
            raise ValueError(
                "RECLAIM requires the number of training images: train with a data module of ssl_vision.data"
            )
        if self.negatives == "nearest" and self.k >= images:
            raise ValueError(f"k {self.k} must be below the number of training images, {images}")
        widths = {"embeddings": embeddings, "features": features, "shallow": shallow}
        u_dim, v_dim = (widths[name] for name in _FROM[self.pair])
        if u_dim is None or v_dim is None:
            raise ValueError(f"pair {self.pair!r} requires an encoder with a third stage")
        self.embedding_objective.prepare(
            images=images, embeddings=embeddings, features=features, shallow=shallow
        )
        if "critic" not in self._modules:
            self._make(images, u_dim, v_dim)
        existing = (len(self.labels), self.u_bank.rows.shape[1], self.v_bank.rows.shape[1])
        if existing != (images, u_dim, v_dim):
            raise ValueError(f"images and widths of u and v are {existing}, not {(images, u_dim, v_dim)}")

    def _make(self, images: int, u_dim: int, v_dim: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch.initial_seed())
            self.critic = Critic(u_dim, v_dim, width=self.width)
        self.u_bank = Bank(images, u_dim)
        self.v_bank = Bank(images, v_dim)
        self.register_buffer("labels", torch.full((images,), -1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
        *,
        indices: Tensor,
        features: tuple[Tensor, Tensor] | None = None,
        shallow: tuple[Tensor, Tensor] | None = None,
        labels: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """Compute the loss of a batch and update the rows of its images in the banks.

        Args:
            z1: embeddings of view 1, shape (N, D).
            z2: embeddings of view 2, shape (N, D).
            indices: indices of the training images, int64 of shape (N,).
            features: backbone features of both views, shape (N, F) each, if ``pair`` uses them.
            shallow: pooled features of the third stage of both views, shape (N, S) each, if ``pair`` uses
                them.
            labels: class numbers, int64 of shape (N,), negative without a label. They affect only
                ``statistics``.
            **others: further inputs of the inner objective.

        Returns:
            A scalar.

        Raises:
            ValueError: ``prepare`` was not called, an input of ``pair`` is missing, or the inner objective
                raises it.
        """
        if "critic" not in self._modules:
            raise ValueError("RECLAIM is not prepared: call prepare(images=…, …) first")
        inputs: Mapping[str, Any] = {
            "embeddings": (z1, z2),
            "features": features,
            "shallow": shallow,
            "indices": indices,
            "labels": labels,
            **others,
        }
        for name in _FROM[self.pair]:
            if inputs[name] is None:
                raise ValueError(f"{name} of both views is required for pair {self.pair!r}")
        inside = {name: inputs[name] for name in self.embedding_objective.required_inputs}
        loss: Tensor = self.embedding_objective(z1, z2, **inside)
        u, v = (normalize(inputs[name][view]) for view, name in enumerate(_FROM[self.pair]))
        with autocast_disabled(z1.device):
            return loss + self.weight * self._contrast(u, v, indices, labels)

    def _contrast(self, u: Tensor, v: Tensor, own: Tensor, labels: Tensor | None) -> Tensor:
        """Compute −L_ANS of unit rows, as a mean over the anchors of all processes."""
        labels = torch.full_like(own, -1) if labels is None else labels
        all_u, all_v, numbers, all_labels = u.detach(), v.detach(), own, labels
        if is_distributed():
            width = u.shape[1]
            rows = gather(torch.cat([all_u, all_v], dim=1))
            all_u, all_v = rows[:, :width], rows[:, width:]
            numbers, all_labels = gather(torch.stack([own, labels], dim=1)).unbind(dim=1)
        self.labels[numbers] = all_labels

        weights = self.critic.weights(u)
        left, right = weights.left(u)[:, None], weights.right(v)[:, None]
        positive = weights.joined(left, right)[:, 0]
        draw = self._draw() if self._kind == "random" else None
        other_v, v_index, v_counts = self._choose(self.v_bank, v, all_v, own, numbers, draw)
        other_u, u_index, u_counts = self._choose(self.u_bank, u, all_u, own, numbers, draw)
        against_v, v_logit = mean_over_negatives(weights, left, weights.right(other_v), v_counts)
        against_u, u_logit = mean_over_negatives(weights, weights.left(other_u), right, u_counts)
        losses = softplus(-positive) + self.gamma / 2 * (against_v + against_u)

        self.u_bank.write(numbers, all_u, rho=self.rho)
        self.v_bank.write(numbers, all_v, rho=self.rho)
        self.steps += 1
        self._step = None if self._step is None else self._step + 1
        loss = mean_over_processes(losses, len(numbers))
        self._stats = {
            "contrast": loss.detach(),
            "critic_gap": (positive - (v_logit + u_logit) / 2).detach().mean(),
        }
        self._chosen = (labels, Chosen(v_index, v_counts), Chosen(u_index, u_counts))
        # The biases are the parameters, which the optimizer changes before the callback reads the statistics.
        self._pairs = (weights.detach(), left.detach(), right.detach())
        return loss

    @property
    def _kind(self) -> Negatives:
        return "batch" if self.epoch < self.warmup_epochs else self.negatives

    def _draw(self) -> Tensor:
        """Draw the random rows of a step, a function of torch's initial seed in `prepare` and the step."""
        if self._step is None:  # read once, because the host waits for the device
            self._step = int(self.steps)
        seed = (self._seed * _ODD + self._step) % 2**63
        images, generator = len(self.labels), torch.Generator().manual_seed(seed)
        rows = torch.randperm(images, generator=generator, pin_memory=self.labels.is_cuda)
        return rows[: math.ceil(self.share * images)].to(self.labels.device, non_blocking=True)

    def _choose(
        self, bank: Bank, queries: Tensor, whole: Tensor, own: Tensor, numbers: Tensor, draw: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Select negatives (N or 1, K, D), and return also their images (N or 1, K) and a mask (N, K)."""
        if self._kind == "nearest":
            index, counts = bank.nearest(queries, own, self.k)
            return bank.rows[index].to(queries.dtype), index, counts
        if draw is None:
            return whole[None], numbers[None], numbers[None] != own[:, None]
        counts = bank.written[draw] & (draw != own[:, None])
        return bank.rows[draw][None].to(queries.dtype), draw[None], counts

    def anchor_weights(self) -> Tensor:
        """Return the gradient weights of the inner objective."""
        return self.embedding_objective.anchor_weights()

    def statistics(self) -> dict[str, Tensor]:
        """Return statistics of the last call as detached scalars on its device, without a synchronisation.

        In addition to those of the inner objective, they are ``contrast``, which is −L_ANS; ``critic_gap``,
        the mean logit of the positives minus that of the negatives; ``critic_batch_gap``, the mean logit of
        the positives minus that of (u_i, v_{i+1}) in this process's batch, which is 0 for a critic
        f(u) + g(v) that does not compare its arguments; and ``same_class_share``, the share of negatives from
        the anchor's class among labelled pairs, 0 without labels. The dict is empty before the first call.
        """
        if self._chosen is None or self._pairs is None:
            return {}
        labels, *chosen = self._chosen
        same_class, labelled_pairs = torch.zeros_like(self.steps), torch.zeros_like(self.steps)
        for index, counts in chosen:
            chosen_labels = self.labels[index]
            labelled = counts & (labels[:, None] >= 0) & (chosen_labels >= 0)
            labelled_pairs += labelled.sum()
            same_class += (labelled & (chosen_labels == labels[:, None])).sum()
        weights, left, right = self._pairs
        batch_gap = weights.joined(left, right).mean() - weights.joined(left, right.roll(-1, dims=0)).mean()
        own = {"critic_batch_gap": batch_gap, "same_class_share": same_class / labelled_pairs.clamp(min=1)}
        return {**self.embedding_objective.statistics(), **self._stats, **own}


def _prepare_for(module: RECLAIM, state: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Create critic and banks for a state that is about to be loaded, and reset the step."""
    module._step = None
    rows = [state.get(f"{prefix}{bank}.rows") for bank in ("u_bank", "v_bank")]
    if "critic" not in module._modules and rows[0] is not None and rows[1] is not None:
        module._make(len(rows[0]), rows[0].shape[1], rows[1].shape[1])
