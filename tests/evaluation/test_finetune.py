"""Tests of fine-tuning against a short loop, and of what it leaves unchanged."""

import copy
import dataclasses
import json
import math
import shutil

import pytest
import torch
from settings import resnet
from torch import nn

from ssl_vision.data import Digits, Images
from ssl_vision.evaluation import finetune
from ssl_vision.evaluation.features import embed
from ssl_vision.evaluation.finetune import FineTune, finetuned_correct
from ssl_vision.evaluation.splits import Splits, label_subset
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.pretrained.opened_run import open_run

RULE = FineTune(epochs=1, lr=0.1, momentum=0.8, weight_decay=1e-2, batch_size=40)


def first_images(split, count):
    return Digits().split(split).select(torch.arange(count))


def network(**options):
    return SimCLR(encoder=resnet(width=4), hidden_dim=16, output_dim=8, seed=0, **options).backbone


def augmented_batch(augmentation, images, rows, seed, epoch):
    views = Digits().views
    if augmentation == "none":
        return views.plain(images[rows])
    if augmentation == "crop":
        disabled = dict.fromkeys(("degrees", "jitter", "grayscale", "blur", "solarize"), 0.0)
        views = dataclasses.replace(views, **disabled)
    return views(images[rows], rows, seed=seed, epoch=epoch)[: len(rows)]


@pytest.fixture
def tuned(monkeypatch):
    """The networks that are tested after fine-tuning."""
    networks = []
    monkeypatch.setattr(finetune, "embed", lambda *a, **k: networks.append(a[0]) or embed(*a, **k))
    return networks


@pytest.mark.parametrize("augmentation", ["none", "crop", "pretraining"])
def test_two_steps_match_plain_loop(augmentation, tuned):
    train, test = first_images("train", 79), first_images("test", 50)
    backbone = copy.deepcopy(network()).train()
    head = nn.Linear(backbone.num_features, 10)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    order = torch.randperm(79, generator=torch.Generator().manual_seed(3))
    parameters = [*backbone.parameters(), *head.parameters()]
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    for step, rows in enumerate((order[:40], order[40:])):
        scores = head(backbone(augmented_batch(augmentation, train.images, rows, 3, 0)))
        loss = -scores.log_softmax(dim=1)[torch.arange(len(rows)), train.labels[rows]].mean()
        gradients = torch.autograd.grad(loss, parameters)
        lr = 0.1 * (1 + math.cos(math.pi * step / 2)) / 2
        with torch.no_grad():
            for parameter, momentum, gradient in zip(parameters, momenta, gradients, strict=True):
                gradient = gradient + 1e-2 * parameter
                momentum.mul_(0.8).add_(gradient)
                parameter -= lr * (gradient + 0.8 * momentum)

    rule = dataclasses.replace(RULE, augmentation=augmentation)
    correct = finetuned_correct(network(), train, test, Digits().views, rule=rule, seed=3)

    expected = nn.Sequential(backbone, head).state_dict()
    for name, value in tuned[0].state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=2e-4, rtol=2e-3)
    with torch.no_grad():
        scores = head(backbone.eval()(Digits().views.plain(test.images)))
    assert (correct != (scores.argmax(1) == test.labels)).double().mean() <= 0.021


def test_fine_tuning_does_not_change_given_network():
    model, train, test = network().train(), first_images("train", 80), first_images("test", 20)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    finetuned_correct(model, train, test, Digits().views, rule=RULE, seed=0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


@pytest.mark.parametrize(
    "changed", [network().requires_grad_(False), network().double()], ids=["frozen", "double"]
)
def test_frozen_encoder_and_one_in_another_precision_are_trained_alike(changed, tuned):
    train, test = first_images("train", 80), first_images("test", 20)
    for encoder in (network(), changed):
        finetuned_correct(encoder, train, test, Digits().views, rule=RULE, seed=0)
    torch.testing.assert_close(tuned[1].state_dict(), tuned[0].state_dict())
    assert not torch.equal(tuned[1][0].conv1.weight, network().conv1.weight)


def test_fine_tuning_depends_only_on_seed():
    train, test = first_images("train", 120), Digits().split("test")
    rule = dataclasses.replace(RULE, epochs=2)
    results = []
    for seed, state in ((1, 5), (1, 6), (2, 5)):
        torch.manual_seed(state)
        results.append(finetuned_correct(network(), train, test, Digits().views, rule=rule, seed=seed))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_ten_percent_of_labels_train_on_exactly_that_subset(monkeypatch):
    data = Digits()
    splits, reads = Splits.of(data), []
    at = Images.at
    monkeypatch.setattr(
        Images, "at", lambda self, indices: reads.append((self, indices)) or at(self, indices)
    )
    train, test = splits.labelled_train("10%"), first_images("test", 30)
    rule = dataclasses.replace(RULE, epochs=3)
    finetuned_correct(network(), train, test, data.views, rule=rule, seed=0)
    used = torch.cat([indices for images, indices in reads if images is train])
    expected = (label_subset(data.split("train").labels, "10%") >= 0).nonzero()[:, 0]
    assert torch.equal(used.sort().values, expected.repeat_interleave(3))
    assert len(expected) == 142
    assert train.store is data.split("train").store


def test_rows_of_trained_and_untrained_backbone_are_written(tiny_run, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")
    protocol = tmp_path / "mine.yaml"
    protocol.write_text(
        "layers: [backbone, projector]\n"
        "measurements: [finetune: {epochs: 1, labels: 10%, augmentation: none}]\n"
    )
    assert main(["evaluate", str(run), f"--protocol={protocol}"]) == 0
    rows = json.loads((run / "evaluation.json").read_text())
    assert [(row["features"], row["layer"], row["metric"]) for row in rows] == [
        ("trained", "backbone", "finetune_top1"),
        ("untrained", "backbone", "finetune_top1"),
    ]
    assert (rows[0]["labels"], rows[0]["lr"], rows[0]["augmentation"]) == ("10%", 0.05, "none")
    assert not (run / "features").exists()  # fine-tuning does not use cached features
    data = Digits()
    train = Splits.of(data).labelled_train("10%")
    rule = FineTune(epochs=1, augmentation="none")
    model = open_run(run).trained()
    correct = finetuned_correct(model.backbone, train, data.split("test"), data.views, rule=rule, seed=0)
    assert rows[0]["value"] == float(correct.double().mean())


def test_too_few_labels_and_divergence_raise_value_error():
    train, test, views = first_images("train", 60), first_images("test", 20), Digits().views
    with pytest.raises(ValueError, match=r"labels: expected 2 in train and 1 in test, got 1 and 20"):
        finetuned_correct(network(), first_images("train", 1), test, views, rule=RULE, seed=0)
    with pytest.raises(ValueError, match=r"lr: fine-tuning diverged at 1e\+30"):
        finetuned_correct(network(), train, test, views, rule=dataclasses.replace(RULE, lr=1e30), seed=0)
