"""Tests of ``--encoder`` (a network without a run) and ``--other`` (networks evaluated beside a run)."""

import json
import shutil

import pytest
import timm
import torch
from settings import TINY

import ssl_vision
from ssl_vision.data import Digits, Views
from ssl_vision.encoders import Timm
from ssl_vision.experiments.report.accuracies import protocols
from ssl_vision.main import main
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.registry import Run


@pytest.fixture(scope="module")
def run(tiny_run, tmp_path_factory):
    """A copy of the tiny run, evaluated under a short protocol."""
    copy = shutil.copytree(tiny_run, tmp_path_factory.mktemp("other") / "tiny")
    assert main(["evaluate", str(copy), "--protocol=solo"]) == 0
    return copy


def values(file, features, metric="knn_top1", layer="backbone"):
    rows = json.loads(file.read_text())
    return [r["value"] for r in rows if (r["features"], r["metric"], r["layer"]) == (features, metric, layer)]


def test_encoder_with_weights_reproduces_values_of_its_run(run, tmp_path, capsys):
    out = tmp_path / "rows.json"
    encoder = ["--encoder=ResNet", "--encoder.width=4", f"--weights={run}"]
    assert main(["evaluate", *encoder, "--data=Digits", "--protocol=solo", f"--output={out}"]) == 0
    for features in ("trained", "pixels"):
        layer = "raw" if features == "pixels" else "backbone"
        assert values(out, features, layer=layer) == values(run / "evaluation.json", features, layer=layer)
    (untrained,) = values(out, "untrained")
    assert [untrained] != values(out, "trained")
    assert "ResNet with weights of" in capsys.readouterr().out


@pytest.mark.parametrize("size", [None, 24])
def test_timm_encoder_gets_images_that_its_weights_expect(size, tmp_path, capsys):
    name, options = "vit_tiny_patch16_224", {"depth": 1, "img_size": 16, "patch_size": 8}
    network = timm.create_model(name, num_classes=7, **options)
    torch.save({"state_dict": network.state_dict()}, tmp_path / "weights.pth")
    flags = [f"--encoder.dict_kwargs.{key}={value}" for key, value in options.items() if key != "img_size"]
    flags += [f"--encoder.img_size={size or 16}"]
    command = ["evaluate", f"--encoder=timm/{name}", *flags, f"--weights={tmp_path / 'weights.pth'}"]
    out = tmp_path / "rows.json"
    assert main([*command, "--data=Digits", "--protocol=solo", "--baselines=false", f"--output={out}"]) == 0
    printed = capsys.readouterr().out
    assert f"images of {size or 16} pixels with mean (0.5, 0.5, 0.5) and std (0.5, 0.5, 0.5)" in printed
    assert f"views.size {size or 16}" in json.loads(out.read_text())[0]["settings"]
    if size is None:
        encoder = Timm(name, **options)
        encoder.network.load_state_dict({k: v for k, v in network.state_dict().items() if "head." not in k})
        data = Digits()
        train, test = (
            [
                (image, int(label))
                for image, label in zip(split.at(torch.arange(len(split))), split.labels, strict=True)
            ]
            for split in (data.split("train"), data.split("test"))
        )
        views = Views(size=16, mean=(0.5,) * 3, std=(0.5,) * 3)
        expected = ssl_vision.evaluate(encoder, train=train, test=test, views=views, protocol="solo")
        assert values(out, "trained") == [expected.value("knn_top1")]


def test_networks_beside_a_run_have_their_own_values(run, tmp_path, capsys):
    """The networks: a run with another image size, its exported encoder, and plain weights of this run."""
    larger = ["--model.encoder.width=8", "--data.views.size=12", "--name=larger", f"--runs_dir={tmp_path}"]
    assert main(["fit", *TINY, *larger, "--trainer.max_epochs=1"]) == 0
    other = tmp_path / "larger"
    assert main(["export", str(other)]) == 0
    assert main(["evaluate", str(other), "--protocol=solo", "--report=false"]) == 0
    state = read_checkpoint(run).state
    torch.save({f"module.{name}": value for name, value in state.items()}, tmp_path / "own.pth")
    networks = {"larger": other, "exported": other / "backbone.safetensors", "own": tmp_path / "own.pth"}
    others = [f"--other={name}={file}" for name, file in networks.items()]
    before = json.loads((run / "evaluation.json").read_text())
    assert main(["evaluate", str(run), "--protocol=solo", *others]) == 0
    printed = capsys.readouterr().out
    assert (
        f"\nlarger: {other}, epoch 1\nexported: {networks['exported']}\nown: {networks['own']}: " in printed
    )
    assert " tensors below module." in printed
    file = run / "evaluation.json"
    assert values(file, "larger") == values(file, "exported") == values(other / "evaluation.json", "trained")
    assert values(file, "own") == values(file, "trained")
    assert all(row in json.loads(file.read_text()) for row in before)
    assert "larger backbone" in protocols(Run(run))[1]
    assert main(["evaluate", str(run), "--protocol=solo", *others[:1], "--report=false"]) == 0
    assert len(values(file, "larger")) == len(values(file, "own")) == 1  # "larger" is replaced, "own" is kept


