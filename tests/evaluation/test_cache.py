"""Tests of the feature cache: what it stores, when it is used, and when features are recomputed."""

import dataclasses
import importlib
import json
import re
import shutil

import pytest
import torch
from torch import nn

import ssl_vision.evaluation.feature_extractor as embedded
from ssl_vision.data import Digits, Images
from ssl_vision.data.loading.fingerprint import digest_of_images
from ssl_vision.encoders import ResNet
from ssl_vision.evaluation.feature_extractor import FeatureCache, digest_of_network, digest_of_views, own_code
from ssl_vision.main import main

FAST = ["--probe.epochs=1", "--baselines=true"]


@pytest.fixture
def run(tiny_run, tmp_path):
    return shutil.copytree(tiny_run, tmp_path / "tiny")


@pytest.fixture(scope="module")
def evaluated_run(tiny_run, tmp_path_factory):
    run = shutil.copytree(tiny_run, tmp_path_factory.mktemp("evaluated") / "tiny")
    assert main(["evaluate", str(run), *FAST]) == 0
    return run


@pytest.fixture
def evaluated(evaluated_run, tmp_path):
    """A copy of an evaluated run."""
    return shutil.copytree(evaluated_run, tmp_path / "evaluated")


def files(run):
    return sorted(file.name for file in (run / "features").iterdir())


