"""Tests of the accuracy under corruptions against a step-by-step computation."""

import json
import shutil

import pytest
import torch
from settings import resnet
from torch.nn import functional as F

from ssl_vision.data import CIFAR10, Digits, Views
from ssl_vision.data.augment.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from ssl_vision.evaluation.features import embed, embed_corrupted
from ssl_vision.evaluation.probe import ProbeRule, linear_probe
from ssl_vision.evaluation.rows import Row, render
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.metrics import KNNAccuracy
from ssl_vision.pretrained.rebuild import trained_model
from ssl_vision.runs.checkpoint import read_checkpoint

MEASUREMENT = (
    "corruptions: {corruptions: [jpeg, noise], severities: [2, 5], knn: {k: 7}, linear: {epochs: 5, lr: 0.1}}"
)


@pytest.fixture(scope="module")
def run(tiny_run, tmp_path_factory):
    return shutil.copytree(tiny_run, tmp_path_factory.mktemp("robust") / "tiny")


@pytest.fixture(scope="module")
def rows(run, tmp_path_factory):
    protocol = tmp_path_factory.mktemp("protocol") / "mine.yaml"
    protocol.write_text(f"layers: [backbone, projector]\nmeasurements:\n- {MEASUREMENT}\n")
    assert main(["evaluate", str(run), f"--protocol={protocol}"]) == 0
    return json.loads((run / "evaluation.json").read_text())


def test_each_corruption_and_layer_has_one_row(rows):
    cases = [
        (row["features"], row["layer"], row["metric"], row["corruption"], row["severity"]) for row in rows
    ]
    assert len(set(cases)) == len(cases)
    assert set(cases) == {
        (features, layer, f"corrupted_{kind}_top1", corruption, severity)
        for features, layer in (("trained", "backbone"), ("trained", "projector"), ("untrained", "backbone"))
        for kind in ("knn", "linear")
        for corruption, severity in (("none", 0), ("jpeg", 2), ("jpeg", 5), ("noise", 2), ("noise", 5))
    }


@pytest.mark.parametrize(("corruption", "severity"), [("none", 0), ("jpeg", 5), ("noise", 2)])
def test_corrupted_accuracies_match_step_by_step_computation(run, rows, corruption, severity):
    model, data = trained_model(read_checkpoint(run)), Digits()
    train, test = data.split("train"), data.split("test")
    resized = F.interpolate(test.images.float(), size=(16, 16), mode="bilinear", antialias=True)
    images = resized.round().to(torch.uint8)
    if severity:
        indices = torch.arange(len(images))
        images = corrupt(images, indices, corruption=corruption, severity=severity, seed=0)
    with torch.inference_mode():
        queries = model.eval()(data.views.plain(images)).backbone
    if not severity:
        queries = embed(model, test, data.views)["backbone"]
    bank = embed(model, train, data.views)["backbone"]
    knn = KNNAccuracy(num_classes=10, k=7)
    knn.update(bank, train.labels, "bank")
    knn.update(queries, test.labels, "query")
    rule = ProbeRule(epochs=5, lr=0.1)
    probe = linear_probe(bank, train.labels, queries, test.labels, num_classes=10, rule=rule)
    expected = {"corrupted_knn_top1": float(knn.compute()), "corrupted_linear_top1": probe.test_top1}
    measured = {
        row["metric"]: row["value"]
        for row in rows
        if (row["features"], row["layer"], row["corruption"], row["severity"])
        == ("trained", "backbone", corruption, severity)
    }
    assert measured == pytest.approx(expected, abs=1.1 / 360)


def test_images_of_network_size_are_corrupted_without_resizing():
    model, views = SimCLR(encoder=resnet(width=4), hidden_dim=8, output_dim=4, seed=0).eval(), Views(size=8)
    test = Digits().split("test").select(torch.arange(40))
    options = {"corruption": "noise", "severity": 3, "seed": 5}
    features = embed_corrupted(model, test, views, batch_size=16, **options)["backbone"]
    with torch.inference_mode():
        expected = model(views.plain(corrupt(test.images, torch.arange(40), **options))).backbone
    torch.testing.assert_close(features, expected, atol=1e-4, rtol=1e-4)


def test_second_evaluation_reads_corrupted_features_from_cache(run, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("ssl_vision.evaluation.feature_extractor.embed_corrupted", None)
    (tmp_path / "mine.yaml").write_text(f"layers: [backbone, projector]\nmeasurements:\n- {MEASUREMENT}\n")
    options = [f"--protocol={tmp_path / 'mine.yaml'}", f"--output={tmp_path / 'rows.json'}"]
    assert main(["evaluate", str(run), *options]) == 0
    assert json.loads((tmp_path / "rows.json").read_text()) == rows


def test_table_shows_clean_accuracy_corruption_means_and_overall_mean():
    def row(value, corruption, severity, features="trained", metric="corrupted_knn_top1"):
        return Row(features, "backbone", metric, value, "test", k=5, corruption=corruption, severity=severity)

    rows = [
        Row("trained", "backbone", "knn_top1", 0.5, "test"),
        row(0.9, "none", 0), row(0.8, "noise", 1), row(0.4, "noise", 2),
        row(0.7, "blur", 1), row(0.5, "blur", 2),
        row(0.3, "none", 0, "untrained", "corrupted_linear_top1"),
    ]  # fmt: skip
    assert [line.split("  ") for line in render(rows).splitlines()] == [
        line.split("  ")
        for line in (
            "                  kNN %",
            "trained backbone  50.00",
            "top-1 %                     clean  noise   blur   mean",
            "trained backbone, kNN       90.00  60.00  60.00  60.00",
            "untrained backbone, linear  30.00",
        )
    ]


def test_robustness_protocol_covers_all_corruptions_and_severities(run, tmp_path, capsys):
    output = tmp_path / "rows.json"
    options = ["--baselines=false", "--cache=false", f"--output={output}"]
    assert main(["evaluate", str(run), "--protocol=robustness", *options]) == 0
    cases = {(row["corruption"], row["severity"]) for row in json.loads(output.read_text())}
    assert cases == {("none", 0)} | {(name, severity) for name in CORRUPTIONS for severity in SEVERITIES}
    printed = capsys.readouterr().out.splitlines()
    heading = next(line for line in printed if line.startswith("top-1 %"))
    assert heading.split()[2:] == ["clean", *CORRUPTIONS, "mean"]


@pytest.mark.realdata
def test_cifar10_corruption_error_grows_with_severity(data_root):
    test = CIFAR10(root=data_root).split("test").select(torch.arange(64))
    for corruption in CORRUPTIONS:
        errors = [
            (corrupt(test.images, torch.arange(64), corruption=corruption, severity=s, seed=0).float()
             - test.images.float()).square().mean()
            for s in SEVERITIES
        ]  # fmt: skip
        assert errors == sorted(errors)
