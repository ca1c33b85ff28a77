"""Tests of ``ssl-vision export`` and ``load_encoder``: the same features elsewhere, and invalid input."""

import json
import os
import pickle
import re
import shutil
import sys

import pytest
import pytorch_lightning as pl
import timm
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

import ssl_vision
from ssl_vision.cli.config_objects import built
from ssl_vision.errors import InputError
from ssl_vision.export import formats
from ssl_vision.export.card import card, protocol
from ssl_vision.main import main
from ssl_vision.pretrained.backbones import pretrained, write_backbone
from ssl_vision.pretrained.opened_run import open_run

X = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def checkpoint(tiny_run, tmp_path_factory):
    """Return a function that makes checkpoints of other architectures.

    Their BatchNorm statistics differ from the initial ones.
    """

    def make(**architecture):
        content = torch.load(tiny_run / "checkpoints" / "last.ckpt", weights_only=True)
        config = yaml.safe_load(content["ssl_vision"]["config"])
        config["model"]["init_args"]["encoder"]["init_args"] |= architecture
        model = built(pl.LightningModule, "model", config, where="x", allow_class=())
        with torch.no_grad():
            model(torch.randn(16, 3, 16, 16))
        content["ssl_vision"]["config"] = yaml.safe_dump(config)
        content["state_dict"] = model.state_dict()
        path = tmp_path_factory.mktemp("checkpoint") / "model.ckpt"
        torch.save(content, path)
        return path

    return make


@pytest.fixture(scope="module", params=["small", "imagenet"])
def checkpoint_of_width_64(request, checkpoint):
    return checkpoint(width=64, stem=request.param)


