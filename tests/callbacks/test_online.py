"""The online probe: a torch loop on the same features, no trace in the run, and a state that continues."""

import csv

import pytest
import pytorch_lightning as pl
import torch
from settings import TINY, resnet

from ssl_vision.callbacks import OnlineProbe
from ssl_vision.data import Batch, Digits
from ssl_vision.evaluation.features import embed
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.runs.checkpoint import read_checkpoint

SMALL = {"encoder": resnet(width=4), "hidden_dim": 16, "output_dim": 8, "seed": 0}


class Seen(pl.Callback):
    def __init__(self):
        self.batches = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches.append((torch.cat(pl_module.features), batch.labels.repeat(2)))


def fitted(tmp_path, *callbacks, **options):
    model, data = SimCLR(**SMALL, **options), Digits(batch_size=32, seed=0)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, limit_train_batches=5, logger=False, callbacks=list(callbacks),
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model, data)
    return model, data, trainer


@pytest.mark.parametrize("options", [{}, {"bn": "per_view"}, {"chunk_size": 8}], ids=str)
def test_it_is_sgd_on_the_features_of_the_views(tmp_path, options):
    seen, probe = Seen(), OnlineProbe(lr=0.3, momentum=0.8, weight_decay=0.01)
    model, data, trainer = fitted(tmp_path, probe, seen, **options)
    layer = torch.nn.Linear(32, 10)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.3, momentum=0.8, weight_decay=0.01)
    for features, labels in seen.batches:
        logits = layer(features)
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(logits, labels).backward()
        sgd.step()
    torch.testing.assert_close(probe.layer.weight, layer.weight)
    torch.testing.assert_close(probe.layer.bias, layer.bias)
    right = (logits.argmax(1) == labels).float().mean()
    assert trainer.logged_metrics["train/online_top1"] == pytest.approx(float(right))
    queries = data.val_dataloader()[0].data
    with torch.inference_mode():
        found = probe.layer(embed(model, queries, data.views)["backbone"]).argmax(1) == queries.labels
    assert trainer.logged_metrics["val/online_top1"] == pytest.approx(float(found.float().mean()))


@pytest.mark.parametrize("options", [{}, {"bn": "per_view"}, {"chunk_size": 3}], ids=str)
def test_the_features_are_those_of_the_views_in_their_order(options):
    model = SimCLR(**SMALL, **options).eval()
    views = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model.training_step(Batch(views[:8], torch.zeros(8), torch.arange(8), views), 0)
    torch.testing.assert_close(torch.cat(model.features), model(views).backbone.detach())
    assert not any(features.requires_grad for features in model.features)


def rows(run):
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_with_it_is_the_run_without_it_and_continues(tmp_path, tiny_run):
    def fit(name, *more):
        args = ["--model.objective=MACL", "--model.objective.alpha=3", "--online_probe=true"]
        assert main(["fit", f"--runs_dir={tmp_path}", f"--name={name}", *args, *TINY, *more]) == 0
        return tmp_path / name

    whole = fit("whole")
    fit("part", "--trainer.max_epochs=1")
    continued = fit("part", "--ckpt_path=last")
    plain = read_checkpoint(tiny_run).state
    for run in (whole, continued):
        assert all(torch.equal(plain[key], value) for key, value in read_checkpoint(run).state.items())
    assert rows(whole) == rows(continued)
    extra = {"train/online_top1", "val/online_top1"}
    assert [{k: v for k, v in row.items() if k not in extra} for row in rows(whole)] == rows(tiny_run)
    assert 0 < float(rows(whole)[-1]["val/online_top1"]) <= 1


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match=r"got 0, 0\.9 and 0\.0"):
        OnlineProbe(lr=0)
