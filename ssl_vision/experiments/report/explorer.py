"""Weights of the negatives of a run's own embeddings, for any temperature and objective of the family."""

import base64
import dataclasses
import inspect
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from markupsafe import Markup
from torch import Tensor

from ssl_vision.experiments.report.context import FeatureView, ReportContext, evenly_spaced
from ssl_vision.experiments.report.markup import numbers, render
from ssl_vision.experiments.report.page import Missing, Section
from ssl_vision.experiments.report.sprite_sheet import SpriteSheet
from ssl_vision.metrics.rows import unit_rows
from ssl_vision.objectives import Anchors, Contrastive, Objective, contrastive
from ssl_vision.runs.registry import Run

IMAGES = 1000
"""Largest number of images; each has two embeddings."""

SAMPLE = 64
"""Images of the batch whose step is drawn in the plane of uniformity and tolerance."""

SIDE = 64
"""Longest side of an image in pixels."""

_WIDTH = 128
"""Largest number of stored dimensions."""

_LARGEST = 2**15 - 1

_MARGINS = torch.tensor([-2000, *torch.arange(-15, 15.01, 0.02), -1e-9, 1e-9, 2000]).double().sort().values
_SIMILARITIES = torch.linspace(-1, 1, 41).double()
"""Logit margins and positive similarities at which gradient weights are tabulated."""


class Stored(NamedTuple):
    """Embeddings as 16-bit integers; only their directions matter."""

    rows: Tensor
    """(2N, D) int16, those of view 1 first."""
    error: float
    """Largest difference between a cosine of two rows and that of the embeddings."""


def section(context: ReportContext) -> Section:
    """Let the reader choose an anchor, a temperature and an objective, and show the weights that result.

    The images are those of the map, or 1,000 of them; the page draws them from the map's sprite sheet.

    Raises:
        Missing: There are no features, or fewer than three images.
    """
    places = _places(context.feature_view())
    lead = (
        "An objective pushes an image away from all other images of the batch, its negatives, and the "
        "temperature τ decides how unequally. Choose an image and move τ: the area of an image is its share "
        "of the push."
    )
    return _section("temperature", "What the temperature does here", lead, _frame(context, places))


def comparison(runs: Sequence[Run], names: Sequence[str], **options: Any) -> Section:
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
    frames = [_frame(context, places, name) for context, name in zip(contexts, names, strict=True)]
    lead = (
        "The same images in both runs, each with the run's own embeddings, objective and temperature. The "
        "area of an image is its share of the push on the anchor. Choose an anchor in either run."
    )
    content = render("explorer_pair.html", frames=frames, names=names)
    drawn = _section("temperature", "Where the runs weigh negatives differently", lead, content)
    return dataclasses.replace(drawn, style=sheet.style() + drawn.style)


