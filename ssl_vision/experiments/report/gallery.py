"""Galleries: nearest neighbours, similar images of different classes, and augmented views."""

import torch
from markupsafe import Markup
from torch import Tensor
from torch.nn import functional as F

from ssl_vision.data import ImageData, Images
from ssl_vision.data.augment.random_views import Views
from ssl_vision.data.loading.loader import Order
from ssl_vision.experiments.report.context import NEAR, FeatureView, ReportContext
from ssl_vision.experiments.report.page import Missing, macros
from ssl_vision.experiments.report.sprite_sheet import SpriteSheet
from ssl_vision.metrics.rows import unit_rows

_QUERIES = 10
_MISTAKES = 6
_PAIRS = 12
_TILE = 2048
_VIEWED = 12
_SIDE = 96

Captioned = tuple[Markup, list[str]]
"""An image and the lines of its caption."""


def neighbours(context: ReportContext, sheet: SpriteSheet) -> tuple[str, Markup]:
    """Show images of up to ten classes and images that kNN misclassifies, with their nearest neighbours.

    Raises:
        Missing: There are no features, or there is only one image.
    """
    view = context.feature_view()
    if view.neighbours.index.shape[1] < 1:
        raise Missing("this section requires at least two images")
    content = _rows(view, queries(view.images), sheet)
    wrong = mistakes(view)
    if len(wrong):
        title = "Images that kNN misclassifies, with the most similar neighbour first"
        content += Markup("<h3>{}</h3>").format(title) + _rows(view, wrong, sheet)
    neighbours_from = "training images" if view.bank else "same images"
    lead = f"Each row shows an image and the five {neighbours_from} with the highest cosine similarity."
    lead += " ✓ marks the same class." if view.images.labelled.any() else ""
    return lead + _vote_note(view), content


def negatives(context: ReportContext, sheet: SpriteSheet) -> tuple[str, Markup]:
    """Show the most similar pairs of images of different classes.

    Raises:
        Missing: There are no features, or fewer than two classes.
    """
    view = context.feature_view()
    pairs = closest(view.features["backbone"], view.images.labels)
    if not pairs:
        raise Missing("this section requires images of at least two classes")
    groups = [
        ([captioned(view, view.images, row, sheet) for row in (i, j)], [f"{cosine:.3f}"])
        for i, j, cosine in pairs
    ]
    lead = (
        "These are the pairs of different classes with the highest cosine similarity. Each image is in one "
        "pair only. If the two images look alike to you as well, they do not show what the labels "
        "distinguish. Otherwise, check the augmented views."
    )
    return lead, macros.gallery(groups, "pairs")


