"""Tests of the online probe in LightningModules that this package does not define."""

import pytest
import pytorch_lightning as pl
import torch
from small_backbone import WIDTH, small_backbone
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ssl_vision.callbacks import OnlineProbe
from ssl_vision.errors import InputError


class PlainModule(pl.LightningModule):
    """A backbone, ordinary batches (view 1, view 2, labels) and a validation step."""

    def __init__(self):
        super().__init__()
        self.backbone = small_backbone().append(nn.Flatten())
        self.head = nn.Linear(WIDTH, 8)
        self.recorded = []

    def training_step(self, batch, batch_idx):
        first, second, labels = batch
        x, y = self.backbone(first), self.backbone(second)
        self.features = x.detach(), y.detach()
        self.recorded.append((torch.cat(self.features), labels.repeat(2)))
        return (self.head(x) - self.head(y)).square().mean()

    def validation_step(self, batch, batch_idx):
        return {"plain": {"backbone": self.backbone(batch[0])}}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loaders(labels=None):
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(16) % 3 if labels is None else labels
    data = TensorDataset(*torch.rand(2, 16, 3, 32, 32, generator=g), labels)
    return DataLoader(data, batch_size=8), DataLoader(data, batch_size=4)


def fit(module, probe, folder, *, data=None, epochs=2, ckpt_path=None):
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, callbacks=[probe], log_every_n_steps=1,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
        default_root_dir=folder,
    )  # fmt: skip
    train, val = data or loaders()
    trainer.fit(module, train, val, ckpt_path=ckpt_path, weights_only=True)
    return trainer


def backbone_probe(**options):
    return OnlineProbe(lr=0.3, num_classes=3, labels=2, **options)


def test_online_probe_matches_sgd_on_features_of_module(tmp_path):
    module, probe = PlainModule(), backbone_probe()
    trainer = fit(module, probe, tmp_path)
    layer = nn.Linear(WIDTH, 3)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.3, momentum=0.9)
    assert len(module.recorded) == 4
    for features, labels in module.recorded:
        sgd.zero_grad()
        nn.functional.cross_entropy(layer(features), labels).backward()
        sgd.step()
    torch.testing.assert_close(probe.layer.weight, layer.weight)
    images, _, labels = loaders()[1].dataset.tensors
    with torch.no_grad():
        correct = layer(module.eval().backbone(images)).argmax(1) == labels
    assert trainer.logged_metrics["val/online_top1"] == pytest.approx(float(correct.float().mean()))


def test_online_probe_does_not_change_training_and_resumes(tmp_path):
    pl.seed_everything(0)
    plain = PlainModule()
    fit(plain, pl.Callback(), tmp_path)
    pl.seed_everything(0)
    module, probe = PlainModule(), backbone_probe()
    fit(module, probe, tmp_path, epochs=1).save_checkpoint(tmp_path / "one.ckpt")
    resumed, resumed_probe = PlainModule(), backbone_probe()
    fit(resumed, resumed_probe, tmp_path, ckpt_path=tmp_path / "one.ckpt")
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in plain.state_dict().items())
    uninterrupted_probe = backbone_probe()
    pl.seed_everything(0)
    fit(PlainModule(), uninterrupted_probe, tmp_path)
    assert torch.equal(uninterrupted_probe.layer.weight, resumed_probe.layer.weight)


def test_online_probe_keeps_order_of_shuffled_batches_and_dropout(tmp_path):
    class Dropout(PlainModule):
        def __init__(self):
            super().__init__()
            self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, 8))

    weights = []
    for callback in (pl.Callback(), backbone_probe()):
        pl.seed_everything(0)
        module, (train, val) = Dropout(), loaders()
        fit(module, callback, tmp_path, data=(DataLoader(train.dataset, 8, shuffle=True), val))
        weights.append(module.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize(("labelled", "expected"), [(16, 1.0), (4, 1.0), (0, None)])
def test_online_accuracy_ignores_unlabelled_images(tmp_path, labelled, expected):
    class AlwaysFirst(OnlineProbe):
        def on_train_batch_end(self, *args, **kwargs):
            super().on_train_batch_end(*args, **kwargs)
            nn.init.zeros_(self.layer.weight)
            nn.init.zeros_(self.layer.bias)  # argmax is class 0

    labels = torch.where(torch.arange(16) < labelled, 0, -1)
    probe = AlwaysFirst(num_classes=3, labels=2)
    trainer = fit(PlainModule(), probe, tmp_path, data=loaders(labels), epochs=1)
    assert trainer.callback_metrics.get("val/online_top1") == expected
    if labelled != 4:  # the last batch has no label
        assert trainer.callback_metrics.get("train/online_top1") == expected


def test_online_probe_of_second_fit_starts_from_its_checkpoint(tmp_path):
    probe = backbone_probe()
    pl.seed_everything(0)
    fit(PlainModule(), probe, tmp_path, epochs=1).save_checkpoint(tmp_path / "one.ckpt")
    fit(PlainModule(), probe, tmp_path)
    fit(PlainModule(), probe, tmp_path, ckpt_path=tmp_path / "one.ckpt")
    fresh = backbone_probe()
    fit(PlainModule(), fresh, tmp_path, ckpt_path=tmp_path / "one.ckpt")
    assert torch.equal(probe.layer.weight, fresh.layer.weight)


def test_unknown_number_of_classes_raises_input_error(tmp_path):
    with pytest.raises(InputError, match="num_classes is missing"):
        fit(PlainModule(), OnlineProbe(labels=2), tmp_path)


def test_unlabelled_images_are_ignored(tmp_path):
    labels = torch.tensor([0, -1] * 8)
    module, probe = PlainModule(), backbone_probe()
    fit(module, probe, tmp_path, data=loaders(labels), epochs=1)
    bias = probe.layer.bias.tolist()
    assert bias[0] > 0 > bias[1]
    assert bias[1] == pytest.approx(bias[2])  # neither class occurs
