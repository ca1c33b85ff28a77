"""Which classes kNN takes for which."""

from typing import Any

import torch
from torch import Tensor

from ssl_vision.report.markup import chart, number, table
from ssl_vision.report.material import ReportContext
from ssl_vision.report.page import Missing, Section
from ssl_vision.report.weights import SHADES

_WRITTEN = 12
"""Classes up to which the shares stand in the cells."""
_PAIRS = 8


def section(material: ReportContext) -> Section:
    """Shares of each class's images by the class that kNN gives them, and the pairs most often confused.

    Raises:
        Missing: there are no features, or no labels.
    """
    look = material.features()
    if look.predicted is None:
        raise Missing("it takes a test split and a train split with labels")
    counts = confusion(look.images.labels, look.predicted, len(look.classes))
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    names, few = list(look.classes), len(look.classes) <= _WRITTEN
    percent = [[number(100 * share, 3) for share in row] for row in shares.tolist()]
    trace: dict[str, Any] = {
        "type": "heatmap", "x": names, "y": names, "z": percent, "colorscale": SHADES, "zmin": 0,
        "zmax": 100 if few else number(100 * float(shares.max()), 3),
        "customdata": counts.tolist(), "xgap": 1 if few else 0, "ygap": 1 if few else 0,
        "colorbar": {"title": {"text": "% of the class"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "%{y} taken for %{x}: %{z:.1f} % (%{customdata} images)<extra></extra>",
    }  # fmt: skip
    if few:
        trace["text"] = [
            [f"{share:.0f}" if share and share >= 0.5 else "" for share in row] for row in percent
        ]
        trace["texttemplate"] = "%{text}"
    layout = {
        "xaxis": {"title": {"text": "class of the neighbours"}, "type": "category", "showgrid": False,
                  "showticklabels": len(names) <= 40},
        "yaxis": {"title": {"text": "true class"}, "type": "category", "autorange": "reversed",
                  "showgrid": False, "showticklabels": len(names) <= 40},
    }  # fmt: skip
    known = look.images.labelled
    right = (look.predicted == look.images.labels)[known].double().mean().item()
    title = f"{100 * right:.2f} % right, {look.split}, k = {look.voters}, T = {look.temperature:g}"
    content = chart(title, [trace], layout, about=f"Confusion of kNN: {title}", tall=True)
    worst = [
        [f"{names[i]} taken for {names[j]}", int(counts[i, j]), f"{100 * shares[i, j]:.1f} %"]
        for i, j in confused(counts)
    ]
    if worst:
        head = ["", "images", "of the true class"]
        content += table(head, worst, caption="Most often confused")
    lead = "Rows are the true classes; what lies off the diagonal is taken for another class."
    return Section("confusion", "Confusion of kNN", lead, content)


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """(C, C) int64 counts of labelled images: row the true class, column the predicted one."""
    known = labels >= 0
    cells = labels[known] * classes + predicted[known]
    return torch.bincount(cells, minlength=classes * classes).view(classes, classes)


def confused(counts: Tensor) -> list[tuple[int, int]]:
    """True and predicted class of the largest counts off the diagonal, largest first."""
    off = counts.clone().fill_diagonal_(0)
    order = off.flatten().argsort(descending=True, stable=True)[:_PAIRS].tolist()
    pairs = [divmod(cell, len(counts)) for cell in order]
    return [(i, j) for i, j in pairs if off[i, j] > 0]
