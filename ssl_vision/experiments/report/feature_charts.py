"""Charts of features: a map of the images, and the confusion matrix of the kNN classifier."""

from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix

from ssl_vision.experiments.report.context import NEAR, ReportContext
from ssl_vision.experiments.report.curves import SHADES
from ssl_vision.experiments.report.page import COLOURS, Missing, macros, number, numbers, render_template
from ssl_vision.experiments.report.sprite_sheet import SpriteSheet
from ssl_vision.metrics.neighbours import nearest_others
from ssl_vision.metrics.rows import UNLABELLED, unit_rows

SYMBOLS = 11
"""Number of Plotly's marker symbols that classes have in turn; 110 classes differ in symbol or colour."""

_ANNOTATED = 12
"""Largest number of classes whose shares are written in the cells."""
_PAIRS = 8
_DIRECTIONS = 50
_PERPLEXITY = 30.0


def embedding_map(context: ReportContext, sheet: SpriteSheet) -> tuple[str, Markup]:
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
        "near": nearest_others(features, min(NEAR, len(features) - 1)).index.tolist(),
        "colours": [COLOURS[place % len(COLOURS)] for place in range(len(present))],
        "symbols": [place % SYMBOLS for place in range(len(present))],
    }
    part = f"{len(rows):,} of {view.split}, evenly spaced" if len(rows) < len(view.images) else view.split
    lead = (
        f"The map shows {part} by their backbone features. Hover over a point, tap it, or press the arrow "
        "keys to see its image. Click a class to hide it, or double-click it to hide all others. PCA "
        "preserves large distances. t-SNE preserves neighbourhoods, and the distances between its clusters "
        "mean little."
    )
    return lead, render_template("map.html", points=points)


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


def confusion_matrix(context: ReportContext) -> tuple[str, Markup]:
    """Draw the confusion matrix of kNN and list the classes most often confused.

    Raises:
        Missing: There are no features or no labels.
    """
    view = context.feature_view()
    if view.predicted is None or len(view.classes) < 2:
        raise Missing("this section requires labelled train and test splits of two classes or more")
    counts = multiclass_confusion_matrix(
        view.predicted, view.images.labels, len(view.classes), ignore_index=UNLABELLED
    )
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    names, annotated = list(view.classes), len(view.classes) <= _ANNOTATED
    percent = [[number(100 * share, 3) for share in row] for row in shares.tolist()]
    trace: dict[str, Any] = {
        "type": "heatmap", "x": names, "y": names, "z": percent, "colorscale": SHADES, "zmin": 0,
        "zmax": 100 if annotated else number(100 * float(shares.max()), 3),
        "customdata": counts.tolist(), "xgap": 1 if annotated else 0, "ygap": 1 if annotated else 0,
        "colorbar": {"title": {"text": "% of the class"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "%{y} classified as %{x}: %{z:.1f} % (%{customdata} images)<extra></extra>",
    }  # fmt: skip
    if annotated:
        trace["textfont"] = {"color": "var(--ink)"}
        trace["text"] = [
            [f"{share:.0f}" if share and share >= 0.5 else "" for share in row] for row in percent
        ]
        trace["texttemplate"] = "%{text}"
    layout = {
        "xaxis": {"title": {"text": "predicted class"}, "type": "category", "showgrid": False,
                  "showticklabels": len(names) <= 40},
        "yaxis": {"title": {"text": "true class"}, "type": "category", "autorange": "reversed",
                  "showgrid": False, "showticklabels": len(names) <= 40},
    }  # fmt: skip
    has_label = view.images.labelled
    right = (view.predicted == view.images.labels)[has_label].double().mean().item()
    title = f"{100 * right:.2f} % of {view.split} are correct (k = {view.voters}, T = {view.temperature:g})"
    content = macros.chart(title, [trace], layout, about=f"Confusion matrix of kNN: {title}", tall=True)
    worst = [
        [f"{names[i]} classified as {names[j]}", int(counts[i, j]), f"{100 * shares[i, j]:.1f} %"]
        for i, j in confused(counts)
    ]
    if worst:
        head = ["", "images", "of the true class"]
        content += macros.table(head, worst, caption="Classes that are confused most often")
    lead = (
        "Rows are true classes and columns are predicted classes. Images off the diagonal are misclassified."
    )
    return lead, content


def confused(counts: Tensor) -> list[tuple[int, int]]:
    """True and predicted classes of the largest counts off the diagonal, largest first."""
    off = counts.clone().fill_diagonal_(0)
    order = off.flatten().argsort(descending=True, stable=True)[:_PAIRS].tolist()
    pairs = [divmod(cell, len(counts)) for cell in order]
    return [(i, j) for i, j in pairs if off[i, j] > 0]