def _section(key: str, title: str, lead: str, content: Markup) -> Section:
    templates = files("ssl_vision.experiments.report") / "templates"
    style, script = ((templates / f"explorer.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return Section(key, title, lead, content, style=style, script=script)


def _places(view: FeatureView) -> Tensor:
    if len(view.shown) < 3:
        raise Missing(f"this section requires at least 3 images, not {len(view.shown)}")
    return evenly_spaced(len(view.shown), IMAGES)


def _frame(context: ReportContext, places: Tensor, run: str = "") -> Markup:
    """The controls and drawings of a run, for the images at some places of the map."""
    view = context.feature_view()
    rows, count = view.shown[places], len(places)
    stored = quantise(*context.view_pairs(rows))
    labels = view.images.labels[rows]
    objective = getattr(context.extractor.network, "objective", None)
    unit = unit_rows(stored.rows.double())
    objectives = offered(
        objective if isinstance(objective, Objective) else None, (unit[:count] * unit[count:]).sum(dim=1)
    )
    own, sample = type(objective).__name__, evenly_spaced(count, SAMPLE)
    payload = {
        "embeddings": base64.b64encode(stored.rows.numpy().astype("<i2").tobytes()).decode(),
        "width": stored.rows.shape[1],
        "places": places.tolist(),
        "rows": rows.tolist(),
        "labels": labels.tolist(),
        "names": {label: view.name(label) for label in torch.unique(labels).tolist()},
        "objectives": objectives,
        "chosen": next((name for name in reversed(objectives) if name.split()[0] == own), "InfoNCE"),
        "sample": sample.tolist(),
    }
    return render(
        "explorer.html", data=payload, run=run, takeaways=takeaways(stored.rows, labels), count=count,
        error=stored.error, labelled=bool((labels >= 0).any()), training=_training(context, count),
        sample=len(sample),
        images=f"{count:,} of {view.split}, evenly spaced" if count < len(view.images) else view.split,
    )  # fmt: skip


def quantise(first: Tensor, second: Tensor) -> Stored:
    """Round the directions of two views' embeddings, each of shape (N, D), to 16-bit integers.

    More than 128 dimensions are reduced to their 128 principal axes, which preserve cosines best.
    """
    unit = unit_rows(torch.cat([first, second]).double())
    cosines, rows = unit @ unit.T, unit
    if unit.shape[1] > _WIDTH:
        values, vectors = torch.linalg.eigh(cosines)
        rows = vectors[:, -_WIDTH:] * values[-_WIDTH:].clamp(min=0).sqrt()
    largest = rows.abs().amax(dim=1, keepdim=True)
    rounded = (rows / largest.where(largest > 0, 1) * _LARGEST).round()
    unit = unit_rows(rounded)
    return Stored(rounded.to(torch.int16), float((unit @ unit.T - cosines).abs().max()))


def offered(own: Objective | None, positive: Tensor) -> dict[str, dict[str, Any]]:
    """Descriptions of the presets at their defaults, by name, and of the run's own objective.

    Args:
        own: objective of the run.
        positive: cosines of the positive pairs, for temperature rules, shape (N,).
    """
    named = vars(contrastive).values()
    classes = (each for each in named if inspect.isclass(each) and issubclass(each, Contrastive))
    here = (cls for cls in classes if cls.__module__ == contrastive.__name__ and cls is not Contrastive)
    public = (cls for cls in here if cls.__name__[0] != "_")
    objectives = {cls.__name__: each for cls in public if (each := described(cls(), positive))}
    if own is not None and (mine := described(own, positive)):
        name = type(own).__name__
        objectives[name if objectives.get(name, mine) == mine else f"{name} of this run"] = mine
    return objectives


def described(objective: Objective, positive: Tensor) -> dict[str, Any] | None:
    """Temperature and gradient weights of an objective; None if the page cannot compute its gradient.

    The weights are a table over the logit margin at the temperature ``at`` (None: that of the objective), or
    over the positive similarity.
    """
    if not isinstance(objective, Contrastive) or type(objective)._shift is not Contrastive._shift:
        return None
    tau, outer, pulls = objective.temperature(positive).detach().cpu(), list[float](), list[Tensor | None]()
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
    table = {"of": "positive" if varies[1] else "margin", "at": at, "says": says}
    return table | {"temperature": float(tau), "knots": knots.tolist(), "values": numbers(values.tolist(), 9)}


def takeaways(rows: Tensor, labels: Tensor) -> list[str]:
    """Sentences on an average anchor at a low and at a high temperature.

    Args:
        rows: embeddings of both views, shape (2N, D).
        labels: labels of the images, shape (N,).
    """
    unit, labels = unit_rows(rows.double()), labels.repeat(2)
    images = torch.arange(len(rows) // 2).repeat(2)
    same_image = images == images[:, None]
    same_class = (labels == labels[:, None]) & (labels >= 0) & ~same_image
    cosines = (unit @ unit.T).masked_fill(same_image, -torch.inf)
    hardest = max(1, (len(rows) - 2) // 100)
    low, high = ((cosines / tau).softmax(dim=1) for tau in (0.05, 0.5))
    top = [100 * float(share.topk(hardest, dim=1).values.sum(dim=1).mean()) for share in (low, high)]
    sentences = [
        f"At τ = 0.05, the hardest 1 % of an anchor's negatives exert {top[0]:.0f} % of the push on it, at "
        f"τ = 0.5 only {top[1]:.0f} %, on average over all anchors."
    ]
    if same_class.any() and not same_class[~same_image].all():
        part = 100 * float(same_class.sum() / (~same_image).sum())
        shares = [100 * float((share * same_class).sum(dim=1).mean()) for share in (low, high)]
        sentences.append(
            f"Images of the anchor's own class are {part:.0f} % of the negatives. They exert "
            f"{shares[0]:.0f} % of the push at τ = 0.05 and {shares[1]:.0f} % at τ = 0.5: "
            + (
                "the lower temperature pushes a class apart more."
                if shares[0] > shares[1] + 1
                else "here the temperature hardly changes how much a class is pushed apart."
            )
        )
    return sentences


def _training(context: ReportContext, count: int) -> str:
    """Compare the number of negatives with that of training, where the batch size is known."""
    batch = context.run.setting("batch_size")
    if not isinstance(batch, int) or batch < 2:
        return ""
    if context.run.setting("model.objective.gather") is not False:
        batch *= context.run.processes
    shift = -math.log((count - 1) / (batch - 1))
    return f"Training used batches of {batch:,} images, which changes d by about {shift:+.1f}.".replace(
        "-", "−"
    )
