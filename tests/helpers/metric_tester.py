"""Metrics as functions of rows, and assertions of the properties that every metric must have."""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor
from torchmetrics import Metric

N = 60
SHARDS = (slice(0, 23), slice(23, N))


@dataclass(frozen=True)
class Case:
    """A metric, the function of all rows that it must equal, or both.

    Args:
        rows: arguments of both, N rows each: float32 features, integer labels or levels.
        function: from ``rows`` to a value, or to several.
        metric: makes the metric; None for a function without one.
        update: adds rows to the metric.
        empty: message of the error about missing rows; None where the value is NaN.
        value: reads the value, or values, of the metric.
        below: message of the error about labels below -1; None where they are allowed.
        atol: largest difference of metric and function, and of float32 and float64 input.
    """

    rows: Sequence[Tensor]
    function: Callable[..., Any] | None = None
    metric: Callable[[], Metric] | None = None
    update: Callable[..., None] = lambda metric, *rows: metric.update(*rows)
    empty: str | None = None
    value: Callable[[Any], Any] = lambda metric: metric.compute()
    below: str | None = "labels.*-2"
    atol: float = 1e-6

    def measure(self, rows: Sequence[Tensor], chunk: int | None = None) -> Tensor:
        """Return all values of the metric after updates by ``chunk`` rows (None: all) or of the function."""
        if self.metric is None:
            assert self.function is not None
            return numbers(self.function(*rows))
        metric = self.metric()
        self.fill(metric, rows, chunk)
        return numbers(self.value(metric))

    def fill(self, metric: Metric, rows: Sequence[Tensor], chunk: int | None = None) -> None:
        """Update the metric with ``chunk`` rows at a time, or with all at once."""
        parts = [rows] if chunk is None else zip(*(each.split(chunk) for each in rows), strict=True)
        for part in parts:
            self.update(metric, *part)


def numbers(value: Any) -> Tensor:
    """Return all numbers of nested results in float64; None becomes NaN."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return torch.cat([numbers(each) for each in value])
    assert not isinstance(value, Tensor) or value.dtype == torch.float64
    return torch.as_tensor(torch.nan if value is None else value).double().flatten()


def names(value: Any) -> list[str]:
    """Return the keys of a dictionary or the fields of a named tuple."""
    return list(value if isinstance(value, Mapping) else getattr(value, "_fields", ()))


def assert_equal(found: Tensor, expected: Tensor, atol: float = 0.0) -> None:
    """Assert that both have the same NaN entries and otherwise the same numbers."""
    torch.testing.assert_close(found, expected, atol=atol, rtol=atol, equal_nan=True)


def assert_equals_function(case: Case) -> None:
    """Assert that one update, or updates by parts in inference mode after a reset, equal the function."""
    assert case.metric is not None
    metric = case.metric()
    case.fill(metric, [each[:20] for each in case.rows])
    metric.reset()
    case.fill(metric, [each.clone().requires_grad_(each.is_floating_point()) for each in case.rows])
    value = case.value(metric)
    whole = numbers(value)
    assert not whole.requires_grad
    if case.function is not None:
        expected = case.function(*case.rows)
        assert names(value) == names(expected)
        assert_equal(whole, numbers(expected), case.atol)
    metric.reset()
    with torch.inference_mode():
        case.fill(metric, [each.clone() for each in case.rows], chunk=7)
    assert_equal(numbers(case.value(metric)), whole, 1e-12)


def assert_keeps_no_reference(case: Case) -> None:
    """Assert that a metric does not change when the tensors of an update are overwritten afterwards."""
    assert case.metric is not None
    metric, buffers = case.metric(), [each.clone() for each in case.rows]
    case.fill(metric, buffers)
    for buffer in buffers:
        buffer.zero_()
    assert_equal(numbers(case.value(metric)), case.measure(case.rows))


def assert_takes_any_float(case: Case) -> None:
    """Assert that low-precision rows, also under autocast, give the value of the same rows in float64."""
    for dtype in (torch.float32, torch.bfloat16):
        rounded = [each.to(dtype) if each.is_floating_point() else each for each in case.rows]
        exact = [each.double() if each.is_floating_point() else each for each in rounded]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = case.measure(rounded)
        assert_equal(low, case.measure(exact), case.atol)


def assert_refuses_bad_rows(case: Case) -> None:
    """Assert that errors about wrong shapes and labels name the argument and its shape or values."""
    floats = [i for i, each in enumerate(case.rows) if each.is_floating_point()]
    labels = [i for i in range(len(case.rows)) if i not in floats]

    def assert_raises(change: Callable[[Tensor], Tensor], indices: Sequence[int], message: str) -> None:
        changed = [change(each) if i in indices else each for i, each in enumerate(case.rows)]
        with pytest.raises(ValueError, match=message):
            case.measure(changed)

    assert_raises(lambda x: x.new_zeros(N), floats, rf"(features|views|queries|bank|x|z1): .*\({N},\)")
    assert_raises(lambda x: x[:, None, None], floats, rf"(features|views|queries|bank|x|z1): .*\({N}, 1, 1, ")
    if labels:
        assert_raises(lambda x: x[1:], labels, rf"(labels|levels).*\({N}.*\({N - 1},")
        assert_raises(lambda x: x.float(), labels, "(labels|levels).* integers.*float32")
    if labels and case.below:
        assert_raises(lambda x: x - 1, labels, case.below)


def assert_without_rows(case: Case) -> None:
    """Assert that no rows, or no update, give an error or NaN."""
    no_rows = [each[:0] for each in case.rows]
    if case.empty is None:
        assert case.measure(no_rows).isnan().all()
        return
    with pytest.raises(ValueError, match=case.empty):
        case.measure(no_rows)
    if case.metric is not None:
        with pytest.raises(ValueError, match=case.empty):
            case.value(case.metric())


def of_processes(cases: Mapping[str, Case], folder: Path) -> list[dict[str, Tensor]]:
    """Return the results of two processes with uneven shards; they are forked to avoid repeated imports."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_measure_shard, args=(cases, folder, rank)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(timeout=120)
        assert [process.exitcode for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def _measure_shard(cases: Mapping[str, Case], folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    with threadpool_limits(1):  # threads do not survive a fork
        torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
        shards = {name: [each[SHARDS[rank]] for each in case.rows] for name, case in cases.items()}
        torch.save(
            {name: cases[name].measure(rows, 8) for name, rows in shards.items()}, folder / f"{rank}.pt"
        )
        torch.distributed.destroy_process_group()
