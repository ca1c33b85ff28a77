"""Tests of the callbacks in LightningModules that this package does not define."""

import random

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
from torch.utils.data import DataLoader, TensorDataset

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
        SkipNonFiniteSteps(),
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


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    return torch.rand(count, 3, 32, 32, generator=generator) + labels[:, None, None, None], labels


class ValidatedSimCLR(TutorialSimCLR):
    """SimCLR whose validation step returns the features of images and, for the queries, of a second view."""

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        outputs = {"plain": {"backbone": self.backbone(batch[0]).flatten(1)}}
        if len(batch) > 2:
            outputs["views"] = {"backbone": self.backbone(torch.cat([batch[0], batch[2]])).flatten(1)}
        return outputs


def validated(module, loaders, *, epochs=1, precision=None, callbacks=None):
    metrics = RepresentationMetrics(k=3, num_classes=2, extended=True)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, precision=precision, num_sanity_val_steps=0,
        callbacks=[metrics] if callbacks is None else callbacks,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    views = TensorDataset(*torch.rand(2, 24, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    trainer.fit(module, DataLoader(views, batch_size=8, shuffle=True), loaders)
    return trainer.callback_metrics


def labelled_loaders(*changed, label=None):
    """Loaders of queries (image, label, second view) and of the bank; those in ``changed`` have one label."""
    bank, queries = images(40, 0), images(16, 1)
    bank, queries = (
        (pixels, labels if label is None or name not in changed else torch.full_like(labels, label))
        for name, (pixels, labels) in {"bank": bank, "queries": queries}.items()
    )
    return [
        DataLoader(TensorDataset(*queries, queries[0].flip(3)), 5),
        DataLoader(TensorDataset(*bank), 16),
    ]


def test_metrics_of_returned_features_match_direct_computation():
    model, loaders = ValidatedSimCLR(NTXentLoss()), labelled_loaders()
    logged = validated(model, loaders)
    (pixels, labels, flipped), (bank, bank_labels) = (loader.dataset.tensors for loader in loaders)
    model.backbone.eval()
    with torch.no_grad():
        features, flipped_features, bank_features = (
            model.backbone(x).flatten(1) for x in (pixels, flipped, bank)
        )
    knn, representation, alignment = KNNAccuracy(num_classes=2, k=3), Representation(), Alignment()
    knn.update(bank_features, bank_labels, "bank")
    knn.update(features, labels, "query")
    representation.update(features, labels)
    alignment.update(features, flipped_features)
    expected = {"knn_top1": knn.compute(), "alignment": alignment.compute(), **representation.compute()}
    expected |= {
        "effective_rank": effective_rank(features),
        "lidar": lidar(torch.stack([features, flipped_features], 1)),
    }
    for key, value in expected.items():
        assert logged[f"val/{key}"] == pytest.approx(float(value), rel=1e-3, abs=1e-5), key
    assert not any(key.endswith(("_hidden", "_projector")) for key in logged)


def test_metrics_do_not_change_training():
    runs = []
    for callbacks in ([], None):
        pl.seed_everything(0)
        model = ValidatedSimCLR(InfoNCE())
        validated(model, labelled_loaders(), epochs=2, callbacks=callbacks)
        runs.append((model.state_dict(), random.random(), np.random.rand()))
    weights = [run[0] for run in runs]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert runs[0][1:] == runs[1][1:]


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_encoder_in_another_precision_is_measured(precision):
    assert 0 <= validated(ValidatedSimCLR(NTXentLoss()), labelled_loaders(), precision=precision)[
        "val/knn_top1"
    ] <= 1  # fmt: skip


@pytest.mark.parametrize("unlabelled", [("queries",), ("bank",), ("bank", "queries")])
def test_metrics_that_need_labels_are_omitted_without_them(unlabelled):
    loaders = labelled_loaders(*unlabelled, label=-1)
    with pytest.warns(UserWarning, match="val/knn_top1 is left out: labels of the .*: no labelled row"):
        logged = validated(ValidatedSimCLR(NTXentLoss()), loaders)
    assert "val/knn_top1" not in logged
    assert ("val/tolerance" in logged) == ("queries" not in unlabelled)
    assert logged["val/rankme"] > 0


def test_validation_step_without_features_raises_input_error():
    class Silent(TutorialSimCLR):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            return None

    with pytest.raises(InputError, match=r"Silent.validation_step must return .*backbone"):
        validated(Silent(InfoNCE()), labelled_loaders())


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
