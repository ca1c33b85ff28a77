"""The singular values of the features."""

import torch
from torch import Tensor

from ssl_vision.descriptions import LAYERS
from ssl_vision.metrics.effective_rank import effective_rank
from ssl_vision.metrics.rank import rankme
from ssl_vision.report.context import ReportContext
from ssl_vision.report.curves import marks
from ssl_vision.report.markup import COLOURS, DASHES, macros, numbers
from ssl_vision.report.page import Missing, Section

_FLOOR = 1e-6


def section(context: ReportContext) -> Section:
    """Draw the singular values of the centred features of each layer, and list their effective ranks.

    Raises:
        Missing: There are no features, or only one image.
    """
    view = context.feature_view()
    if len(view.images) < 2:
        raise Missing("this section requires at least two images")
    layers = [layer for layer in LAYERS if layer in view.features]
    traces, ranks = [], []
    for place, layer in enumerate(layers):
        features = view.features[layer]
        values = spectrum(features).tolist()
        traces.append({
            "x": list(range(1, len(values) + 1)), "y": numbers(values, 4),
            "name": layer, "meta": layer, "mode": "lines", "hovertemplate": "%{y:.2e}",
            "line": {"color": COLOURS[place], "dash": DASHES[place], "width": 2},
        })  # fmt: skip
        rank_values = (rankme(features), effective_rank(features, centred=True))
        ranks.append([layer, features.shape[1], *(f"{float(rank):.1f}" for rank in rank_values)])
    layout = {
        "hovermode": "x unified", "xaxis": {"title": {"text": "direction"}},
        "yaxis": {"type": "log", "title": {"text": "σ / largest σ"}, "exponentformat": "power", "dtick": 1},
    }  # fmt: skip
    about = "; ".join(f"RankMe of the {layer} is {rank}" for layer, _, rank, _ in ranks)
    head = ["layer", "dimensions", "RankMe", "effective rank, centred"]
    lead = (
        "Singular values show how the variance is distributed over directions. If they decay slowly and "
        "evenly, the features use many directions. A cliff is a dimensional collapse."
    )
    content = macros.switches("Layers", marks(layers))
    content += macros.chart(f"Singular values of {view.split}", traces, layout, about=about)
    content += macros.table(head, ranks, caption="Effective number of directions")
    return Section("spectrum", "Singular values of the features", lead, content)


def spectrum(features: Tensor) -> Tensor:
    """Singular values of centred features (N, F) relative to the largest, clamped to at least 1e-6."""
    rows = features.double()
    values = torch.linalg.svdvals(rows - rows.mean(dim=0))[: len(rows) - 1]
    shares: Tensor = values / values[0].clamp(min=torch.finfo(values.dtype).tiny)
    return shares.clamp(min=_FLOOR)
