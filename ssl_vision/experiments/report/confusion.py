"""The confusion matrix of the kNN classifier."""

from typing import Any

import torch
from torch import Tensor

from ssl_vision.experiments.report.context import ReportContext
from ssl_vision.experiments.report.markup import macros, number
from ssl_vision.experiments.report.page import Missing, Section
from ssl_vision.experiments.report.weights import SHADES

_ANNOTATED = 12
"""Largest number of classes whose shares are written in the cells."""
_PAIRS = 8


def section(context: ReportContext) -> Section:
    """Draw the confusion matrix of kNN and list the classes most often confused.

    Raises:
        Missing: There are no features or no labels.
    """
    view = context.feature_view()
    if view.predicted is None:
        raise Missing("this section requires labelled train and test splits")
    counts = confusion(view.images.labels, view.predicted, len(view.classes))
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
    return Section("confusion", "kNN confusion matrix", lead, content)


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Counts of labelled images, int64 (C, C), by true class (rows) and predicted class (columns)."""
    has_label = labels >= 0
    cells = labels[has_label] * classes + predicted[has_label]
    return torch.bincount(cells, minlength=classes * classes).view(classes, classes)


def confused(counts: Tensor) -> list[tuple[int, int]]:
    """True and predicted classes of the largest counts off the diagonal, largest first."""
    off = counts.clone().fill_diagonal_(0)
    order = off.flatten().argsort(descending=True, stable=True)[:_PAIRS].tolist()
    pairs = [divmod(cell, len(counts)) for cell in order]
    return [(i, j) for i, j in pairs if off[i, j] > 0]
