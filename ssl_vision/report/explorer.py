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

from ssl_vision.metrics.rows import unit_rows
from ssl_vision.objectives import (
    Contrastive,
    Objective,
    margin_loss,
    presets,
    temperature,
)
from ssl_vision.report.context import FeatureView, ReportContext, evenly_spaced
from ssl_vision.report.markup import render
from ssl_vision.report.page import Missing, Section
from ssl_vision.report.sprite_sheet import SpriteSheet
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

_RULES: dict[type[temperature.TemperatureRule], dict[str, str]] = {
    temperature.Constant: {"temperature": "temperature"},
    temperature.AlignmentExponential: {"temperature": "base", "alpha": "alpha"},
    temperature.AlignmentLinear: {
        "temperature": "base", "beta": "beta", "threshold": "threshold", "minimum": "minimum",
    },
}  # fmt: skip
"""Rules that explorer.js knows: the names of their attributes, by the names of their parameters there."""

_LOSSES: dict[type[margin_loss.MarginLoss], dict[str, str]] = {
    margin_loss.Softmax: {}, margin_loss.Decoupled: {}, margin_loss.Clipped: {}, margin_loss.Flat: {},
    margin_loss.Reweighted: {}, margin_loss.ReweightedByAlignment: {},
    margin_loss.AtTemperature: {"outer_temperature": "temperature"},
    margin_loss.VonMisesFisher: {"sigma": "sigma"},
}  # fmt: skip
"""Margin losses that explorer.js knows."""


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
    style, script = (
        (files("ssl_vision.report") / "templates" / f"explorer.{kind}").read_text(encoding="utf-8")
        for kind in ("css", "js")
    )
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
    configured = described(objective) if isinstance(objective, Objective) else None
    sample = evenly_spaced(count, SAMPLE)
    payload = {
        "embeddings": base64.b64encode(stored.rows.numpy().astype("<i2").tobytes()).decode(),
        "width": stored.rows.shape[1],
        "places": places.tolist(),
        "rows": rows.tolist(),
        "labels": labels.tolist(),
        "names": {label: view.name(label) for label in torch.unique(labels).tolist()},
        "objectives": offered(configured),
        "chosen": configured["name"] if configured else "InfoNCE",
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


def offered(own: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Objectives of `presets` at their defaults, by name, and the run's own with its parameters."""
    named = vars(presets).values()
    classes = (each for each in named if inspect.isclass(each) and issubclass(each, Contrastive))
    public = (cls for cls in classes if cls.__module__ == presets.__name__ and cls.__name__[0] != "_")
    descriptions = filter(None, (described(cls()) for cls in public))
    objectives = {each["name"]: each for each in descriptions}
    if own:
        preset = objectives.get(own["name"], own)
        if any(own[part] != preset[part] for part in ("rule", "loss")):
            own["name"] += " of this run"
        objectives[own["name"]] = own
    return objectives


def described(objective: Objective) -> dict[str, Any] | None:
    """Name, temperature rule, margin loss and their parameters; None if the page cannot compute it."""
    if not isinstance(objective, Contrastive) or type(objective)._shift is not Contrastive._shift:
        return None
    rule, loss = objective.temperature, objective.margin_loss
    if type(rule) not in _RULES or type(loss) not in _LOSSES:
        return None
    parameters = {name: getattr(rule, attribute) for name, attribute in _RULES[type(rule)].items()}
    parameters |= {name: getattr(loss, attribute) for name, attribute in _LOSSES[type(loss)].items()}
    name = type(objective).__name__
    return {"name": name, "rule": type(rule).__name__, "loss": type(loss).__name__, "parameters": parameters}


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
