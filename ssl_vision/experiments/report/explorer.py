"""Weights of the negatives of a run's own embeddings, for any temperature and objective of the family."""

import base64
from collections.abc import Sequence
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from ssl_vision.experiments.report.context import FeatureView, ReportContext, evenly_spaced
from ssl_vision.experiments.report.page import Missing, numbers, render_template
from ssl_vision.experiments.report.sprite_sheet import SpriteSheet
from ssl_vision.metrics import pair_statistics
from ssl_vision.metrics.rows import unit_rows
from ssl_vision.objectives import (
    Anchors,
    Contrastive,
    Objective,
    contrastive,
    logit_margin,
    normalize,
    positive_similarity,
)
from ssl_vision.runs.registry import Run

IMAGES = 1000
"""Largest number of images; each has two embeddings."""

SAMPLE, STEP = 64, 0.1
"""Images of the batch that is drawn in the plane of uniformity and tolerance, and the length of its steps."""

SIDE = 64
"""Longest side of an image in pixels."""

_WIDTH = 128
"""Largest number of stored dimensions."""

_LARGEST = 2**15 - 1

_LOGARITHMS = [place / 8 for place in range(-16, 1)]
"""Logarithms to base 10 of the temperatures from 0.01 to 1 at which steps are computed."""

_MARGINS = torch.tensor([-2000, *torch.arange(-15, 15.01, 0.02), -1e-9, 1e-9, 2000]).double().sort().values
_SIMILARITIES = torch.linspace(-1, 1, 41).double()
"""Logit margins and positive similarities at which gradient weights are tabulated."""


def section(context: ReportContext) -> tuple[str, Markup]:
    """Let the reader choose an anchor, a temperature and an objective, and show the weights that result.

    The images are those of the map, or 1,000 of them; the page draws them from the map's sprite sheet.

    Raises:
        Missing: There are no features, or fewer than three images.
    """
    lead = (
        "An objective pushes an image away from all other images of the batch, its negatives, and the "
        "temperature τ decides how unequally. Choose an image and move τ: the area of an image is its share "
        "of the push."
    )
    frame = _frame(context, _places(context.feature_view()))
    return lead, render_template("explorer.html", frames={"": frame})


def comparison(runs: Sequence[Run], names: Sequence[str], **options: Any) -> tuple[str, Markup]:
    """Show two runs side by side, for one anchor, and the negatives that they weigh most differently.

    Args:
        runs: two runs.
        names: their names.
        options: options of `ReportContext`.

    Raises:
        Missing: There are no features, or the runs have different images.
    """
    contexts = [ReportContext(run, **options) for run in runs]
    first, second = (context.feature_view() for context in contexts)
    places = _places(first)
    rows = first.shown[places]
    if len(first.images) != len(second.images) or not first.images.at(rows).equal(second.images.at(rows)):
        raise Missing("the two runs have different images")
    sheet = SpriteSheet("image", side=SIDE)
    sheet.add(first.images.at(first.shown))
    frames = {name: _frame(context, places) for context, name in zip(contexts, names, strict=True)}
    lead = (
        "The same images in both runs, each with the run's own embeddings, objective and temperature. The "
        "area of an image is its share of the push on the anchor. Choose an anchor in either run."
    )
    return lead, sheet.style() + render_template("explorer.html", frames=frames)


def _places(view: FeatureView) -> Tensor:
    if len(view.shown) < 3:
        raise Missing(f"this section requires at least 3 images, not {len(view.shown)}")
    return evenly_spaced(len(view.shown), IMAGES)


def _frame(context: ReportContext, places: Tensor) -> dict[str, Any]:
    """What the page states and computes about a run, for the images at some places of the map."""
    view = context.feature_view()
    rows, count = view.shown[places], len(places)
    stored, error = quantise(*context.view_pairs(rows))
    labels, unit = view.images.labels[rows], unit_rows(stored.double())
    objective = getattr(context.extractor.network, "objective", None)
    objectives = offered(objective if isinstance(objective, Objective) else None, unit, labels)
    own, sample = type(objective).__name__, evenly_spaced(count, SAMPLE)
    labelled = bool((labels >= 0).any())
    data = {
        "embeddings": base64.b64encode(stored.numpy().astype("<i2").tobytes()).decode(),
        "width": stored.shape[1],
        "places": places.tolist(),
        "rows": rows.tolist(),
        "labels": labels.tolist(),
        "names": {label: view.name(label) for label in torch.unique(labels).tolist()},
        "objectives": objectives,
        "chosen": next((name for name in reversed(objectives) if name.split()[0] == own), "InfoNCE"),
        "logarithms": _LOGARITHMS,
        "here": _in_plane(unit[sample], labels[sample]) if labelled else None,
    }
    images = f"{count:,} of {view.split}, evenly spaced" if count < len(view.images) else view.split
    return {"data": data, "count": count, "error": error, "sample": len(sample), "images": images}


