"""Tests of the callbacks in LightningModules that this package does not define."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from small_backbone import WIDTH, small_backbone
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ssl_vision.callbacks import (
    GradientDiagnostics,
    ObjectiveStatistics,
    RepresentationMetrics,
    ShadowObjectives,
    SkipNonFiniteSteps,
)
from ssl_vision.errors import InputError
from ssl_vision.metrics import Alignment, KNNAccuracy, Representation, effective_rank, lidar
from ssl_vision.objectives import DCL, InfoNCE, Objective, SupCon


class TutorialSimCLR(pl.LightningModule):
    """SimCLR as tutorials write it: a backbone in a list, lightly's head, a loss called ``criterion``."""

    def __init__(self, criterion):
        super().__init__()
        self.backbone = nn.Sequential(*small_backbone())
        self.projection_head = SimCLRProjectionHead(WIDTH, 16, 8)
        self.criterion = criterion

    def forward(self, x):
        return self.projection_head(self.backbone(x).flatten(start_dim=1))

    def training_step(self, batch, batch_index):
        x0, x1 = batch
        return self.criterion(self(x0), self(x1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.06)


def train(model, callbacks, folder, *, epochs=1, shuffle=False):
    generator = torch.Generator().manual_seed(0)
    views = TensorDataset(*torch.rand(2, 24, 3, 32, 32, generator=generator))
    logger = CSVLogger(folder)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=logger, callbacks=callbacks, log_every_n_steps=1,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(views, batch_size=8, shuffle=shuffle))
    return trainer.callback_metrics


def test_callbacks_read_lightly_loss_and_remove_their_hooks(tmp_path):
    pl.seed_everything(0)
    model = TutorialSimCLR(NTXentLoss(temperature=0.5))
    callbacks = [
        GradientDiagnostics(every=1, objective="criterion"),
        ShadowObjectives([InfoNCE(temperature=0.5), DCL()], every=1, objective="criterion"),
        ObjectiveStatistics("criterion"),
        SkipNonFiniteSteps(objective="criterion"),
    ]
    logged = train(model, callbacks, tmp_path)
    assert logged["shadow/InfoNCE/cosine"] == pytest.approx(1, abs=1e-4)  # equals lightly's loss
    assert logged["shadow/InfoNCE/gradient_norm"] == pytest.approx(
        float(logged["shadow/training/gradient_norm"]), rel=1e-4
    )
    assert logged["gradient/ratio"] == pytest.approx(1, rel=1e-4)
    assert "gradient/gate" not in logged
    assert not model.criterion._forward_pre_hooks  # removed when training ends


