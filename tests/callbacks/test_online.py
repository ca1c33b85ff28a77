"""Tests of the online probe: agreement with a plain torch loop, no effect on the run, and resuming."""

import copy
import csv

import pytest
import pytorch_lightning as pl
import torch
from settings import TINY, resnet

from ssl_vision import data
from ssl_vision.callbacks import OnlineProbe
from ssl_vision.data import Batch, Digits
from ssl_vision.evaluation.features import embed
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.objectives import RECLAIM, SupCon
from ssl_vision.runs.checkpoint import read_checkpoint

SMALL = {"encoder": resnet(width=4), "hidden_dim": 16, "output_dim": 8, "seed": 0}


class FeatureRecorder(pl.Callback):
    def __init__(self):
        self.batches = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.batches.append((pl_module.features.flatten(0, 1), batch.labels.repeat(2)))


def fitted(tmp_path, *callbacks, **options):
    model, data = SimCLR(**SMALL, **options), Digits(batch_size=32, seed=0)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, limit_train_batches=5, logger=False, callbacks=list(callbacks),
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model, data)
    return model, data, trainer


@pytest.mark.parametrize("options", [{}, {"bn": "per_view"}, {"chunk_size": 8}], ids=str)
def test_online_probe_matches_sgd_on_view_features(tmp_path, options):
    recorder, probe = FeatureRecorder(), OnlineProbe(lr=0.3, momentum=0.8, weight_decay=0.01)
    model, data, trainer = fitted(tmp_path, probe, recorder, **options)
    layer = torch.nn.Linear(32, 10)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.3, momentum=0.8, weight_decay=0.01)
    for features, labels in recorder.batches:
        logits = layer(features)
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(logits, labels, ignore_index=-1).backward()
        sgd.step()
    torch.testing.assert_close(probe.layer.weight, layer.weight)
    torch.testing.assert_close(probe.layer.bias, layer.bias)
    assert (labels < 0).any()  # validation queries
    train_accuracy = (logits.argmax(1) == labels)[labels >= 0].float().mean()
    assert trainer.logged_metrics["train/online_top1"] == pytest.approx(float(train_accuracy))
    queries = data.val_dataloader()[0].data
    with torch.inference_mode():
        correct = probe.layer(embed(model, queries, data.views)["backbone"]).argmax(1) == queries.labels
    assert trainer.logged_metrics["val/online_top1"] == pytest.approx(float(correct.float().mean()))


@pytest.mark.parametrize("objective", [SupCon(), RECLAIM(k=3)], ids=lambda each: type(each).__name__)
def test_random_labels_of_queries_reach_no_consumer_of_labels(tmp_path, objective, monkeypatch):
    def states(seed):
        class Relabelled(data.Digits):
            def read(self, split):
                images = super().read(split)
                if split != "train":
                    return images
                same, changed = (
                    torch.randint(10, (len(images),), generator=torch.Generator().manual_seed(each))
                    for each in (0, seed)
                )
                return images.relabelled(torch.where(self.heldout(len(images)), changed, same))

        monkeypatch.setitem(globals(), "Digits", Relabelled)
        probe = OnlineProbe(lr=0.3)
        model, _, trainer = fitted(tmp_path, probe, objective=copy.deepcopy(objective))
        used = [value for name, value in trainer.logged_metrics.items() if not name.startswith("val/")]
        return [*model.state_dict().values(), *probe.layer.parameters(), *used]

    for first, second in zip(states(1), states(2), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("options", [{}, {"bn": "per_view"}, {"chunk_size": 3}], ids=str)
def test_model_features_are_detached_and_in_view_order(options):
    model = SimCLR(**SMALL, **options).eval()
    views = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model.training_step(Batch(views[:8], torch.zeros(8), torch.arange(8), views), 0)
    torch.testing.assert_close(model.features.flatten(0, 1), model(views).backbone.detach())
    assert not model.features.requires_grad


def rows(run):
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_run_with_online_probe_matches_plain_run_and_resumes(tmp_path, tiny_run):
    def fit(name, *more):
        args = ["--model.objective=MACL", "--model.objective.alpha=3", "--online_probe=true"]
        assert main(["fit", f"--runs_dir={tmp_path}", f"--name={name}", *args, *TINY, *more]) == 0
        return tmp_path / name

    full_run = fit("whole")
    fit("part", "--trainer.max_epochs=1")
    resumed = fit("part", "--ckpt_path=last")
    plain = read_checkpoint(tiny_run).state
    for run in (full_run, resumed):
        assert all(torch.equal(plain[key], value) for key, value in read_checkpoint(run).state.items())
    assert rows(full_run) == rows(resumed)
    probe_keys = {"train/online_top1", "val/online_top1"}
    assert [{k: v for k, v in row.items() if k not in probe_keys} for row in rows(full_run)] == rows(tiny_run)
    assert 0 < float(rows(full_run)[-1]["val/online_top1"]) <= 1


def test_zero_learning_rate_raises_value_error():
    with pytest.raises(ValueError, match=r"lr must be above 0, got 0"):
        OnlineProbe(lr=0)
