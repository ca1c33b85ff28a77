"""The record of W: what a histogram counts, and what a run directory holds of it."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from settings import TINY
from torch import nn

from ssl_vision.callbacks.weights import BINS, WeightHistogram, names, shares
from ssl_vision.main import main
from ssl_vision.objectives import MACL


def rows(run):
    with (run / "weights.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_shares_are_numpys_histogram_of_the_log_odds():
    weights = torch.rand(500, generator=torch.Generator().manual_seed(0))
    weights[:5] = torch.tensor([0.0, 1.0, 0.5, 1e-30, 1 - 2**-24])
    odds = (weights.double() / (1 - weights.double())).log().clamp(-9.99, 9.99)
    expected = np.histogram(odds.numpy(), bins=BINS, range=(-10, 10))[0] / 500
    np.testing.assert_allclose(shares(weights), expected, atol=1e-7)


def test_a_bin_is_named_by_its_lower_end():
    ends = [float(name.removeprefix("weight/")) for name in names()]
    assert len(ends) == BINS
    assert ends[0] == 0
    np.testing.assert_allclose(ends[1:], 1 / (1 + np.exp(-np.linspace(-10, 10, BINS + 1)[1:-1])), rtol=1e-5)
    inside = torch.tensor([end + 1e-6 for end in ends])
    assert (shares(inside) == 1 / BINS).all()


def test_bins_resolve_weights_that_are_all_close_to_one():
    weights = 1 - torch.logspace(-3.5, -1.5, 100)  # all in [0.968, 0.9997]: a single one of 20 equal bins
    assert (shares(weights) > 0).sum() >= 15


def test_the_histogram_has_a_deterministic_form_on_cuda(monkeypatch):
    monkeypatch.setattr(torch, "histc", pytest.fail)  # which has none, and ends deterministic runs
    assert shares(torch.tensor([0.0, 0.5, 1.0]))[[0, BINS // 2, BINS - 1]].tolist() == pytest.approx(
        [1 / 3] * 3
    )


def test_values_that_are_not_finite_are_in_no_bin():
    assert shares(torch.tensor([0.1, float("nan"), 0.9, 0.9])).sum().item() == pytest.approx(0.75)


def test_a_row_is_the_weights_of_the_step():
    objective, written = MACL(temperature=0.1), []
    log = SimpleNamespace(log_metrics=lambda row, step: written.append((step, row)))
    trainer = SimpleNamespace(log_every_n_steps=2, global_step=3, current_epoch=1, is_global_zero=True)
    callback, module = WeightHistogram(log), nn.Module()
    module.objective = objective
    callback.on_train_batch_end(trainer, module, None, None, 0)
    trainer.global_step = 4
    callback.on_train_batch_end(trainer, module, None, None, 0)
    assert written == []  # nothing was called yet
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


def test_a_continued_run_has_each_row_once(tmp_path):
    def fit(name, *args):
        assert main(["fit", f"--runs_dir={tmp_path}", f"--name={name}", *TINY, *args]) == 0

    fit("whole")
    fit("parts", "--trainer.max_epochs=1")
    with (tmp_path / "parts" / "weights.csv").open("a") as file:
        file.write(f"4,1,{',' * (BINS - 1)}\n")  # of a step that the checkpoint does not have
    fit("parts", "--ckpt_path=last")
    whole = rows(tmp_path / "whole")
    assert rows(tmp_path / "parts") == whole
    assert [int(row["step"]) for row in whole] == list(range(8))
    for row in whole:
        assert sum(float(row[name]) for name in names()) == pytest.approx(1)
    fit("parts", "--overwrite=true", "--model.objective=BarlowTwins")
    assert not (tmp_path / "parts" / "weights.csv").exists()