def test_gradient_diagnostics_do_not_change_training(tmp_path):
    weights = []
    for callbacks in ([], [GradientDiagnostics(every=1, objective="criterion")]):
        pl.seed_everything(0)
        model = TutorialSimCLR(InfoNCE())
        train(model, callbacks, tmp_path)
        weights.append(model.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


class RandomObjective(nn.Module):
    """An objective that draws from the global generator, such as a random choice of negatives."""

    def forward(self, z1, z2):
        order = torch.randperm(len(z1))
        return (z1 - z2).square().mean() - (z1 - z2[order]).square().mean()


@pytest.mark.parametrize("kind", [GradientDiagnostics, ShadowObjectives])
def test_measuring_a_random_objective_does_not_change_training(tmp_path, kind):
    weights = []
    for measured in (False, True):
        pl.seed_everything(0)
        model = TutorialSimCLR(RandomObjective())
        options = {} if kind is GradientDiagnostics else {"objectives": [RandomObjective()]}
        train(model, [kind(every=1, objective="criterion", **options)] if measured else [], tmp_path)
        weights.append(model.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


class EpochRecorder(Objective):
    """An objective that records its epoch at every call."""

    epochs = []  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def forward(self, z1, z2):
        self.epochs.append(self.epoch)
        return (z1 - z2).square().mean()


def test_shadow_objective_has_the_epoch_in_which_a_run_continues(tmp_path):
    views = DataLoader(TensorDataset(*torch.rand(2, 24, 3, 32, 32)), batch_size=8)

    def epochs(ckpt_path=None):
        checkpoint = ModelCheckpoint(tmp_path, "within", every_n_train_steps=4)
        shadow = ShadowObjectives([EpochRecorder()], every=1, objective="criterion")
        trainer = pl.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, callbacks=[shadow, checkpoint],
            log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        EpochRecorder.epochs.clear()
        trainer.fit(TutorialSimCLR(InfoNCE()), views, ckpt_path=ckpt_path, weights_only=True)
        return list(EpochRecorder.epochs)

    assert epochs() == [0, 0, 0, 1, 1, 1]
    assert epochs(tmp_path / "within.ckpt") == [1, 1]


class RandomImages(Dataset):
    """Labelled images drawn from the global generators, as by random transforms."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(3, 32, 32) + random.random() + np.random.rand(), index % 2


def test_metrics_on_loaders_do_not_change_training(tmp_path):
    runs = []
    for measured in (False, True):
        pl.seed_everything(0)
        model, loader = TutorialSimCLR(InfoNCE()), DataLoader(RandomImages(), 4, shuffle=True)
        pairs = DataLoader(TensorDataset(*torch.rand(2, 8, 3, 32, 32)), 4, shuffle=True)
        metrics = RepresentationMetrics(k=3, encoder="backbone", bank=loader, queries=loader, pairs=pairs)
        train(model, [metrics] if measured else [], tmp_path, epochs=2, shuffle=True)
        runs.append((model.state_dict(), random.random(), np.random.rand()))
    weights = [run[0] for run in runs]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert runs[0][1:] == runs[1][1:]


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    return torch.rand(count, 3, 32, 32, generator=generator) + labels[:, None, None, None], labels


def test_encoder_metrics_on_loaders_match_direct_computation(tmp_path):
    bank, queries = (TensorDataset(*images(count, seed)) for count, seed in ((40, 0), (16, 1)))
    views = TensorDataset(queries[:][0], queries[:][0].flip(3))
    loaders = {
        "bank": DataLoader(bank, 16),
        "queries": DataLoader(queries, 16),
        "pairs": DataLoader(views, 5),
    }
    model = TutorialSimCLR(NTXentLoss())
    metrics = RepresentationMetrics(k=3, encoder="backbone", extended=True, **loaders)
    model.backbone[1].eval()  # frozen: must stay in evaluation mode
    logged = train(model, [metrics], tmp_path)
    assert model.training
    assert model.backbone[4].training
    assert not model.backbone[1].training
    model.backbone.eval()
    with torch.no_grad():
        bank_features, query_features, flipped_features = (
            model.backbone(x).flatten(1) for x in (bank[:][0], queries[:][0], views[:][1])
        )
    knn, representation, alignment = KNNAccuracy(num_classes=2, k=3), Representation(), Alignment()
    knn.update(bank_features, bank[:][1], "bank")
    knn.update(query_features, queries[:][1], "query")
    representation.update(query_features, queries[:][1])
    alignment.update(query_features, flipped_features)
    expected = {"knn_top1": knn.compute(), "alignment": alignment.compute(), **representation.compute()}
    expected |= {
        "effective_rank": effective_rank(query_features),
        "lidar": lidar(torch.stack([query_features, flipped_features], 1)),
    }
    for key, value in expected.items():
        assert logged[f"val/{key}"] == pytest.approx(float(value), rel=1e-3, abs=1e-5), key


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_encoder_in_another_precision_is_measured(tmp_path, precision):
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, precision=precision, default_root_dir=tmp_path,
        callbacks=[RepresentationMetrics(k=3, encoder="backbone", **{
            name: DataLoader(TensorDataset(*images(16, 0)), 16) for name in ("bank", "queries")
        })],
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(TutorialSimCLR(NTXentLoss()), DataLoader(TensorDataset(*torch.rand(2, 8, 3, 32, 32)), 8))
    assert 0 <= trainer.callback_metrics["val/knn_top1"] <= 1


@pytest.mark.parametrize("unlabelled", [("queries",), ("bank",), ("bank", "queries")])
def test_metrics_that_need_labels_are_omitted_without_them(tmp_path, unlabelled):
    pixels, labels = images(16, 0)
    loaders = {
        name: DataLoader(
            TensorDataset(pixels, -torch.ones_like(labels) if name in unlabelled else labels), 16
        )
        for name in ("bank", "queries")
    }
    metrics = RepresentationMetrics(k=3, encoder="backbone", **loaders)
    logged = train(TutorialSimCLR(NTXentLoss()), [metrics], tmp_path)
    assert "val/knn_top1" not in logged
    assert ("val/tolerance" in logged) == ("queries" not in unlabelled)
    assert logged["val/rankme"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "backbon"}, "has no submodule 'backbon'"),
        ({"bank": [torch.zeros(2, 3, 32, 32)]}, "a batch must begin with images and labels as two tensors"),
        ({"queries": []}, "a loader of images and labels has no batches"),
        ({"encoder": "backbone.4"}, r"backbone\.4 must return features of shape \(N, F\)"),
    ],
    ids=["path", "batch", "empty", "maps"],
)
def test_invalid_encoder_or_loader_raises_input_error(options, message, tmp_path):
    loader = (
        [images(8, 0)] if "backbone.4" not in options.values() else [(torch.rand(2, 8, 8, 8), torch.ones(2))]
    )
    arguments = {"encoder": "backbone", "bank": loader, "queries": loader} | options
    with pytest.raises(InputError, match=message):
        train(TutorialSimCLR(InfoNCE()), [RepresentationMetrics(**arguments)], tmp_path)


def test_knn_is_omitted_for_nonfinite_features(tmp_path):
    model = TutorialSimCLR(InfoNCE())
    loader = [images(8, 0)]
    metrics = RepresentationMetrics(k=3, encoder="backbone", bank=loader, queries=loader)
    model.backbone[0].weight.data.fill_(torch.inf)
    with pytest.warns(UserWarning, match="val/knn_top1 is left out"):
        logged = train(model, [metrics], tmp_path)
    assert "val/knn_top1" not in logged


def test_encoder_without_queries_raises_value_error():
    with pytest.raises(ValueError, match="encoder, bank and queries must be given together"):
        RepresentationMetrics(encoder="backbone", bank=[])


def test_objective_statistics_are_logged_in_any_module(tmp_path):
    logged = train(TutorialSimCLR(DCL(temperature=0.2)), [ObjectiveStatistics("criterion")], tmp_path)
    assert logged["train/temperature"] == pytest.approx(0.2)
    assert "train/weight_q95" in logged


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (GradientDiagnostics(), "TutorialSimCLR has no submodule 'objective'"),
        (
            ShadowObjectives([SupCon()], every=1, objective="criterion"),
            "SupCon needs labels, which the batches do not have",
        ),
        (
            GradientDiagnostics(every=1, objective="backbone"),
            "backbone was not called with the embeddings of two views",
        ),
    ],
    ids=["path", "labels", "no objective"],
)
def test_missing_submodule_labels_or_embeddings_raise_input_error(callback, message, tmp_path):
    with pytest.raises(InputError, match=message):
        train(TutorialSimCLR(InfoNCE()), [callback], tmp_path)


DIVERGING_RANK_SCRIPT = """
import sys
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from test_any_module import TutorialSimCLR, images
from ssl_vision.callbacks import RepresentationMetrics
from ssl_vision.objectives import InfoNCE


class Diverged(TutorialSimCLR):
    def on_train_batch_end(self, *args):  # in the buffers of one process, as DDP leaves those of BatchNorm
        if self.global_rank:
            self.backbone[1].running_mean.fill_(torch.nan)


loader = [images(16, 0)]
metrics = RepresentationMetrics(k=3, encoder="backbone", bank=loader, queries=loader)
trainer = pl.Trainer(
    max_steps=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, callbacks=[metrics],
    enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
)
trainer.fit(Diverged(InfoNCE()), DataLoader(TensorDataset(*torch.rand(2, 16, 3, 32, 32)), batch_size=8))
with open(f"knn-{trainer.global_rank}", "w") as file:
    file.write(str(trainer.logged_metrics["val/knn_top1"].item()))
trainer.strategy.barrier()
"""


@pytest.mark.long
def test_ranks_with_different_buffers_log_same_knn_accuracy(tmp_path):
    file = tmp_path / "fit.py"
    file.write_text(DIVERGING_RANK_SCRIPT)
    paths = [str(Path(__file__).parent), *filter(None, sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    result = subprocess.run(
        [sys.executable, file], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-2000:]
    values = [float((tmp_path / f"knn-{rank}").read_text()) for rank in range(2)]
    assert values[0] == values[1] >= 0
