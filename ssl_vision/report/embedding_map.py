"""A map of the embeddings: test images in the plane."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import Tensor

from ssl_vision.metrics.rows import unit_rows
from ssl_vision.report.markup import COLOURS, boxes, data_block, numbers
from ssl_vision.report.material import NEAR, ReportContext
from ssl_vision.report.page import Missing, Section
from ssl_vision.report.sheet import SpriteSheet

SYMBOLS = {
    "circle": "●", "diamond": "◆", "square": "■", "triangle-up": "▲", "cross": "✚", "x": "✖", "star": "★",
    "triangle-down": "▼", "hexagon": "⬢", "pentagon": "⬟", "triangle-left": "◀", "triangle-right": "▶",
    "bowtie": "⧓", "hourglass": "⧗", "star-diamond": "✦",
}  # fmt: skip
"""Plotly's, and how they are written."""

_SEARCHED = 12
"""Classes from which on they can be searched."""
_DIRECTIONS = 50
_PERPLEXITY = 30.0


def section(material: ReportContext, sheet: SpriteSheet) -> Section:
    """Points that show their images, by PCA and by t-SNE, with classes to be switched.

    Args:
        material: of the run.
        sheet: takes the images of the map, as its first.

    Raises:
        Missing: there are no features.
    """
    look = material.features()
    rows = look.shown
    if len(rows) < 3:
        raise Missing(f"a map takes 3 images or more, there are {len(rows)}")
    features = unit_rows(look.features["backbone"][rows])
    layouts = made(features, seed=material.seed)
    sheet.add(look.images.at(rows))
    labels, votes = look.images.labels[rows], look.predicted
    present = torch.unique(labels).tolist()
    data = {
        "layouts": {name: [numbers(axis, 4) for axis in axes.T.tolist()] for name, axes in layouts.items()},
        "names": [look.name(label) for label in present],
        "classes": [present.index(label) for label in labels.tolist()],
        "predicted": None if votes is None else [look.name(label) for label in votes[rows].tolist()],
        "rows": rows.tolist(),
        "near": near(features).tolist(),
        "colours": [COLOURS[place % len(COLOURS)] for place in range(len(present))],
        "symbols": [list(SYMBOLS)[symbol(place)] for place in range(len(present))],
    }
    part = f"{len(rows):,} of {look.split}, evenly spaced" if len(rows) < len(look.images) else look.split
    lead = (
        f"{part[0].upper()}{part[1:]}, by their backbone features. Classes that are told apart lie apart; "
        "point at an image, tap it, or move from one to the next with the arrow keys. PCA keeps distances in "
        "the large, t-SNE neighbourhoods: distances between its groups mean little."
    )
    return Section("map", "Map of the embeddings", lead, _frame(data, list(layouts)))


def made(features: Tensor, *, seed: int) -> dict[str, NDArray[np.floating[Any]]]:
    """(N, 2) coordinates of (N, F) features, by layout: ``PCA``, and ``t-SNE`` of its first 50."""
    values = features.double().numpy()
    components = PCA(min(_DIRECTIONS, *values.shape), svd_solver="full").fit_transform(values)
    if components.shape[1] < 2:
        components = np.pad(components, ((0, 0), (0, 2 - components.shape[1])))
    perplexity = min(_PERPLEXITY, (len(values) - 1) / 3)
    groups = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(components)
    return {"PCA": components[:, :2], "t-SNE": groups}


def near(features: Tensor) -> Tensor:
    """(N, 5) the most similar other rows of (N, F) unit rows, best first, fewer where there are fewer."""
    similarity = features @ features.T
    similarity.fill_diagonal_(-torch.inf)
    return similarity.topk(min(NEAR, len(features) - 1), dim=1).indices


def symbol(place: int) -> int:
    """Which of the symbols the n-th class has: another for each time that colours come again."""
    return place // len(COLOURS) % len(SYMBOLS)


def _frame(data: dict[str, Any], layouts: list[str]) -> str:
    names, signs = data["names"], list(SYMBOLS.values())
    marks = {name: (signs[symbol(i)], data["colours"][i]) for i, name in enumerate(names)}
    kinds = "".join(
        f'<label><input type="radio" name="layout" value="{name}"{" checked" if name == layouts[-1] else ""}>'
        f"<span>{name}</span></label>"
        for name in layouts
    )
    search = '<input type="search" class="search" placeholder="find a class" aria-label="find a class">'
    every = '<button type="button" value="all">all</button><button type="button" value="none">none</button>'
    return (
        '<div class="map"><div class="controls">'
        f'<fieldset class="switches layouts"><legend>Layout</legend>{kinds}</fieldset>'
        f'<fieldset class="switches classes"><legend>Classes</legend><span class="every">{every}'
        f"{search if len(names) > _SEARCHED else ''}</span>"
        f'<span class="boxes">{boxes(marks)}</span></fieldset></div>'
        '<div class="field"><div class="plot" tabindex="0" role="application" '
        'aria-label="Map of images; the arrow keys go from image to image"></div>'
        '<div class="tip" hidden><span class="tile image"></span><span class="words"></span></div></div>'
        '<div class="panel" aria-live="polite"><p>No image is chosen yet.</p></div>'
        f"{data_block(data, 'points')}</div>"
    )
