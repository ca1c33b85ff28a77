"""Images with their nearest neighbours, and similar pairs of images of different classes."""

import torch
from markupsafe import Markup
from torch import Tensor

from ssl_vision.data import Images
from ssl_vision.experiments.report.context import NEAR, FeatureView, ReportContext
from ssl_vision.experiments.report.markup import macros
from ssl_vision.experiments.report.page import Missing, Section
from ssl_vision.experiments.report.sprite_sheet import SpriteSheet
from ssl_vision.metrics.rows import unit_rows

_QUERIES = 10
_MISTAKES = 6
_PAIRS = 12
_TILE = 2048


def neighbours(context: ReportContext, sheet: SpriteSheet) -> Section:
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
        content += Markup(
            "<h3>Images that kNN misclassifies, with the most similar neighbour first</h3>"
        ) + _rows(view, wrong, sheet)
    neighbours_from = "training images" if view.bank else "same images"
    lead = f"Each row shows an image and the five {neighbours_from} with the highest cosine similarity."
    lead += " ✓ marks the same class." if view.images.labelled.any() else ""
    lead += _vote_note(view)
    return Section("neighbours", "Nearest neighbours", lead, content)


def negatives(context: ReportContext, sheet: SpriteSheet) -> Section:
    """Show the most similar pairs of images of different classes.

    Raises:
        Missing: There are no features, or fewer than two classes.
    """
    view = context.feature_view()
    pairs = closest(view.features["backbone"], view.images.labels)
    if not pairs:
        raise Missing("this section requires images of at least two classes")
    content = []
    for i, j, cosine in pairs:
        images = [tile(view, view.images, row, sheet) for row in (i, j)]
        names = " · ".join(view.name(int(view.images.labels[row])) for row in (i, j))
        content.append({"original": "", "images": images, "caption": [names, f"{cosine:.3f}"]})
    lead = (
        "These are the pairs of different classes with the highest cosine similarity. Each image is in one "
        "pair only. If the two images look alike to you as well, they do not show what the labels "
        "distinguish. Otherwise, check the augmented views."
    )
    return Section("negatives", "Similar images of other classes", lead, macros.cards(content))


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
    queries = []
    for row in rows:
        label = int(view.images.labels[row])
        images = [(tile(view, view.images, row, sheet), [view.name(label)])]
        near = view.neighbours.index[row, :NEAR].tolist()
        cosines = view.neighbours.similarity[row, :NEAR].tolist()
        images += [
            _neighbour(view, place, label, cosine, sheet) for place, cosine in zip(near, cosines, strict=True)
        ]
        queries.append({"images": images, "details": vote_details(view, row)})
    return macros.gallery(queries)


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
    smallest = int(torch.unique(view.bank.labels, return_counts=True)[1].min())
    note = (
        f" kNN predicts by a vote of the {view.voters} nearest neighbours, not only of those shown. "
        f"The weight of a neighbour is exp(cosine / {view.temperature:g}). If the prediction differs from "
        "the label or from the shown neighbours, the votes are listed below them."
    )
    if view.voters > smallest:
        note += (
            f" The smallest class has only {smallest} images in the bank, so images of other classes always "
            f"vote; k = {view.voters} is too large for this data set."
        )
    return note


def _neighbour(
    view: FeatureView, row: int, label: int, cosine: float, sheet: SpriteSheet
) -> tuple[Markup, list[str]]:
    bank = view.bank or view.images
    neighbour_label = int(bank.labels[row])
    mark, kind = "", ""
    if label >= 0 and neighbour_label >= 0:
        mark, kind = ("✓ ", "same") if neighbour_label == label else ("✗ ", "other")
    return tile(view, bank, row, sheet, kind), [f"{mark}{view.name(neighbour_label)}", f"{cosine:.3f}"]


def tile(view: FeatureView, images: Images, row: int, sheet: SpriteSheet, classes: str = "") -> Markup:
    """An element that shows one of the images, which is added to the sheet."""
    (place,) = sheet.add(images.at(torch.tensor([row])))
    return sheet.tile(place, f"image {row}, {view.name(int(images.labels[row]))}", classes=classes)
