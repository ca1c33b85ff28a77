import math
from itertools import count

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from ssl_vision import evaluate
from ssl_vision.evaluation.probe import ProbeRule, linear_probe, nearest_mean


def blobs(seed, n=300, spread=0.2, classes=4, width=6):
    centres = torch.eye(classes, width) * 3
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    return centres[labels] + spread * torch.randn(n, width, generator=g), labels


@pytest.mark.parametrize(
    "rule",
    [
        ProbeRule(epochs=5, batch_size=32),
        ProbeRule(epochs=3, lr=0.3, momentum=0.0, batch_size=1000),
        ProbeRule(epochs=4, lr=0.1, momentum=0.5, weight_decay=0.05, batch_size=7),
        ProbeRule(epochs=4, lr=0.1, weight_decay=0.05, batch_size=32, optimizer="nesterov"),
        ProbeRule(epochs=2, lr=0.1, momentum=0.0, batch_size=32, optimizer="nesterov"),
        ProbeRule(epochs=4, lr=0.01, weight_decay=0.05, batch_size=32, optimizer="adam"),
        ProbeRule(epochs=4, lr=0.01, batch_size=30, optimizer="adam", schedule="cosine"),
    ],
)
def test_linear_probe_matches_autograd_and_formulas_of_optimizers(rule):
    (x, y), (test_x, test_y) = blobs(0, spread=2.0), blobs(1, spread=2.0)
    probe = linear_probe(x, y, test_x, test_y, num_classes=4, rule=rule, seed=3)
    layer = torch.nn.Linear(6, 4, dtype=torch.float64)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    means, squares = ([torch.zeros_like(each) for each in layer.parameters()] for _ in range(2))
    steps, step = rule.epochs * -(-len(x) // rule.batch_size), 0
    generator = torch.Generator().manual_seed(3)
    for _ in range(rule.epochs):
        for batch in torch.randperm(len(x), generator=generator).split(rule.batch_size):
            lr = rule.lr
            if rule.schedule == "cosine":
                lr *= (1 + math.cos(math.pi * step / steps)) / 2
            step += 1
            layer.zero_grad()
            torch.nn.CrossEntropyLoss()(layer(x[batch].double()), y[batch]).backward()
            for parameter, mean, square in zip(layer.parameters(), means, squares, strict=True):
                gradient = parameter.grad + rule.weight_decay * parameter.detach()
                if rule.optimizer == "adam":
                    mean.copy_(0.9 * mean + 0.1 * gradient)
                    square.copy_(0.999 * square + 0.001 * gradient**2)
                    update = mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
                else:
                    mean.copy_(rule.momentum * mean + gradient)
                    update = gradient + rule.momentum * mean if rule.optimizer == "nesterov" else mean
                parameter.data -= lr * update
    torch.testing.assert_close(probe.weight.double(), layer.weight.detach(), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(probe.bias.double(), layer.bias.detach(), atol=2e-6, rtol=1e-5)
    correct = [
        int(layer(row).argmax()) == int(label) for row, label in zip(test_x.double(), test_y, strict=True)
    ]
    assert 0.3 < probe.test_top1 < 0.99
    assert probe.test_top1 == pytest.approx(sum(correct) / len(correct))


def test_separable_classes_are_classified_without_error():
    probe = linear_probe(*blobs(0), *blobs(1), num_classes=4, rule=ProbeRule(epochs=20))
    assert (probe.test_top1, probe.train_top1) == (1.0, 1.0)


def test_labels_unrelated_to_features_give_chance_accuracy():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(4000, 6, generator=g), torch.randint(4, (4000,), generator=g)
    probe = linear_probe(x[:2000], y[:2000], x[2000:], y[2000:], num_classes=4, rule=ProbeRule(epochs=10))
    assert probe.test_top1 == pytest.approx(0.25, abs=0.05)


def test_linear_probe_depends_only_on_seed():
    data = (*blobs(0, spread=2.0), *blobs(1, spread=2.0))
    rule = ProbeRule(epochs=3)
    first = linear_probe(*data, num_classes=4, rule=rule, seed=1)
    torch.rand(5)  # the global generator must have no effect
    again = linear_probe(*data, num_classes=4, rule=rule, seed=1)
    other = linear_probe(*data, num_classes=4, rule=rule, seed=2)
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(first.correct, again.correct)
    assert not torch.equal(first.weight, other.weight)


def test_linear_probe_is_close_to_logistic_regression_on_digits():
    digits = load_digits()
    x, y = torch.from_numpy(digits.data / 16), torch.from_numpy(digits.target)
    # scikit-learn minimises C Σ loss + ‖w‖²/2, which has the optimum of a weight decay of 1 / (C N)
    regression = LogisticRegression(C=10.0, max_iter=2000).fit(x[:1200].numpy(), y[:1200].numpy())
    rule = ProbeRule(lr=0.1, batch_size=32, weight_decay=1 / (10.0 * 1200))
    probe = linear_probe(x[:1200], y[:1200], x[1200:], y[1200:], num_classes=10, rule=rule)
    assert probe.test_top1 == pytest.approx(regression.score(x[1200:].numpy(), y[1200:].numpy()), abs=0.01)
    assert probe.train_top1 == pytest.approx(regression.score(x[:1200].numpy(), y[:1200].numpy()), abs=0.01)
    assert probe.test_top1 > 0.9


def test_unlabelled_rows_are_ignored():
    (x, y), (test_x, test_y) = blobs(0), blobs(1, spread=3.0)
    plain = linear_probe(x, y, test_x, test_y, num_classes=4)
    junk, unlabelled = torch.full((50, 6), 9.0), torch.full((50,), -1)
    junk[0] = torch.nan
    with_unlabelled = linear_probe(
        torch.cat((junk, x)), torch.cat((unlabelled, y)),
        torch.cat((test_x, junk)), torch.cat((test_y, unlabelled)), num_classes=4,
    )  # fmt: skip
    assert torch.equal(plain.weight, with_unlabelled.weight)
    assert torch.equal(plain.correct, with_unlabelled.correct)


def test_epochs_alternate_between_views():
    (x, y), test = blobs(0, spread=2.0), blobs(1, spread=2.0)
    other = x + 0.5
    rule = ProbeRule(epochs=1, batch_size=300, momentum=0.0)
    once = linear_probe([x, other], y, *test, num_classes=4, rule=rule)
    assert torch.equal(once.weight, linear_probe(x, y, *test, num_classes=4, rule=rule).weight)
    rule = ProbeRule(epochs=3, batch_size=300, momentum=0.0)
    thrice = linear_probe([x, other], y, *test, num_classes=4, rule=rule)
    layer = torch.nn.Linear(6, 4)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    sgd = torch.optim.SGD(layer.parameters(), rule.lr)
    for view in (x, other, x):
        sgd.zero_grad()
        torch.nn.CrossEntropyLoss()(layer(view), y).backward()
        sgd.step()
    torch.testing.assert_close(thrice.weight, layer.weight.detach(), atol=2e-6, rtol=1e-5)


def test_linear_probe_does_not_change_features():
    (x, y), test = blobs(0), blobs(1)
    x.requires_grad_()
    before = x.detach().clone()
    probe = linear_probe(x, y, *test, num_classes=4, rule=ProbeRule(epochs=1))
    assert torch.equal(x, before)
    assert x.grad is None
    assert not probe.weight.requires_grad


def test_long_probe_prints_progress(capsys, monkeypatch):
    rule = ProbeRule(epochs=20)
    linear_probe(*blobs(0), *blobs(1), num_classes=4, rule=rule)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("ssl_vision.progress.monotonic", count(step=30).__next__)
    linear_probe(*blobs(0), *blobs(1), num_classes=4, rule=rule)
    out, err = capsys.readouterr()
    assert out == ""
    progress = [line.removeprefix("linear probe: ").split()[0] for line in err.splitlines()]
    assert progress == [*(f"{epoch}/20" for epoch in range(1, 21)), "20"]


X, Y = blobs(0, n=10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": torch.full((10,), -1)}, "train_labels: none of the 10"),
        ({"test_labels": torch.full((10,), -1)}, "test_labels: none of the 10"),
        ({"train_labels": Y + 4}, "train_labels: expected 0 to 3"),
        ({"test_labels": Y - 2}, "test_labels: .*got -2"),
        ({"train_labels": Y[:9]}, r"train_labels: expected \(10,\).*\(9,\)"),
        ({"train_labels": Y.float()}, "train_labels: expected integers"),
        ({"train_features": X[0]}, r"train_features: .*\(6,\)"),
        ({"train_features": X / 0}, "train_features: .*finite"),
        ({"test_features": X.where(X < 3, torch.nan)}, "test_features: .*finite"),
        ({"train_features": X * 1e30}, "lr: .*diverged"),
    ],
)
def test_invalid_data_raises_value_error(change, message):
    data = {"train_features": X, "train_labels": Y, "test_features": X, "test_labels": Y, **change}
    with pytest.raises(ValueError, match=message):
        linear_probe(**data, num_classes=4)


def test_nearest_mean_matches_distances_and_omits_absent_classes():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 6, generator=g) + 3, torch.arange(50) % 4
    weight, bias = nearest_mean(x, y, 5)
    means = torch.stack([x[y == c].mean(dim=0) for c in range(4)])
    assert torch.equal((x @ weight.T + bias).argmax(dim=1), torch.cdist(x, means).argmin(dim=1))


@pytest.mark.parametrize("scale", [1.0, 0.003])
def test_probe_that_scale_leaves_untrained_is_reported(scale, capsys):
    labels = torch.arange(300) % 10
    noise = torch.randn(300, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images = torch.rand(10, 3, 8, 8, generator=torch.Generator().manual_seed(1))[labels] + 0.1 * noise
    data = list(zip(images, labels.tolist(), strict=True))

    class Scaled(torch.nn.Flatten):
        def forward(self, x):
            return scale * super().forward(x)

    evaluation = evaluate(Scaled(), train=data, test=data, protocol="macl")
    remark = (
        "linear of trained backbone: not trained with the learning rate 0.02, which is too low for the scale "
        "of these features: it classifies 10.0 % of its training images, and the nearest class mean 100.0 %"
    )
    assert (remark in capsys.readouterr().err) == (scale < 1)
    (linear,) = (row for row in evaluation.rows if (row.metric, row.features) == ("linear_top1", "trained"))
    assert (linear.correct is None) == (scale < 1)  # without these, it is not compared with the start
