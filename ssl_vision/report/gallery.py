"""Images with their nearest neighbours, and pairs that lie close although their classes differ."""

import torch
from torch import Tensor

from ssl_vision.data import Images
from ssl_vision.metrics.rows import unit_rows
from ssl_vision.report.markup import text
from ssl_vision.report.material import NEAR, FeatureView, ReportContext
from ssl_vision.report.page import Missing, Section
from ssl_vision.report.sheet import SpriteSheet

_QUERIES = 10
_MISTAKES = 6
_PAIRS = 12
_TILE = 2048


def neighbours(material: ReportContext, sheet: SpriteSheet) -> Section:
    """An image of each of ten classes, and images that kNN gets wrong, each with its five nearest neighbours.

    Args:
        material: of the run.
        sheet: takes the images.

    Raises:
        Missing: there are no features, or no neighbours.
    """
    look = material.features()
    if look.neighbours.index.shape[1] < 1:
        raise Missing("there is no second image")
    content = _rows(look, queries(look.images), sheet)
    wrong = mistakes(look)
    if len(wrong):
        content += "<h3>What kNN gets wrong, the nearest neighbours first</h3>" + _rows(look, wrong, sheet)
    where = "training images" if look.bank else "same images"
    lead = f"An image and the five {where} with the highest cosine, best first"
    lead += "; ✓ marks the same class." if look.images.labelled.any() else "."
    lead += _about_the_vote(look)
    return Section("neighbours", "Nearest neighbours", lead, content)


def negatives(material: ReportContext, sheet: SpriteSheet) -> Section:
    """The closest pairs of images of two classes.

    Args:
        material: of the run.
        sheet: takes the images.

    Raises:
        Missing: there are no features, or not two classes.
    """
    look = material.features()
    pairs = closest(look.features["backbone"], look.images.labels)
    if not pairs:
        raise Missing("it takes images of two classes or more")
    cards = []
    for i, j, cosine in pairs:
        tiles = "".join(_tile(look, look.images, row, sheet) for row in (i, j))
        names = " · ".join(look.name(int(look.images.labels[row])) for row in (i, j))
        caption = f"<small>{text(names)}<br>{cosine:.3f}</small>"
        cards.append(f'<li><span class="pair">{tiles}</span>{caption}</li>')
    lead = (
        "Pairs of different classes with the highest cosine, each image in one pair only. Where they look "
        "alike to you, too, the labels ask for more than the images show; where not, look at the views."
    )
    content = f'<ul class="cards">{"".join(cards)}</ul>'
    return Section("negatives", "Most confusing negatives", lead, content)


def queries(images: Images) -> list[int]:
    """Rows to begin with: the middle one of up to ten classes; of unlabelled images, evenly spaced ones."""
    known = torch.unique(images.labels[images.labelled]).tolist()
    if not known:
        count = min(_QUERIES, len(images))
        return [row * len(images) // count for row in range(count)]
    count = min(_QUERIES, len(known))
    members = [
        (images.labels == known[place * len(known) // count]).nonzero().flatten() for place in range(count)
    ]
    return [int(rows[len(rows) // 2]) for rows in members]


def mistakes(look: FeatureView) -> list[int]:
    """Labelled rows to which the vote gives another class, those with the most similar neighbour first."""
    if look.predicted is None:
        return []
    wrong = ((look.predicted != look.images.labels) & look.images.labelled).nonzero().flatten()
    order = look.neighbours.similarity[wrong, 0].argsort(descending=True, stable=True)
    found: list[int] = wrong[order][:_MISTAKES].tolist()
    return found


def closest(features: Tensor, labels: Tensor) -> list[tuple[int, int, float]]:
    """Rows i < j of two classes and their cosine, highest first.

    Each labelled row proposes the row of another class with the highest cosine; a proposal is taken unless
    one of its rows is in a pair that was taken before.

    Args:
        features: (N, F), any scale.
        labels: (N,), -1 for rows to be left out.
    """
    rows = (labels >= 0).nonzero().flatten()
    unit, known = unit_rows(features[rows]), labels[rows]
    if len(torch.unique(known)) < 2:
        return []
    proposals = []
    for start in range(0, len(rows), _TILE):
        part = slice(start, start + _TILE)
        cosines = unit[part] @ unit.T
        cosines[known[part, None] == known] = -torch.inf
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


def _rows(look: FeatureView, chosen: list[int], sheet: SpriteSheet) -> str:
    lines = []
    for row in chosen:
        label = int(look.images.labels[row])
        said = "".join(f"<br>{text(line)}" for line in said_of(look, row))
        query = f"<figure>{_tile(look, look.images, row, sheet)}<figcaption>{text(look.name(label))}{said}"
        near = look.neighbours.index[row, :NEAR].tolist()
        cosines = look.neighbours.similarity[row, :NEAR].tolist()
        others = "".join(
            _neighbour(look, place, label, cosine, sheet) for place, cosine in zip(near, cosines, strict=True)
        )
        lines.append(f'<li class="query">{query}</figcaption></figure>{others}</li>')
    return f'<ul class="gallery">{"".join(lines)}</ul>'


def said_of(look: FeatureView, row: int) -> list[str]:
    """What all k neighbours say of an image, where the vote differs from its label or from those shown.

    A line for the class that the vote gives, and one for the label: its neighbours and its share of the vote.
    """
    if look.scores is None or look.bank is None:
        return []
    near = look.bank.labels[look.neighbours.index[row, : look.voters]]
    label, chosen = int(look.images.labels[row]), int(look.scores[row].argmax())
    if chosen == label and chosen == int(near[:NEAR].mode().values):
        return []
    shares = look.scores[row] / look.scores[row].sum()
    lines = [("kNN", chosen), *([("label", label)] if label not in (chosen, -1) else [])]
    return [
        f"{who}: {look.name(own)}, {int((near == own).sum())} of {look.voters} neighbours, "
        f"{100 * float(shares[own]):.0f} % of the vote"
        for who, own in lines
    ]


def _about_the_vote(look: FeatureView) -> str:
    """Why the class that the vote gives may differ from that of the neighbours shown."""
    if look.scores is None or look.bank is None:
        return ""
    smallest = int(torch.unique(look.bank.labels, return_counts=True)[1].min())  # type: ignore[no-untyped-call]
    about = (
        f" The class of kNN is voted by the {look.voters} nearest, not only by those shown; a neighbour's "
        f"weight is exp(cosine / {look.temperature:g}). Where the vote differs from what is shown, its "
        "neighbours are counted."
    )
    if look.voters > smallest:
        about += (
            f" The smallest class has only {smallest} images in the bank, so images of other classes always "
            f"take part in its vote: k = {look.voters} is too large for these data."
        )
    return about


def _neighbour(look: FeatureView, row: int, label: int, cosine: float, sheet: SpriteSheet) -> str:
    bank = look.bank or look.images
    own = int(bank.labels[row])
    mark, kind = "", ""
    if label >= 0 and own >= 0:
        mark, kind = ("✓ ", "same") if own == label else ("✗ ", "other")
    tile = _tile(look, bank, row, sheet, kind)
    return f"<figure>{tile}<figcaption>{mark}{text(look.name(own))}<br>{cosine:.3f}</figcaption></figure>"


def _tile(look: FeatureView, images: Images, row: int, sheet: SpriteSheet, more: str = "") -> str:
    (place,) = sheet.add(images.at(torch.tensor([row])))
    return sheet.tile(place, f"image {row}, {look.name(int(images.labels[row]))}", more=more)