def exported(checkpoint, form, folder, capsys):
    """Export a checkpoint. Return the file, the Python code in its model card that loads it, and the card."""
    file = folder / f"it{formats.FORMATS[form].suffix}"
    assert main(["export", str(checkpoint), "--format", form, "--output", str(file)]) == 0
    assert "Checked: with" in capsys.readouterr().out
    card = file.with_name(file.name + ".md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    return file, code, card


@pytest.mark.parametrize("form", ["torchvision", "timm"])
def test_code_in_model_card_gives_same_features(form, checkpoint_of_width_64, tmp_path, monkeypatch, capsys):
    pytest.importorskip(form)
    expected = ssl_vision.load_encoder(checkpoint_of_width_64)(X)
    file, code, _ = exported(checkpoint_of_width_64, form, tmp_path, capsys)
    assert b"ssl_vision" not in file.read_bytes()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ssl_vision", None)
    names = {}
    exec(code, names)
    torch.testing.assert_close(names["backbone"](X), expected, atol=1e-5, rtol=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, f"{file.name}.md"]


def test_onnx_gives_the_same_features_for_any_batch(tiny_run, tmp_path, monkeypatch, capsys):
    for library in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(library)
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    expected = ssl_vision.load_encoder(tiny_run)(X).detach()
    file, code, card = exported(tiny_run, "onnx", tmp_path, capsys)
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"  # onnxruntime must not send usage data
    assert not re.search(rb"ssl_vision|site-packages|\.py", file.read_bytes())
    assert "less (0.3054, 0.3054, 0.3054), divided by (0.3755, 0.3755, 0.3755)" in card
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    for count in (1, 5):
        features = torch.from_numpy(names["backbone"](X[:count].numpy()))
        torch.testing.assert_close(features, expected[:count], atol=1e-5, rtol=0)


def test_load_encoder_takes_a_run_a_checkpoint_and_an_export(tiny_run, tmp_path, monkeypatch, capsys):
    run = open_run(tiny_run)
    model, description = run.trained().eval(), pretrained(run).description
    file, code, _ = exported(tiny_run, "safetensors", tmp_path, capsys)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    state = torch.random.get_rng_state()
    for path in (tiny_run, str(tiny_run / "checkpoints" / "last.ckpt"), file):
        backbone = ssl_vision.load_encoder(path)
        assert not backbone.training
        torch.testing.assert_close(backbone(X), model(X).backbone, atol=1e-5, rtol=0)
        backbone.train()(X).sum().backward()  # it can be trained further
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(names["backbone"](X), ssl_vision.load_encoder(file)(X))
    assert description.encoder == {
        "class_path": "ssl_vision.encoders.ResNet",
        "init_args": {"depth": 18, "width": 4, "stem": "small", "in_channels": 3},
    }
    assert (description.size, description.decoded_size, description.mean) == (16, 8, (0.3054,) * 3)


def test_default_output_is_in_run_directory(tiny_run, tmp_path, capsys):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")
    assert main(["export", str(run)]) == 0
    assert f"written to {run / 'backbone.safetensors'} (0.2 MB)" in capsys.readouterr().out
    assert (run / "backbone.safetensors.md").is_file()
    assert (run / "backbone.safetensors").stat().st_mode & 0o777 == (
        run / "config.yaml"
    ).stat().st_mode & 0o777


def test_model_card_describes_training_and_evaluation(tiny_run, tmp_path, capsys):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")
    row = {
        "features": "trained",
        "layer": "backbone",
        "metric": "knn_top1",
        "value": 0.75,
        "k": 5,
        "epoch": 2,
        "data": "Digits",
    }
    rows = [row, row | {"layer": "hidden"}, row | {"features": "pixels", "layer": "raw", "epoch": 0}]
    (run / "evaluation.json").write_text(json.dumps(rows))
    _, _, card = exported(run, "safetensors", tmp_path, capsys)
    for words in (
        "# ResNet pretrained on Digits with MACL, without labels",
        "| objective | MACL (temperature 0.1, alpha 3, gather true) |",
        "| data | Digits (batch_size 64) |",
        "| optimizer | adam (lr 0.001, ",
        "| epochs | 2 of 2 |",
        "| seed | 0 |",
        "| trained | backbone | knn_top1 | 0.7500 | k 5, epoch 2, data Digits |",
        "| pixels | raw | knn_top1 | 0.7500 |",
        f"ssl_vision {ssl_vision.__version__}, torch {torch.__version__.partition('+')[0]}",
    ):
        assert words in card
    assert "| hidden |" not in card
    assert str(tmp_path) not in card


@pytest.mark.parametrize(
    ("encoder", "objective", "title", "start"),
    [
        ({}, {"class_path": "ssl_vision.objectives.SupCon"}, "with SupCon, with labels", "random"),
        (
            {},
            {"class_path": "RECLAIM", "init_args": {"objective": {"class_path": "SupCon"}}},
            "with RECLAIM, with labels",
            "random",
        ),
        (
            {"pretrained": True},
            {"class_path": "ssl_vision.objectives.DCL"},
            "from weights of another training",
            "from timm's pretrained weights",
        ),
    ],
)
def test_model_card_states_labels_and_pretrained_weights(tiny_run, encoder, objective, title, start):
    run = open_run(tiny_run / "checkpoints" / "last.ckpt")
    given = pretrained(run)
    options = run.config["model"]["init_args"]
    options["encoder"]["init_args"] |= encoder
    options["objective"] = objective
    text = card(given, [], source=run, snippet="", checked="", versions={})
    assert text.splitlines()[0].endswith(title)
    assert f"| initial weights | {start} |" in text


def test_model_card_has_no_paths_of_evaluated_images():
    row = {"metric": "knn_top1", "value": 0.5, "settings": "image_size 24, train /home/me/cats and dogs"}
    assert protocol(row) == {"settings": "image_size 24, train cats and dogs"}


def test_model_card_omits_evaluation_of_other_epoch(tiny_run, tmp_path, capsys):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")
    row = {"features": "trained", "layer": "backbone", "metric": "knn_top1", "value": 0.75, "epoch": 1}
    (run / "evaluation.json").write_text(json.dumps([row]))
    _, _, card = exported(run, "safetensors", tmp_path, capsys)
    assert "0.7500" not in card
    assert "This checkpoint has not been evaluated" in card


@pytest.mark.parametrize("form", ["safetensors", "timm"])
def test_an_encoder_with_weights_is_exported(form, tmp_path, monkeypatch, capsys):
    name, options = "vit_tiny_patch16_224", {"depth": 1, "img_size": 16, "patch_size": 8}
    network = timm.create_model(name, num_classes=3, **options).eval()
    torch.save({"model": network.state_dict()}, tmp_path / "w.pth")
    file, flags = tmp_path / "x.safetensors", ["--encoder.img_size=16", f"--weights={tmp_path / 'w.pth'}"]
    flags += [f"--encoder.dict_kwargs.{key}={options[key]}" for key in ("depth", "patch_size")]
    command = ["export", f"--encoder=timm/{name}", *flags, f"--format={form}", f"--output={file}"]
    assert main(command) == 0
    used = f"{name} with weights of w.pth: 18 tensors below model:; head left out"
    assert used in capsys.readouterr().out
    card = (tmp_path / "x.safetensors.md").read_text()
    assert f"| weights | {used} |" in card
    assert str(tmp_path) not in card
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    network.reset_classifier(0)
    torch.testing.assert_close(names["backbone"](X), network(X), atol=1e-5, rtol=0)


@pytest.mark.parametrize("columns", [32, 31])
def test_export_with_wrong_features_is_removed(columns, tiny_run, tmp_path, monkeypatch, capsys):
    code = f"import torch\n\ndef backbone(images):\n    return torch.zeros(len(images), {columns})"
    wrong = formats.FORMATS["safetensors"]._replace(snippet=lambda name, given: code)
    monkeypatch.setitem(formats.FORMATS, "safetensors", wrong)
    assert main(["export", str(tiny_run), "--output", str(tmp_path / "it.safetensors")]) == 2
    assert "differ from those of the encoder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_export_contains_modules_with_two_names(tmp_path):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
            self.net[2].weight = self.net[0].weight
            self.features = nn.Sequential(*self.net.children())

    encoder, other = Wrapper(), Wrapper()
    write_backbone(tmp_path / "it.safetensors", encoder)
    other.load_state_dict(load_file(tmp_path / "it.safetensors"))
    assert len(encoder.state_dict()) == 18
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in encoder.state_dict().items())