def queries(images: Images) -> list[int]:
    """Rows of the images to show: one of each of up to ten classes, or evenly spaced without labels."""
    classes = torch.unique(images.labels[images.labelled]).tolist()
    if not classes:
        count = min(_QUERIES, len(images))
        return [row * len(images) // count for row in range(count)]
    count = min(_QUERIES, len(classes))
    members = [
        (images.labels == classes[place * len(classes) // count]).nonzero().flatten()
        for place in range(count)
    ]
    return [int(rows[len(rows) // 2]) for rows in members]


def mistakes(view: FeatureView) -> list[int]:
    """Rows of misclassified images, those with the most similar neighbour first."""
    if view.predicted is None:
        return []
    wrong = ((view.predicted != view.images.labels) & view.images.labelled).nonzero().flatten()
    order = view.neighbours.similarity[wrong, 0].argsort(descending=True, stable=True)
    rows: list[int] = wrong[order][:_MISTAKES].tolist()
    return rows


def closest(features: Tensor, labels: Tensor) -> list[tuple[int, int, float]]:
    """Pairs of rows i < j of different classes and their cosine similarity, highest first.

    Each labelled row proposes the most similar row of another class. Proposals are accepted in descending
    order of similarity unless one of their rows is already in a pair.

    Args:
        features: features of any scale, shape (N, F).
        labels: labels, shape (N,); rows with -1 are ignored.
    """
    rows = (labels >= 0).nonzero().flatten()
    unit, classes = unit_rows(features[rows]), labels[rows]
    if len(torch.unique(classes)) < 2:
        return []
    proposals = []
    for start in range(0, len(rows), _TILE):
        part = slice(start, start + _TILE)
        cosines = unit[part] @ unit.T
        cosines[classes[part, None] == classes] = -torch.inf
        best = cosines.max(dim=1)
        places = zip(range(start, len(rows)), best.indices.tolist(), best.values.tolist(), strict=False)
        proposals += [(-cosine, min(i, j), max(i, j)) for i, j, cosine in places]
    taken: set[int] = set()
    pairs: list[tuple[int, int, float]] = []
    for cosine, i, j in sorted(proposals):
        if len(pairs) < _PAIRS and not {i, j} & taken:
            taken |= {i, j}
            pairs.append((int(rows[i]), int(rows[j]), -cosine))
    return pairs


def _rows(view: FeatureView, rows: list[int], sheet: SpriteSheet) -> Markup:
    bank, groups = view.bank or view.images, []
    for row in rows:
        label, images = int(view.images.labels[row]), [captioned(view, view.images, row, sheet)]
        near = view.neighbours.index[row, :NEAR].tolist()
        for place, cosine in zip(near, view.neighbours.similarity[row, :NEAR].tolist(), strict=True):
            other, kind = int(bank.labels[place]), ""
            if label >= 0 and other >= 0:
                kind = "same" if other == label else "other"
            images.append(captioned(view, bank, place, sheet, kind, f"{cosine:.3f}"))
        groups.append((images, vote_details(view, row)))
    return macros.gallery(groups, "neighbours")


def vote_details(view: FeatureView, row: int) -> list[str]:
    """Count the votes of all k neighbours if their class differs from the label or from the shown neighbours.

    Returns one line for the predicted class and one for the label, with neighbours and share of the vote.
    """
    if view.scores is None or view.bank is None:
        return []
    near = view.bank.labels[view.neighbours.index[row, : view.voters]]
    label, chosen = int(view.images.labels[row]), int(view.scores[row].argmax())
    if chosen == label and chosen == int(near[:NEAR].mode().values):
        return []
    shares = view.scores[row] / view.scores[row].sum()
    lines = [("kNN", chosen), *([("label", label)] if label not in (chosen, -1) else [])]
    return [
        f"{source}: {view.name(cls)}, {int((near == cls).sum())} of {view.voters} neighbours, "
        f"{100 * float(shares[cls]):.0f} % of the vote"
        for source, cls in lines
    ]


def _vote_note(view: FeatureView) -> str:
    """Explain why the predicted class may differ from that of the shown neighbours."""
    if view.scores is None or view.bank is None:
        return ""
    return (
        f" kNN predicts by a vote of the {view.voters} nearest neighbours, not only of those shown. "
        f"The weight of a neighbour is exp(cosine / {view.temperature:g}). If the prediction differs from "
        "the label or from the shown neighbours, the votes are listed below them."
    )


def captioned(
    view: FeatureView, images: Images, row: int, sheet: SpriteSheet, kind: str = "", *lines: str
) -> Captioned:
    """An element that shows one of the images, which is added to the sheet, and its class and other lines."""
    (place,) = sheet.add(images.at(torch.tensor([row])))
    name = view.name(int(images.labels[row]))
    mark = {"same": "✓ ", "other": "✗ "}.get(kind, "")
    return sheet.tile(place, f"image {row}, {name}", classes=kind), [f"{mark}{name}", *lines]


def views(context: ReportContext) -> tuple[str, Markup]:
    """Show images of the first batch with their views in the first and the last epoch.

    Raises:
        Missing: The images cannot be read, or there are none.
    """
    data = context.images()
    shown = list(dict.fromkeys((0, max(1, context.run.epoch) - 1)))
    indices = Order(len(data.split("pretrain")), shuffle=True, seed=data.seed).rows()[:_VIEWED]
    if not len(indices):
        raise Missing("the pretraining split has no images")
    originals, sheet = SpriteSheet("original", side=_SIDE), SpriteSheet("view", side=_SIDE)
    originals.add(data.split("pretrain").at(indices))
    both = [views for epoch in shown for views in training_views(data, indices, epoch)]
    side = max(views.shape[-1] for views in both)  # progressive resizing changes it
    places = [list(sheet.add(F.interpolate(views, size=side))) for views in both]
    groups = []
    for i, index in enumerate(indices.tolist()):
        tiles = [originals.tile(i, f"image {index} without augmentation")]
        tiles += [
            sheet.tile(place[i], f"view {1 + number % 2} of image {index} in epoch {shown[number // 2] + 1}")
            for number, place in enumerate(places)
        ]
        groups.append(([(tile, list[str]()) for tile in tiles], list[str]()))
    rows = " and ".join(f"epoch {epoch + 1}" for epoch in shown)
    each = ", one row for each epoch" if len(shown) > 1 else ""
    lead = (
        f"Each image is followed by its two views in {rows}{each}. "
        "Both views must still show the same object. If a view has lost it, the crops or the colour changes "
        "are too strong."
    )
    return lead, originals.style() + sheet.style() + macros.gallery(groups, "views")


def training_views(data: ImageData, indices: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
    """Both views, uint8 (N, 3, S, S), of images of the pretraining split in an epoch from 0."""
    images, views = data.split("pretrain").at(indices), data.training_views(epoch)
    first, second = pixels(views(images, indices, seed=data.seed, epoch=epoch), views).chunk(2)
    return first, second


def pixels(normalised: Tensor, views: Views) -> Tensor:
    """Undo the normalisation of views; returns uint8 images, shape (N, 3, S, S)."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (views.mean, views.std))
    return ((normalised * std + mean) * 255).round_().clamp_(0, 255).to(torch.uint8)