def quantise(first: Tensor, second: Tensor) -> tuple[Tensor, float]:
    """Round the directions of two views' embeddings, each of shape (N, D), to 16-bit integers.

    More than 128 dimensions are reduced to their 128 principal axes, which preserve cosines best.

    Returns:
        The embeddings, shape (2N, D), those of view 1 first, and the largest error of a cosine of two.
    """
    unit = unit_rows(torch.cat([first, second]).double())
    cosines, rows = unit @ unit.T, unit
    if unit.shape[1] > _WIDTH:
        values, vectors = torch.linalg.eigh(cosines)
        rows = vectors[:, -_WIDTH:] * values[-_WIDTH:].clamp(min=0).sqrt()
    largest = rows.abs().amax(dim=1, keepdim=True)
    rounded = (rows / largest.where(largest > 0, 1) * _LARGEST).round()
    unit = unit_rows(rounded)
    return rounded.to(torch.int16), float((unit @ unit.T - cosines).abs().max())


def offered(own: Objective | None, unit: Tensor, labels: Tensor) -> dict[str, dict[str, Any]]:
    """Descriptions of the presets at their defaults, by name, and of the run's own objective.

    Args:
        own: objective of the run.
        unit: unit embeddings of both views, shape (2N, D).
        labels: labels of the images, shape (N,).
    """
    defined = (each for each in vars(contrastive).values() if isinstance(each, type))
    classes = (cls for cls in defined if issubclass(cls, Contrastive) and cls is not Contrastive)
    public = (cls for cls in classes if not cls.__name__.startswith("_"))
    objectives = {cls.__name__: each for cls in public if (each := described(cls(), unit, labels))}
    if own is not None and (mine := described(own, unit, labels)):
        name = type(own).__name__
        objectives[name if objectives.get(name, mine) == mine else f"{name} of this run"] = mine
    return objectives


def described(objective: Objective, unit: Tensor, labels: Tensor) -> dict[str, Any] | None:
    """Temperature, gradient weights and steps of an objective; None if the page cannot compute its gradient.

    The weights are a table over the logit margin at the temperature ``at`` (None: that of the objective), or
    over the positive similarity. The steps are uniformities and tolerances after a step of gradient descent
    at each of the tabulated temperatures.
    """
    if not isinstance(objective, Contrastive) or type(objective)._shift is not Contrastive._shift:
        return None
    tau = objective.temperature(positive_similarity(*unit.chunk(2))).detach().cpu()
    outer, pulls = list[float](), list[Tensor | None]()
    if tau.ndim:
        return None

    def weights(margins: Tensor, similarities: Tensor) -> Tensor:
        def margin_at(temperature: float) -> Tensor:
            outer.append(temperature)
            return margins.detach()

        margins, similarities = margins.clone().requires_grad_(), similarities.clone().requires_grad_()
        losses = objective.margin_loss(Anchors(margins, similarities, tau, margin_at))
        by_margin, pull = torch.autograd.grad(losses.sum(), (margins, similarities), allow_unused=True)
        pulls.append(pull)
        return by_margin

    by_margin = weights(_MARGINS, torch.zeros_like(_MARGINS))
    by_similarity = weights(torch.zeros_like(_SIMILARITIES), _SIMILARITIES)
    varies = [bool(values.ne(values[0]).any()) for values in (by_margin, by_similarity)]
    if all(varies) or any(pull is not None and bool(pull.any()) for pull in pulls):
        return None
    at, knots, values, says = None, _MARGINS, by_margin, "a function of its logit margin d"
    if varies[1]:
        knots, values, says = _SIMILARITIES, by_similarity, "a function of s⁺"
    elif not varies[0]:
        knots, values, says = knots[:1], values[:1], f"{float(values[0]):g}"
    elif outer:
        at, says = outer[0], f"W at τ = {outer[0]:g}"
    elif torch.allclose(values, knots.sigmoid()):
        says = "W"
    sample = evenly_spaced(len(labels), SAMPLE)
    both, ends = torch.cat([unit[sample], unit[sample + len(labels)]]), list[list[float]]()
    for logarithm in _LOGARITHMS:
        moved = stepped(objective, both, 10**logarithm)[: len(sample)]
        ends.append(_in_plane(moved, labels[sample]))
    return {
        "of": "positive" if varies[1] else "margin", "at": at, "says": says, "temperature": float(tau),
        "knots": knots.tolist(), "values": numbers(values.tolist(), 9),
        "steps": [numbers(axis, 7) for axis in zip(*ends, strict=True)],
    }  # fmt: skip


def stepped(objective: Contrastive, unit: Tensor, temperature: float) -> Tensor:
    """Unit rows (2N, D) after a step of gradient descent whose root mean square length is 0.1."""
    rows, tau = unit.clone().requires_grad_(), torch.tensor(temperature, dtype=unit.dtype)
    first, second = rows.chunk(2)

    def margin_at(temperature: Tensor | float) -> Tensor:
        return logit_margin(first, second, temperature)

    positive = positive_similarity(first, second).repeat(2)
    losses = objective.margin_loss(Anchors(margin_at(tau), positive, tau, torch.no_grad()(margin_at)))
    (gradient,) = torch.autograd.grad(losses.sum(), rows)
    length = gradient.square().sum(dim=1).mean().sqrt()
    return unit if length == 0 else normalize(unit - STEP / length * gradient)


def _in_plane(unit: Tensor, labels: Tensor) -> list[float]:
    """Uniformity and tolerance of unit rows."""
    statistics = pair_statistics(unit, labels)
    return [float(statistics.uniformity), float(statistics.tolerance)]