def test_unchecked_export_is_reported_as_not_checked(tiny_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(formats, "installed", lambda library: False)
    file = tmp_path / "it.safetensors"
    assert main(["export", str(tiny_run), "--output", str(file)]) == 0
    assert "Not checked: ssl_vision is not installed" in capsys.readouterr().out
    assert "Not checked" in file.with_name("it.safetensors.md").read_text()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "give a checkpoint or a run directory first"),
        (["RUN", "--encoder=ResNet", "--weights=RUN", "--output=x.safetensors"], "replaces the checkpoint"),
        (["--encoder=ResNet", "--weights=RUN"], "--encoder requires --output"),
        (["absent.ckpt"], "absent.ckpt: no such checkpoint"),
        (["RUN", "--format=keras"], "keras"),
        (
            ["RUN", "--format=torchvision"],
            "for ResNets of width 64 for images with 3 channels, not for one of width 4",
        ),
        (["RUN", "--format=timm"], "ResNets of width 64"),
        (["RUN", "--output=it.pt"], "must end with .safetensors"),
        (["RUN", "--output=RUN/x.safetensors"], "is a directory"),
        (["RUN", "--colour=red"], "colour"),
    ],
)
def test_export_reports_invalid_input_in_one_line_and_leaves_no_files(
    tiny_run, tmp_path, capsys, args, words
):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")
    (run / "x.safetensors").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", *(arg.replace("RUN", str(run)) for arg in args)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_onnx_without_its_libraries_names_the_extra(tiny_run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ssl_vision.optional.installed", lambda name: False)
    assert main(["export", str(tiny_run), "--format=onnx", f"--output={tmp_path / 'it.onnx'}"]) == 2
    assert capsys.readouterr().err == (
        "ssl-vision export: onnx is not installed: pip install 'ssl_vision[onnx]'\n"
    )


@pytest.fixture(scope="module")
def valid_export(tiny_run, tmp_path_factory):
    file = tmp_path_factory.mktemp("right") / "right.safetensors"
    assert main(["export", str(tiny_run), "--output", str(file)]) == 0
    return file


def changed(file, path, **metadata):
    """Write a copy of an export with changed metadata; an entry that is None is left out."""
    options = {"depth": "18", "width": "4", "stem": '"small"'}
    options |= {name: metadata.pop(name) for name in options if name in metadata}
    inner = ", ".join(f'"{name}": {value}' for name, value in options.items() if value)
    defaults = {"encoder": f'{{"class_path": "ssl_vision.encoders.ResNet", "init_args": {{{inner}}}}}'}
    defaults |= {"size": "16", "decoded_size": "16"}
    defaults |= {"mean": "[0, 0, 0]", "std": "[1, 1, 1]", "version": '"1"'}
    save_file(load_file(file), path, {key: value for key, value in (defaults | metadata).items() if value})


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda file, path: None, "no such file"),
        (lambda file, path: path.write_bytes(b""), "not a readable safetensors file"),
        (lambda file, path: path.write_bytes(pickle.dumps(print)), "not a readable safetensors file"),
        (lambda file, path: path.write_bytes(file.read_bytes()[:-9]), "not a readable safetensors file"),
        (lambda file, path: changed(file, path, encoder=None), "was not written by ssl-vision export"),
        (lambda file, path: changed(file, path, width="8"), "size mismatch"),
        (lambda file, path: changed(file, path, width='"wide"'), "expected int, got wide"),
        (lambda file, path: changed(file, path, depth="19"), "expected one of 18, 34, 50, 101, got 19"),
        (lambda file, path: changed(file, path, mean="{"), "Expecting"),
        (lambda file, path: changed(file, path, mean="[0]"), "views.mean"),
    ],
)
def test_invalid_export_file_raises_one_line_input_error(valid_export, tmp_path, write, words):
    path = tmp_path / "wrong.safetensors"
    write(valid_export, path)
    with pytest.raises(InputError, match=re.escape(words)) as error:
        ssl_vision.load_encoder(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: config["model"].update(class_path="my.Model"), "names the class my.Model, which"),
        (
            lambda config: config["model"]["init_args"]["encoder"]["init_args"].update(width=0),
            "width must be at least 1",
        ),
        (lambda config: config["data"]["init_args"].pop("views"), "not an encoder trained on views"),
        (lambda config: config.pop("model"), "not an encoder trained on views"),
    ],
)
def test_config_without_backbone_raises_one_line_input_error(tiny_run, change, words):
    run = open_run(tiny_run)
    change(run.config)
    with pytest.raises(InputError, match=words) as error:
        pretrained(run)
    assert "\n" not in str(error.value)


def test_pickle_checkpoint_and_misspelled_function_raise_errors(tmp_path):
    (tmp_path / "x.ckpt").write_bytes(pickle.dumps(print, protocol=2))
    with pytest.raises(InputError, match="refused"):
        ssl_vision.load_encoder(tmp_path / "x.ckpt")
    with pytest.raises(AttributeError, match="load_encoders"):
        getattr(ssl_vision, "load_encoders")  # noqa: B009
