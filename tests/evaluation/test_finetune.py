"""Fine-tuning beside a loop of a few lines, and what it leaves alone."""

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
from ssl_vision.evaluation.finetune import FineTuneRule, finetuned_top1
from ssl_vision.evaluation.splits import Splits
from ssl_vision.evaluation.subset import label_subset
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.pretrained.rebuild import trained_model
from ssl_vision.runs.checkpoint import read_checkpoint

RULE = FineTuneRule(epochs=1, lr=0.1, momentum=0.8, weight_decay=1e-2, batch_size=40)


def some(split, count):
    return Digits().split(split).select(torch.arange(count))


def network(**options):
    return SimCLR(encoder=resnet(width=4), hidden_dim=16, output_dim=8, seed=0, **options).backbone


def seen(augmentation, images, rows, seed, epoch):
    views = Digits().views
    if augmentation == "none":
        return views.plain(images[rows])
    if augmentation == "crop":
        none = dict.fromkeys(("degrees", "jitter", "grayscale", "blur", "solarize"), 0.0)
        views = dataclasses.replace(views, **none)
    return views(images[rows], rows, seed=seed, epoch=epoch)[: len(rows)]


@pytest.mark.parametrize("augmentation", ["none", "crop", "pretraining"])
def test_two_steps_are_those_of_a_plain_loop(augmentation, monkeypatch):
    train, test = some("train", 79), some("test", 50)
    backbone = copy.deepcopy(network()).train()
    head = nn.Linear(backbone.num_features, 10)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    order = torch.randperm(79, generator=torch.Generator().manual_seed(3))
    parameters = [*backbone.parameters(), *head.parameters()]
    momenta = [torch.zeros_like(parameter) for parameter in parameters]
    for step, rows in enumerate((order[:40], order[40:])):
        scores = head(backbone(seen(augmentation, train.images, rows, 3, 0)))
        loss = -scores.log_softmax(dim=1)[torch.arange(len(rows)), train.labels[rows]].mean()
        gradients = torch.autograd.grad(loss, parameters)
        lr = 0.1 * (1 + math.cos(math.pi * step / 2)) / 2
        with torch.no_grad():
            for parameter, momentum, gradient in zip(parameters, momenta, gradients, strict=True):
                gradient = gradient + 1e-2 * parameter
                momentum.mul_(0.8).add_(gradient)
                parameter -= lr * (gradient + 0.8 * momentum)

    tested = []
    top1 = finetuned_top1.__globals__["_top1"]
    monkeypatch.setitem(finetuned_top1.__globals__, "_top1", lambda *a: tested.append(a[0]) or top1(*a))
    rule = dataclasses.replace(RULE, augmentation=augmentation)
    found = finetuned_top1(network(), train, test, Digits().views, rule=rule, seed=3)

    expected = nn.Sequential(backbone, head).state_dict()
    for name, value in tested[0].state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=2e-4, rtol=2e-3)
    with torch.no_grad():
        scores = head(backbone.eval()(Digits().views.plain(test.images)))
    assert found == pytest.approx(float((scores.argmax(1) == test.labels).double().mean()), abs=0.021)


def test_the_network_stays_as_it_was():
    model, train, test = network().train(), some("train", 80), some("test", 20)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    finetuned_top1(model, train, test, Digits().views, rule=RULE, seed=0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


def test_it_depends_on_the_seed_and_on_nothing_else():
    train, test = some("train", 120), Digits().split("test")
    rule = dataclasses.replace(RULE, epochs=2)
    found = []
    for seed, state in ((1, 5), (1, 6), (2, 5)):
        torch.manual_seed(state)
        found.append(finetuned_top1(network(), train, test, Digits().views, rule=rule, seed=seed))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_ten_percent_of_the_labels_are_exactly_those_images(monkeypatch):
    data = Digits()
    splits, rows = Splits.of(data), []
    at = Images.at
    monkeypatch.setattr(Images, "at", lambda self, indices: rows.append((self, indices)) or at(self, indices))
    train, test = splits.labelled_train("10%"), some("test", 30)
    rule = dataclasses.replace(RULE, epochs=3)
    finetuned_top1(network(), train, test, data.views, rule=rule, seed=0)
    seen = torch.cat([indices for images, indices in rows if images is train])
    expected = (label_subset(data.split("train").labels, "10%") >= 0).nonzero()[:, 0]
    assert torch.equal(seen.sort().values, expected.repeat_interleave(3))
    assert len(expected) == 142
    assert train.store is data.split("train").store


def test_rows_of_both_networks(tiny_run, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "layers: [backbone, projector]\n"
        "measurements: [finetune: {epochs: 1, labels: 10%, augmentation: none}]\n"
    )
    assert main(["evaluate", str(run), f"--protocol={mine}"]) == 0
    rows = json.loads((run / "evaluation.json").read_text())
    assert [(row["features"], row["layer"], row["metric"]) for row in rows] == [
        ("trained", "backbone", "finetune_top1"),
        ("untrained", "backbone", "finetune_top1"),
    ]
    assert (rows[0]["labels"], rows[0]["lr"], rows[0]["augmentation"]) == ("10%", 0.05, "none")
    assert not (run / "features").exists()  # which fine-tuning has no use for
    data = Digits()
    train = Splits.of(data).labelled_train("10%")
    rule = FineTuneRule(epochs=1, augmentation="none")
    model = trained_model(read_checkpoint(run))
    expected = finetuned_top1(model.backbone, train, data.split("test"), data.views, rule=rule, seed=0)
    assert rows[0]["value"] == expected


@pytest.mark.parametrize(
    "options",
    [{"epochs": 0}, {"lr": 0.0}, {"momentum": 1.0}, {"weight_decay": -1.0}, {"batch_size": 1},
     {"schedule": "step"}, {"augmentation": "all"}],
)  # fmt: skip
def test_a_rule_that_cannot_be_is_refused(options):
    with pytest.raises(ValueError, match=f"^{next(iter(options))}: out of range"):
        FineTuneRule(**options)


def test_too_few_labels_and_divergence_are_named():
    train, test, views = some("train", 60), some("test", 20), Digits().views
    with pytest.raises(ValueError, match=r"labels: expected 2 in train and 1 in test, got 1 and 20"):
        finetuned_top1(network(), some("train", 1), test, views, rule=RULE, seed=0)
    with pytest.raises(ValueError, match=r"lr: fine-tuning diverged at 1e\+30"):
        finetuned_top1(network(), train, test, views, rule=dataclasses.replace(RULE, lr=1e30), seed=0)
