"""Tests of the encoder interface: measured widths, and training of encoders from elsewhere."""

import hashlib
from functools import partial

import pytest
import pytorch_lightning as pl
import timm
import torch
import torchvision
from settings import TINY
from torch import nn

from ssl_vision.cli.config_objects import built
from ssl_vision.data import Images, Views
from ssl_vision.encoders import Encoder, ModuleEncoder, ResNet, Timm, as_encoder
from ssl_vision.errors import InputError
from ssl_vision.evaluation.finetune import FineTune, finetuned_correct
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.objectives import RECLAIM
from ssl_vision.runs.checkpoint import read_checkpoint

SMALL = [option for option in TINY if "encoder" not in option]
VIT = partial(Timm, "vit_tiny_patch16_224", img_size=32, depth=4)
NETWORK = """
from torch import nn


class MyNet(nn.Sequential):
    def __init__(self, channels: int = 8) -> None:
        layers = [nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.Dropout(0.5)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(2))

    def forward(self, images):
        maps = super().forward(images)
        return maps.view(len(maps), -1)  # an error if maps are in channels_last format
"""


def digest(model):
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sha.update(name.encode())
        sha.update(tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()


@pytest.mark.parametrize(
    ("encoder", "seed", "expected"),
    [
        (partial(ResNet, width=8), 0, "169ac02afaf1ec7a44b61eac3d451590e3a211ffb2cab2cf0ae38af1da62e5bd"),
        (
            partial(ResNet, width=4, depth=50, stem="imagenet"),
            1,
            "98bcf6f1e4dd2384e924767c6ef32f1fd3c3974c9f1fa0561e4caa6ac3233bf0",
        ),
    ],
)
def test_initial_weights_match_version_0_1(encoder, seed, expected):
    """The digests were computed with the options width, depth and stem of SimCLR."""
    assert digest(SimCLR(encoder=encoder, seed=seed)) == expected


@pytest.mark.parametrize(
    ("name", "claimed", "width"), [("mobilenetv4_conv_small", 960, 1280), ("convnext_atto", 320, 320)]
)
def test_num_features_is_output_width(name, claimed, width):
    encoder = Timm(name)
    assert encoder.network.num_features == claimed
    assert encoder.num_features == width
    assert encoder.eval()(torch.zeros(2, 3, 64, 64)).shape == (2, width)


def test_width_measurement_changes_neither_module_nor_random_state():
    module = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(), nn.Flatten())
    module[1].eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert ModuleEncoder(module, image_size=4).num_features == 48
    assert torch.equal(torch.rand(3), expected)
    assert [part.training for part in (module, *module)] == [True, True, False, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_encoder_is_not_wrapped_twice():
    encoder = ResNet(width=4)
    assert as_encoder(encoder) is encoder
    assert SimCLR(encoder=encoder).backbone is encoder
    assert isinstance(SimCLR(encoder=nn.Flatten()).backbone, ModuleEncoder)


class Reshaped(nn.Module):
    """Reshapes feature maps in a way that requires contiguous format."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        maps = self.convolution(images)
        return maps.view(len(maps), -1)[:, :5]


class UsedTwice(nn.Module):
    """Has one layer under two names."""

    def __init__(self):
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.second = self.first

    def forward(self, images):
        return self.second(self.first(self.stem(images)).relu()).mean(dim=(2, 3))


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (ResNet(width=4), torch.channels_last),
        (UsedTwice(), torch.channels_last),
        (nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten()), torch.channels_last),
        (Reshaped(), torch.contiguous_format),
    ],
    ids=["resnet", "layer used twice", "flatten", "view"],
)
def test_networks_train_in_the_memory_format_that_they_accept(network, expected):
    before = {name: weight.stride() for name, weight in network.named_parameters()}
    encoder = as_encoder(network)
    assert encoder.memory_format == expected
    assert {name: weight.stride() for name, weight in network.named_parameters()} == before
    method = SimCLR(encoder=network, hidden_dim=8, output_dim=4)
    method.objective(*method.embed_views(torch.randn(8, 3, 16, 16)).embeddings).backward()
    assert all(weight.is_leaf and weight.grad is not None for weight in network.parameters())
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8)
    data = Images(images, torch.arange(8) % 2, ("a", "b"))
    assert (
        finetuned_correct(encoder, data, data, Views(size=16), rule=FineTune(epochs=1), seed=0).dtype
        == torch.bool
    )


def test_pooled_feature_maps_are_flattened():
    network = nn.Sequential(*list(torchvision.models.resnet18().children())[:-1])
    encoder = as_encoder(network)
    images = torch.randn(2, 3, 32, 32)
    assert encoder.num_features == 512
    torch.testing.assert_close(encoder(images), network(images).flatten(1))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: as_encoder(nn.Identity()), r"Identity must map images .* but returns \(1, 3, 64, 64\)"),
        (
            lambda: as_encoder(nn.Linear(2, 2)),
            "Linear cannot encode images .*; image_size of ModuleEncoder sets",
        ),
        (lambda: Timm("resnet18", checkpoint_path="x.pth"), "use --initial_checkpoint instead of"),
        (lambda: Timm("convnext_ato"), "timm has no model 'convnext_ato', did you mean 'convnext_atto'"),
        (
            lambda: Timm("convnext_atto", img_size=32),
            "timm cannot build convnext_atto: .*'img_size'",
        ),
    ],
)
def test_invalid_encoder_raises_one_line_value_error(build, words):
    with pytest.raises(ValueError, match=words) as error:
        build()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("encoder", [VIT, partial(Timm, "convnext_atto")], ids=["vit", "convnext"])
def test_intermediates_match_forward_and_shallow_features(encoder):
    encoder, images = encoder().eval(), torch.randn(2, 3, 32, 32)
    features, maps = encoder.forward_intermediates(images)
    torch.testing.assert_close(features, encoder(images))
    assert len(maps) == 4
    _, shallow = encoder.forward_shallow(images)
    torch.testing.assert_close(shallow, maps[2].mean(dim=(2, 3)))
    assert encoder.shallow_features() == maps[2].shape[1]


def test_feature_map_objective_requires_encoder_with_feature_maps():
    objective = RECLAIM(pair="depths")
    with pytest.raises(InputError, match="RECLAIM needs the encoder's feature maps: ModuleEncoder has no"):
        SimCLR(encoder=nn.Flatten, objective=objective)
    assert SimCLR(encoder=VIT, objective=objective)._shallow_features == 192


@pytest.mark.parametrize(
    ("options", "formats"),
    [
        (
            [
                "--model.encoder=Timm", "--model.encoder.name=vit_tiny_patch16_224",
                "--model.encoder.img_size=32", "--model.encoder.dict_kwargs.depth=2",
            ],
            ["safetensors", "timm"],
        ),
        pytest.param(
            [
                "--model.encoder=Timm", "--model.encoder.name=convnext_atto",
                "--model.encoder.dict_kwargs.depths=[1,1,1,1]",
                "--model.encoder.dict_kwargs.dims=[8,16,24,32]",
            ],
            ["safetensors", "timm"],
            marks=pytest.mark.long,
        ),
        (["--model.encoder=own_network.MyNet", "--model.encoder.channels=6"], ["safetensors"]),
    ],
    ids=["vit", "convnext", "own"],
)  # fmt: skip
def test_any_encoder_trains_evaluates_and_is_exported(options, formats, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_network.py").write_text(NETWORK)
    common = ["--data=Digits", "--data.views.size=32", "--name=run", *SMALL, "--trainer.max_epochs=1"]
    assert main(["fit", *common, *options]) == 0
    allow = ["--allow_class=own_network.MyNet"] if "own" in options[0] else []
    measure = ["--protocol=macl", "--baselines=false"]
    assert main(["evaluate", "runs/run", *measure, *allow]) == 0
    assert "trained backbone" in capsys.readouterr().out
    for name in formats:
        assert main(["export", "runs/run", f"--format={name}", *allow]) == 0
        assert "Checked: with" in capsys.readouterr().out
    assert main(["export", "runs/run", "--format=torchvision", *allow]) == 2
    assert "the torchvision format is for ResNets of width 64" in capsys.readouterr().err
    config = read_checkpoint("runs/run").config["model"]["init_args"]["encoder"]
    assert config["class_path"] in ("ssl_vision.encoders.Timm", "own_network.MyNet")


def test_unsupported_view_size_is_reported_with_fix(tmp_path, capsys):
    options = ["--model.encoder.name=vit_tiny_patch16_224", "--model.encoder.img_size=32"]
    assert (
        main(["fit", "--data=Digits", f"--runs_dir={tmp_path}", "--model.encoder=Timm", *options, *SMALL])
        == 2
    )
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "data.views.size 16: Timm cannot encode images (1, 3, 16, 16), Input height (16)" in message
    assert message.endswith("; add --model.encoder.img_size 16")
    resizing = ["--data.views.size=32", "--data.progressive_resizing={1: 16}"]
    args = ["fit", "--data=Digits", f"--runs_dir={tmp_path}", "--model.encoder=Timm", *options, *SMALL]
    assert main([*args, *resizing]) == 2
    assert "data.progressive_resizing to 16: " in capsys.readouterr().err


def test_timm_checkpoint_loads_as_initial_weights(tmp_path):
    from ssl_vision.runs.encoder_weights import start_from

    timm_network = VIT().network
    torch.save({**timm_network.state_dict(), "head.weight": torch.zeros(10, 192)}, tmp_path / "vit.pth")
    model = SimCLR(encoder=VIT, seed=3)
    start_from(model, tmp_path / "vit.pth")
    assert torch.equal(model.backbone.network.patch_embed.proj.weight, timm_network.patch_embed.proj.weight)


def test_option_of_the_encoder_is_suggested_for_the_method(tmp_path, capsys):
    assert main(["fit", "--model.width=16", f"--runs_dir={tmp_path}"]) == 2
    message = capsys.readouterr().err.strip()
    assert message.endswith("did you mean --model.encoder.width?")
    assert "\n" not in message


def test_untrained_model_does_not_download_pretrained_weights(tiny_run, monkeypatch):
    config = read_checkpoint(tiny_run).config
    options = {"name": "convnext_atto", "pretrained": True}
    config["model"]["init_args"]["encoder"] = {"class_path": "ssl_vision.encoders.Timm", "init_args": options}
    pretrained_arguments = []
    create = timm.create_model
    monkeypatch.setattr(
        "timm.create_model",
        lambda name, pretrained, **rest: pretrained_arguments.append(pretrained) or create(name, **rest),
    )
    assert isinstance(built(pl.LightningModule, "model", config, where="x", allow_class=()).backbone, Encoder)
    assert pretrained_arguments == [False]
