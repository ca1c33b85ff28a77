"""A map of the embeddings: images at two-dimensional projections of their features."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssl_vision.experiments.report.context import NEAR, ReportContext
from ssl_vision.experiments.report.markup import COLOURS, numbers, render
from ssl_vision.experiments.report.page import Missing, Section
from ssl_vision.experiments.report.sprite_sheet import SpriteSheet
from ssl_vision.metrics.rows import unit_rows

SYMBOLS = {
    "circle": "●", "diamond": "◆", "square": "■", "triangle-up": "▲", "cross": "✚", "x": "✖", "star": "★",
    "triangle-down": "▼", "hexagon": "⬢", "pentagon": "⬟", "triangle-left": "◀", "triangle-right": "▶",
}  # fmt: skip
"""Plotly's marker symbols, and the characters that represent them."""

_SEARCHABLE = 12
"""Largest number of classes without a search field."""
_DIRECTIONS = 50
_PERPLEXITY = 30.0


def section(context: ReportContext, sheet: SpriteSheet) -> Section:
    """Draw an interactive map by PCA and t-SNE, in which classes can be hidden.

    Args:
        context: data of the run.
        sheet: empty sprite sheet to which the images are added; page.js expects them at its beginning.

    Raises:
        Missing: There are no features, or fewer than three images.
    """
    view = context.feature_view()
    rows = view.shown
    if len(rows) < 3:
        raise Missing(f"a map requires at least 3 images, not {len(rows)}")
    features = unit_rows(view.features["backbone"][rows])
    layouts = projections(features, seed=context.seed)
    sheet.add(view.images.at(rows))
    labels, votes = view.images.labels[rows], view.predicted
    present = torch.unique(labels).tolist()
    names = [view.name(label) for label in present]
    points: dict[str, Any] = {
        "layouts": {name: [numbers(axis, 4) for axis in axes.T.tolist()] for name, axes in layouts.items()},
        "names": names,
        "classes": [present.index(label) for label in labels.tolist()],
        "predicted": None if votes is None else [view.name(label) for label in votes[rows].tolist()],
        "rows": rows.tolist(),
        "near": nearest_rows(features).tolist(),
        "colours": [COLOURS[place % len(COLOURS)] for place in range(len(present))],
        "symbols": [list(SYMBOLS)[symbol(place)] for place in range(len(present))],
    }
    part = f"{len(rows):,} of {view.split}, evenly spaced" if len(rows) < len(view.images) else view.split
    lead = (
        f"The map shows {part} by their backbone features. Hover over a point, tap it, or move between "
        "points with the arrow keys to see its image. PCA preserves large distances. t-SNE preserves "
        "neighbourhoods, and the distances between its clusters mean little."
    )
    characters = list(SYMBOLS.values())
    marks = {name: (characters[symbol(place)], points["colours"][place]) for place, name in enumerate(names)}
    content = render("map.html", points=points, marks=marks, searchable=len(names) > _SEARCHABLE)
    return Section("map", "Map of the embeddings", lead, content)


def projections(features: Tensor, *, seed: int) -> dict[str, NDArray[np.floating[Any]]]:
    """Coordinates (N, 2) of features (N, F) by ``PCA``, and by ``t-SNE`` of 50 principal components.

    For equal features, the coordinates of ``t-SNE`` are zero.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    values = features.double().numpy()
    with np.errstate(invalid="ignore"):  # equal features have no variance
        components = PCA(min(_DIRECTIONS, *values.shape), svd_solver="full").fit_transform(values)
    if components.shape[1] < 2:
        components = np.pad(components, ((0, 0), (0, 2 - components.shape[1])))
    groups = np.zeros((len(values), 2))
    if components[:, 0].astype(np.float32).std() > 0:  # by which TSNE divides its initial coordinates
        perplexity = min(_PERPLEXITY, (len(values) - 1) / 3)
        groups = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(components)
    return {"PCA": components[:, :2], "t-SNE": groups}


def nearest_rows(features: Tensor) -> Tensor:
    """Indices (N, 5) of the most similar other rows of unit rows (N, F), best first."""
    similarity = features @ features.T
    similarity.fill_diagonal_(-torch.inf)
    return similarity.topk(min(NEAR, len(features) - 1), dim=1).indices


def symbol(place: int) -> int:
    """Index of the symbol of the n-th class.

    The first ten classes have ten colours and alternate between two symbols, which separates the pairs of
    colours that look most alike with colour blindness. Each further ten classes have a symbol of their own.
    """
    repeats = place // len(COLOURS)
    return 2 + (repeats - 1) % (len(SYMBOLS) - 2) if repeats else place % 2
