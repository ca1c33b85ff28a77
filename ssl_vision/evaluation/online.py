"""Online accuracy: the linear layer that was trained along with the backbone, on the test split."""

from collections.abc import Iterator
from dataclasses import dataclass

from ssl_vision.descriptions import describe
from ssl_vision.evaluation.measurement import Measurement, Source, Value, measurement
from ssl_vision.evaluation.probe import labelled_rows, top1
from ssl_vision.evaluation.splits import Splits
from ssl_vision.metrics.precision import exact_float32

describe(
    "online_top1",
    title="online",
    long_title="online linear top-1",
    unit="%",
    direction="higher",
    sections=("table", "curves", "summary"),
    needs=("labels",),
    note="This is the share of images that a layer trained along with the backbone classifies correctly.",
    order=70,
)


@measurement("online")
@dataclass(frozen=True)
class Online(Measurement):
    """The linear layer that was trained along with the backbone (``--online_probe``); no baselines."""

    required_layer = "backbone"

    def __str__(self) -> str:
        return "online: a linear layer trained along with the backbone, on augmented images"

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Top-1 accuracy of the layer as training left it."""
        network = source.trained_network
        if network is None or source.layer != "backbone":
            return
        if network.online is None:
            raise ValueError(f"the run has no --online_probe on {splits.data}")
        layer = {name: tensor.to(network.device) for name, tensor in network.online.items()}
        truth = splits.images["test"].labels.to(network.device)
        x, y = labelled_rows(source.queries, truth, len(layer["bias"]), "test")
        with exact_float32(x.device):
            yield Value("online_top1", top1(x, y, layer["weight"], layer["bias"]), {"bank": "pretrain"})
