"""kNN accuracy of a representation: the bank is the labelled train split, the queries are the test split."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, Self

from torch import Tensor

from ssl_vision.evaluation.measurement import Measurement, Source, Value, ranged
from ssl_vision.evaluation.splits import Splits
from ssl_vision.metrics.knn import KNNScore, knn_table
from ssl_vision.progress import Progress


@dataclass(frozen=True)
class KNN(Measurement):
    """Vote of the nearest neighbours in the labelled train split.

    Raises:
        ValueError: A value is out of range.
    """

    k: int = ranged(200, at_least=1)
    """Number of neighbours; in a protocol file, the default is that of the data set (``knn_k``)."""
    distance: Literal["cosine", "euclidean"] = "cosine"
    vote: Literal["weighted", "majority"] = "weighted"
    """``weighted`` gives a neighbour the weight exp(s/T), s the cosine or −distance; ``majority`` gives 1."""
    temperature: float = ranged(0.1, above=0)
    """Temperature T of the weighted vote."""

    def __str__(self) -> str:
        votes = f"T = {self.temperature:g}" if self.vote == "weighted" else "majority vote"
        return f"kNN: {self.distance}, k = {self.k}, {votes}"

    @classmethod
    def defaults(cls, *, k: int) -> dict[str, Any]:
        """The data set's k."""
        return {"k": k}

    @property
    def vote_temperature(self) -> float | None:
        """T of the vote; None for a majority vote."""
        return self.temperature if self.vote == "weighted" else None

    def measure(self, source: Source, splits: Splits, seed: int) -> Iterator[Value]:
        """Top-1 accuracy of the vote."""
        for values in self.measure_all([self], source, splits, seed):
            yield from values

    @classmethod
    def measure_all(
        cls, measurements: Sequence[Self], source: Source, splits: Splits, seed: int
    ) -> Iterator[Iterator[Value]]:
        """Top-1 accuracies of all votes, from one search for each distance."""
        scores: dict[KNN, KNNScore] = {}

        def values(each: KNN) -> Iterator[Value]:
            if not scores:
                scores.update(_scores(measurements, source, splits))
            score = scores[each]
            about = {"k": score.k, "temperature": score.temperature, "distance": each.distance}
            yield Value("knn_top1", score.top1, {"bank": "train", "vote": each.vote} | about, score.correct)

        return map(values, measurements)


def _scores(measurements: Sequence[KNN], source: Source, splits: Splits) -> dict[KNN, KNNScore]:
    """Compute the score of each measurement from one search for each distance."""
    scores: dict[KNN, KNNScore] = {}
    for distance in dict.fromkeys(each.distance for each in measurements):
        group = [each for each in measurements if each.distance == distance]
        ks = list(dict.fromkeys(each.k for each in group))
        temperatures = list(dict.fromkeys(each.vote_temperature for each in group))
        queries, bank = source.queries, source.bank
        with Progress(f"kNN of {source.features} {source.layer}", lines=isinstance(bank, Tensor)):
            table = knn_table(
                queries, splits.images["test"].labels.to(queries.device),
                bank, splits.images["train"].labels.to(bank.device),
                num_classes=len(splits.images["train"].classes), ks=ks, temperatures=temperatures,
                metric=distance,
            )  # fmt: skip
        by_place = dict(zip(product(temperatures, ks), table, strict=True))
        scores |= {each: by_place[each.vote_temperature, each.k] for each in group}
    return scores
