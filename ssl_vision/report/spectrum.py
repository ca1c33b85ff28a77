"""The spectrum of the features."""

import torch
from torch import Tensor

from ssl_vision.descriptions import LAYERS
from ssl_vision.metrics.effective_rank import effective_rank
from ssl_vision.metrics.rank import rankme
from ssl_vision.report.curves import marks
from ssl_vision.report.markup import COLOURS, DASHES, chart, numbers, switches, table
from ssl_vision.report.material import ReportContext
from ssl_vision.report.page import Section

_FLOOR = 1e-6


def section(material: ReportContext) -> Section:
    """Singular values of the centred features of each layer, relative to the largest; ranks beside them.

    Raises:
        Missing: there are no features.
    """
    look = material.features()
    layers = [layer for layer in LAYERS if layer in look.features]
    traces, ranks = [], []
    for place, layer in enumerate(layers):
        features = look.features[layer]
        values = spectrum(features).tolist()
        traces.append({
            "x": list(range(1, len(values) + 1)), "y": numbers(values, 4),
            "name": layer, "meta": layer, "mode": "lines", "hovertemplate": "%{y:.2e}",
            "line": {"color": COLOURS[place], "dash": DASHES[place], "width": 2},
        })  # fmt: skip
        found = (rankme(features), effective_rank(features, centred=True))
        ranks.append([layer, features.shape[1], *(f"{float(rank):.1f}" for rank in found)])
    layout = {
        "hovermode": "x unified", "xaxis": {"title": {"text": "direction"}},
        "yaxis": {"type": "log", "title": {"text": "σ / largest σ"}, "exponentformat": "power", "dtick": 1},
    }  # fmt: skip
    about = "; ".join(f"RankMe of the {layer} is {rank}" for layer, _, rank, _ in ranks)
    head = ["layer", "dimensions", "RankMe", "effective rank, centred"]
    lead = (
        "How the variance is shared out over directions: a slow, even fall uses many of them, a cliff is a "
        "dimensional collapse."
    )
    content = switches("Layers", marks(layers))
    content += chart(f"Singular values of {look.split}", traces, layout, about=about)
    content += table(head, ranks, caption="Directions in use")
    return Section("spectrum", "Spectrum of the features", lead, content)


def spectrum(features: Tensor) -> Tensor:
    """(min(N − 1, F),) singular values of the centred (N, F) features over the largest, 1e-6 at least."""
    rows = features.double()
    values = torch.linalg.svdvals(rows - rows.mean(dim=0))[: len(rows) - 1]
    shares: Tensor = values / values[0].clamp(min=torch.finfo(values.dtype).tiny)
    return shares.clamp(min=_FLOOR)