def forbid_embedding(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("embedded")

    monkeypatch.setattr(embedded, "embed", fail)
    monkeypatch.setattr(embedded, "embed_views", fail)


def test_second_evaluation_embeds_nothing_and_gives_same_rows(evaluated, monkeypatch):
    run = evaluated
    first, cached = (run / "evaluation.json").read_text(), files(run)
    assert [name.rsplit("-", 1)[0] for name in cached] == ["test", "test", "test-views", "train", "train"]
    forbid_embedding(monkeypatch)
    assert main(["evaluate", str(run), *FAST]) == 0
    assert (run / "evaluation.json").read_text() == first
    assert main(["evaluate", str(run), "--protocol=lightly", "--protocol=solo"]) == 0
    assert files(run) == cached


def test_disabled_cache_stores_nothing_and_gives_same_rows(run, evaluated):
    assert main(["evaluate", str(run), *FAST, "--cache=false"]) == 0
    assert not (run / "features").exists()
    assert (run / "evaluation.json").read_text() == (evaluated / "evaluation.json").read_text()


def test_changed_checkpoint_is_embedded_again(evaluated):
    run = evaluated
    before, cached = json.loads((run / "evaluation.json").read_text()), files(run)
    file = run / "checkpoints" / "last.ckpt"
    content = torch.load(file, weights_only=True)
    content["state_dict"]["backbone.conv1.weight"][0] *= -1
    torch.save(content, file)
    assert main(["evaluate", str(run), *FAST]) == 0
    assert len(set(files(run)) - set(cached)) == 3  # the untrained network has not changed
    assert json.loads((run / "evaluation.json").read_text()) != before


def test_changed_views_recompute_only_affected_features(run):
    assert main(["evaluate", str(run), *FAST, "--baselines=false"]) == 0
    cached = files(run)
    assert main(["evaluate", str(run), *FAST, "--baselines=false", "--data.views.size=8"]) == 0
    assert len(files(run)) == 2 * len(cached)
    assert main(["evaluate", str(run), *FAST, "--baselines=false", "--data.views.blur=0.2"]) == 0
    assert len(files(run)) == 2 * len(cached) + 1


@pytest.mark.parametrize("content", [b"", b"junk"])
def test_damaged_file_is_recomputed(evaluated, capsys, content):
    run = evaluated
    first = (run / "evaluation.json").read_text()
    damaged = run / "features" / files(run)[0]
    damaged.write_bytes(content)
    assert main(["evaluate", str(run), *FAST]) == 0
    assert f"{damaged}: not a readable file of features" in capsys.readouterr().err
    assert (run / "evaluation.json").read_text() == first
    assert torch.load(damaged, weights_only=True)["features"].keys() >= {"backbone"}


def test_file_with_a_flipped_bit_is_recomputed(tmp_path, capsys):
    cache = FeatureCache(tmp_path)
    features = {"a": torch.arange(1000.0).view(50, 20)}
    cache.get("train", ("x",), ("a",), lambda: features)
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[content.find(features["a"][25:].numpy().tobytes())] ^= 1
    file.write_bytes(content)
    for message in (f"{file}: damaged, the checksum of .* does not match; computing it again\n", ""):
        loaded = cache.get("train", ("x",), ("a",), lambda: features)
        assert torch.equal(loaded["a"], features["a"])
        assert re.fullmatch(message, capsys.readouterr().err)


def test_non_finite_features_are_not_cached(tmp_path):
    cache = FeatureCache(tmp_path)
    cache.get("train", ("x",), ("a",), lambda: {"a": torch.tensor([[1.0, torch.inf]])})
    assert list(tmp_path.iterdir()) == []


def test_network_with_non_finite_features_keeps_earlier_rows(evaluated, capsys):
    run = evaluated
    good = (run / "evaluation.json").read_text()
    file = run / "checkpoints" / "last.ckpt"
    content = torch.load(file, weights_only=True)
    content["state_dict"]["backbone.conv1.weight"].fill_(torch.nan)
    torch.save(content, file)
    capsys.readouterr()
    assert main(["evaluate", str(run), *FAST]) == 2
    error = capsys.readouterr().err
    assert "features of test images are not finite: training has diverged" in error
    assert "nothing of the trained network could be measured" in error.splitlines()[-1]
    assert (run / "evaluation.json").read_text() == good


def test_features_of_checkpoint_outside_a_run_are_cached_beside_it(run, tmp_path):
    (tmp_path / "alone").mkdir()
    file = shutil.copy(run / "checkpoints" / "last.ckpt", tmp_path / "alone" / "model.ckpt")
    assert main(["evaluate", str(file), *FAST, "--baselines=false"]) == 0
    assert len(list((tmp_path / "alone" / "features").iterdir())) == 3


def test_unwritable_cache_is_reported_and_leaves_no_files(tmp_path, capsys):
    (tmp_path / "file").touch()
    cache, features = FeatureCache(tmp_path / "file"), {"a": torch.ones(2, 3)}
    assert cache.get("train", ("x",), ("a",), lambda: features) is features
    assert "features not kept" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_cache_key_depends_on_every_part(tmp_path):
    cache = FeatureCache(tmp_path)
    for parts, layers in ((("x",), ("a",)), (("y",), ("a",)), (("x", "y"), ("a",)), (("x",), ("a", "b"))):
        cache.get("train", parts, layers, lambda: {"a": torch.ones(1, 1), "b": torch.ones(1, 1)})
    assert len(list(tmp_path.iterdir())) == 4


def test_source_of_own_classes_is_part_of_the_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = "from torch import nn\n\n\nclass Own(nn.Sequential):\n    pass\n"
    (tmp_path / "network_with_own_code.py").write_text(source)
    own = importlib.import_module("network_with_own_code").Own(nn.ReLU())
    assert own_code(nn.Sequential(nn.ReLU(), own)) == ["class Own(nn.Sequential):\n    pass\n"]
    assert own_code(ResNet(width=4)) == []
    assert own_code(type("Interactive", (nn.ReLU,), {"__module__": "__main__"})()) == []


def test_digests_depend_only_on_content():
    def network(size=3, **buffers):
        layer = nn.Linear(2, size, bias=False)
        nn.init.ones_(layer.weight)
        for name, value in (buffers or {"n": 3, "m": 5}).items():
            layer.register_buffer(name, torch.tensor(value))
        return nn.Sequential(layer).bfloat16()

    digests = {
        digest_of_network(each, description)
        for each, description in (
            (network(), "small"), (network(m=5, n=3), "small"), (network(2), "small"),
            (network(n=4, m=5), "small"), (network(), "imagenet"),
        )
    }  # fmt: skip
    assert len(digests) == 4
    train = Digits().split("train")
    rows = torch.arange(len(train))
    assert digest_of_images(train) == digest_of_images(train.select(rows))
    assert digest_of_images(train) != digest_of_images(train.select(rows.flip(0)))
    changed = train.images.clone()
    changed[-1, 0, 0, 0] += 1
    assert digest_of_images(train) != digest_of_images(Images(changed, train.labels, train.classes))
    views = Digits().views
    blurred = dataclasses.replace(views, blur=0.1)
    compiled = dataclasses.replace(views, compile=True)
    assert digest_of_views(views, plain=True) == digest_of_views(blurred, plain=True)
    assert digest_of_views(views, plain=False) != digest_of_views(blurred, plain=False)
    assert digest_of_views(views, plain=False) == digest_of_views(compiled, plain=False)
