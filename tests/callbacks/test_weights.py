"""Tests of the histogram of the weights W, and of the file weights.csv that a run writes."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from settings import UNVALIDATED
from torch import nn

from ssl_vision.callbacks.objective_statistics import BINS, WeightHistogram, names, shares
from ssl_vision.main import main
from ssl_vision.objectives import MACL


def rows(run):
    with (run / "weights.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_shares_match_numpy_histogram_of_log_odds():
    weights = torch.rand(500, generator=torch.Generator().manual_seed(0))
    weights[:5] = torch.tensor([0.0, 1.0, 0.5, 1e-30, 1 - 2**-24])
    odds = (weights.double() / (1 - weights.double())).log().clamp(-9.99, 9.99)
    expected = np.histogram(odds.numpy(), bins=BINS, range=(-10, 10))[0] / 500
    np.testing.assert_allclose(shares(weights), expected, atol=1e-7)


def test_bins_are_named_by_lower_edge():
    edges = [float(name.removeprefix("weight/")) for name in names()]
    assert len(edges) == BINS
    assert edges[0] == 0
    np.testing.assert_allclose(edges[1:], 1 / (1 + np.exp(-np.linspace(-10, 10, BINS + 1)[1:-1])), rtol=1e-5)
    inside = torch.tensor([edge + 1e-6 for edge in edges])
    assert (shares(inside) == 1 / BINS).all()


def test_bins_resolve_weights_that_are_all_close_to_one():
    weights = 1 - torch.logspace(-3.5, -1.5, 100)  # all in [0.968, 0.9997], one of 20 equal bins
    assert (shares(weights) > 0).sum() >= 15


def test_shares_do_not_call_torch_histc(monkeypatch):
    monkeypatch.setattr(torch, "histc", pytest.fail)  # nondeterministic on CUDA, so deterministic runs fail
    assert shares(torch.tensor([0.0, 0.5, 1.0]))[[0, BINS // 2, BINS - 1]].tolist() == pytest.approx(
        [1 / 3] * 3
    )


def test_nonfinite_values_are_in_no_bin():
    assert shares(torch.tensor([0.1, float("nan"), 0.9, 0.9])).sum().item() == pytest.approx(0.75)


def test_row_is_histogram_of_logged_step():
    objective, written = MACL(temperature=0.1), []
    log = SimpleNamespace(log_metrics=lambda row, step: written.append((step, row)))
    trainer = SimpleNamespace(
        log_every_n_steps=2, global_step=3, current_epoch=1, is_global_zero=True, accumulate_grad_batches=1
    )
    callback, module = WeightHistogram(log), nn.Module()
    module.objective = objective
    callback.on_train_batch_end(trainer, module, None, None, 0)
    trainer.global_step = 4
    callback.on_train_batch_end(trainer, module, None, None, 0)
    assert written == []  # the objective has not been called
    z1, z2 = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(0))
    objective(z1, z2)
    callback.on_train_batch_end(trainer, module, None, None, 0)
    ((step, row),) = written
    assert step == 3
    assert row.pop("epoch") == 1
    unit = torch.nn.functional.normalize(torch.cat([z1, z2]).double(), dim=1)
    tau = objective.statistics()["temperature"].item()
    exponentials = (unit @ unit.T / tau).exp()
    positive = exponentials.roll(16, dims=1).diagonal()
    negatives = exponentials.sum(dim=1) - exponentials.diagonal() - positive
    weight = (negatives / (negatives + positive)).numpy()
    odds = np.log(weight / (1 - weight)).clip(-9.99, 9.99)
    expected = np.histogram(odds, bins=BINS, range=(-10, 10))[0] / 32
    assert list(row.values()) == pytest.approx(expected.tolist())


def test_row_is_histogram_of_last_accumulated_batch():
    objective, written = MACL(temperature=0.1), []
    log = SimpleNamespace(log_metrics=lambda row, step: written.append((step, row)))
    trainer = SimpleNamespace(
        log_every_n_steps=2, current_epoch=0, is_global_zero=True, accumulate_grad_batches=2,
        is_last_batch=False,
    )  # fmt: skip
    callback, module = WeightHistogram(log), nn.Module()
    module.objective = objective
    generator = torch.Generator().manual_seed(0)
    for batch_idx, trainer.global_step in enumerate((0, 1, 1, 2, 2, 3)):
        objective(*torch.randn(2, 16, 8, generator=generator))
        if batch_idx == 3:  # the last of the second step
            expected = shares(objective.anchor_weights()).tolist()
        callback.on_train_batch_end(trainer, module, None, None, batch_idx)
    ((step, row),) = written
    assert step == 1
    assert [row[name] for name in names()] == expected
    trainer.is_last_batch, trainer.global_step = True, 4  # a step of one batch, at the end of the epoch
    callback.on_train_batch_end(trainer, module, None, None, 6)
    assert [step for step, _ in written] == [1, 3]


def test_resumed_run_writes_each_row_once(tmp_path):
    def fit(name, *args):
        assert main(["fit", f"--runs_dir={tmp_path}", f"--name={name}", *UNVALIDATED, *args]) == 0

    fit("whole")
    fit("parts", "--trainer.max_epochs=1")
    with (tmp_path / "parts" / "weights.csv").open("a") as file:
        file.write(f"4,1,{',' * (BINS - 1)}\n")  # of a step after the checkpoint
    fit("parts", "--ckpt_path=last")
    uninterrupted = rows(tmp_path / "whole")
    assert rows(tmp_path / "parts") == uninterrupted
    assert [int(row["step"]) for row in uninterrupted] == list(range(8))
    for row in uninterrupted:
        assert sum(float(row[name]) for name in names()) == pytest.approx(1)
    fit("parts", "--overwrite=true", "--model.objective=BarlowTwins")
    assert not (tmp_path / "parts" / "weights.csv").exists()