def test_custom_encoder_with_own_weights_needs_no_file(tmp_path, monkeypatch, capsys):
    lines = ["from torch import nn", "", "def features() -> nn.Module:", "    return nn.Flatten()"]
    (tmp_path / "own_features.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "--encoder=own_features.features", "--data=Digits", "--protocol=solo"]) == 0
    printed = capsys.readouterr().out
    assert "trained backbone" in printed
    assert "untrained" not in printed


@pytest.mark.parametrize("other", [False, True])
def test_unsupported_image_size_is_reported_in_one_line(other, run, tmp_path, capsys):
    name, depth = "vit_tiny_patch16_224", "--encoder.dict_kwargs.depth=1"
    torch.save(timm.create_model(name, img_size=32, depth=1).state_dict(), tmp_path / "vit.pth")
    file = f"--weights={tmp_path / 'vit.pth'}"
    command = [f"--encoder=timm/{name}", depth, "--encoder.img_size=32", file, "--data=Digits"]
    command += ["--protocol=solo", "--data.views.size=24", *([f"--other=tiny={run}"] if other else [])]
    assert main(["evaluate", *command]) == 2
    error = capsys.readouterr().err
    assert "trained: Timm cannot encode images (1, 3, 24, 24)" in error
    assert "--data.views.size sets the size of the images" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--encoder=ResNet", "--weights={run}", "--probe.epochs=0"],
            "epochs must be at least 1 and at most",
        ),
        (["--encoder=ResNet", "--weights={run}", "--data.views.size=0"], "views.size"),
        (
            ["--encoder=timm/vit_tiny_patch16_224", "--encoder.dict_kwargs.patch_size=0"],
            "timm cannot build vit_tiny_patch16_224",
        ),
        (
            ["--encoder=timm/resnet18"],
            "has random weights: give some with --weights FILE, or timm's own with",
        ),
        (["--encoder=ResNet"], "has random weights: give some with --weights FILE"),
        (["--encoder=timm/resnet19"], "timm has no model 'resnet19', did you mean 'resnet18'?"),
        (
            ["--encoder=timm/resnet18", "--encoder.pretrained=true"],
            "timm cannot build resnet18: ",
        ),
        (["--encoder=timm/resnet18", "--encoder.pretrained=true", "--weights=x"], "not both"),
        (
            ["--encoder=ResNet", "--encoder.widht=3"],
            "--encoder.widht of ResNet, did you mean --encoder.width?",
        ),
        (["--encoder=ResNet", "--encoder.pretrained=true"], "a class with this option: --encoder Timm"),
        (["--encoder=ResNet", "--weights=none.pth"], "--weights none.pth: no such file or run directory"),
        (["--encoder=ResNet", "--encoder.width=8", "--weights={run}"], "must match the file"),
        (["{run}", "--encoder=ResNet"], "give a checkpoint or --encoder, not both"),
        (["{run}", "--weights=x"], "--weights requires --encoder"),
        (["{run}", "--other=x"], "expected NAME=FILE"),
        (["{run}", "--other=pixels={run}"], "expected NAME=FILE, with a name other than"),
        (["{run}", "--other=a b={run}"], "expected NAME=FILE"),
        (["{run}", "--other=x={run}", "--other=x={run}"], "expected NAME=FILE, with a name other than"),
        (["{run}", "--other=x=none.pth"], "--other none.pth: no such file or run directory"),
    ],
)
def test_invalid_command_is_reported_in_one_line(options, words, run, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    before = (run / "evaluation.json").read_bytes()
    assert main(["evaluate", *(option.format(run=run) for option in options), "--data=Digits"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1
    assert (run / "evaluation.json").read_bytes() == before


def test_encoder_requires_data(capsys):
    assert main(["evaluate", "--encoder=ResNet"]) == 2
    assert "--encoder requires --data, the labelled images" in capsys.readouterr().err


def test_the_help_does_not_list_all_modules(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    printed = capsys.readouterr().out
    assert "timm/NAME" in printed
    assert "CIFAR10, ImageFolder, …; --data.help lists them." in " ".join(printed.split())
    assert "DataModule standardizes" not in printed
    assert "torch.nn.Linear" not in printed
    assert len(printed.splitlines()) < 200
