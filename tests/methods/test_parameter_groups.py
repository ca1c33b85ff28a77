"""Tests of layer-wise learning rates, weight decay without biases, and frozen parts."""

import signal

import pytest
import timm
import torch
from equal import difference_of_runs
from settings import TINY
from timm.optim._param_groups import param_groups_layer_decay
from torch import nn

from ssl_vision.encoders import ModuleEncoder, ResNet, Timm
from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.methods import OptimizerRule, SimCLR, SimMoCo
from ssl_vision.runs.checkpoint import read_checkpoint


def settings(module, optimizer):
    """Return the learning rate and the weight decay of each trained parameter, by its name."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4, "depth": 3}),
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4, "depth": 2, "global_pool": "avg"}),
        ("convnext_atto", {}),
        ("resnet18", {}),
        ("mobilenetv4_conv_small", {}),
    ],
)
def test_encoder_groups_match_timm_layer_decay(name, options):
    method = SimCLR(encoder=Timm(name, **options), seed=0)
    rule = OptimizerRule(name="adamw", lr=0.1, weight_decay=0.05, exclude_bias_and_norm=True, layer_decay=0.7)
    actual = settings(method, rule.optimizer(method))
    assert set(actual) == {name for name, _ in method.named_parameters()}
    model = timm.create_model(name, num_classes=10, **options)
    undecayed = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    groups = param_groups_layer_decay(model, 0.05, no_weight_decay_list=undecayed, layer_decay=0.7)
    names = {id(parameter): f"backbone.network.{name}" for name, parameter in model.named_parameters()}
    timm_groups = {names[id(p)]: group for group in groups for p in group["params"]}
    encoder = [name for name in actual if name.startswith("backbone.")]
    assert len(encoder) == len(timm_groups) - 2  # weight and bias of the classifier
    for key in encoder:
        assert actual[key] == pytest.approx(
            (0.1 * timm_groups[key]["lr_scale"], timm_groups[key]["weight_decay"])
        ), key
    assert actual["head.layers.0.weight"] == (0.1, 0.05)
    assert actual["head.layers.1.bias"] == (0.1, 0.0)


def test_resnet_layer_decay_matches_timm_layers():
    method = SimCLR(encoder=ResNet(width=4), seed=0)
    actual = settings(method, OptimizerRule(lr=1.0, layer_decay=0.5).optimizer(method))
    timm_distances = Timm("resnet18").layers_to_head()
    for name, distance in method.backbone.layers_to_head().items():
        assert distance == timm_distances[f"network.{name}"]
        assert actual[f"backbone.{name}"] == (pytest.approx(0.5**distance), 1e-6)


def test_encoder_alone_has_the_groups_of_its_method():
    rule = OptimizerRule(name="adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5, exclude_bias_and_norm=True)
    method = SimCLR(encoder=ResNet(width=4), seed=0)
    expected = settings(method, rule.optimizer(method))
    actual = settings(method.backbone, rule.optimizer(method.backbone))
    assert actual == {name: expected[f"backbone.{name}"] for name in actual}


def test_optimizer_of_a_rule_does_not_train_frozen_parts():
    method = SimCLR(encoder=ResNet(width=4), seed=0)
    trained = settings(method, OptimizerRule(freeze=("backbone.conv1",)).optimizer(method))
    assert {name for name, _ in method.named_parameters()} - set(trained) == {"backbone.conv1.weight"}


def test_default_rule_makes_one_group():
    method = SimCLR(encoder=ResNet(width=4), seed=0)
    (group,) = OptimizerRule().optimizer(method).param_groups
    assert group["params"] == list(method.parameters())


def test_first_group_has_full_rate_and_momentum_network_no_group():
    method = SimMoCo(encoder=ResNet(width=4), seed=0)
    groups = OptimizerRule(lr=0.3, layer_decay=0.9).optimizer(method).param_groups
    assert groups[0]["lr"] == 0.3  # the rate that a run logs
    trained = {id(p) for group in groups for p in group["params"]}
    assert not trained & {id(p) for p in method.momentum_backbone.parameters()}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OptimizerRule(layer_decay=0), "layer_decay must be above 0 and at most 1, got 0"),
        (
            lambda: OptimizerRule(layer_decay=0.9, name="lars"),
            "layer_decay does not support optimizer.name lars",
        ),
        (
            lambda: OptimizerRule(layer_decay=0.9).optimizer(
                SimCLR(encoder=ModuleEncoder(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), image_size=8))
            ),
            "layer_decay 0.9: ModuleEncoder does not state the order of its layers",
        ),
    ],
)
def test_unsupported_layer_decay_raises_error(make, message):
    with pytest.raises((ValueError, InputError), match=message):
        make()


def fit(tmp_path, name, *options):
    return main(["fit", *TINY, f"--runs_dir={tmp_path}", f"--name={name}", *options])


def test_frozen_parts_keep_their_weights_and_the_others_train(tmp_path, capsys):
    one_epoch = ["--trainer.max_epochs=1", "--model=SimMoCo"]
    layers = ["--model.optimizer.layer_decay=0.8", "--model.optimizer.exclude_bias_and_norm=true"]
    frozen = "--model.optimizer.freeze=[backbone.conv1, backbone.layer1]"
    assert fit(tmp_path, "a", *one_epoch, *layers, frozen, "--model.optimizer.schedule=cosine") == 0
    state = read_checkpoint(tmp_path / "a").state
    initial = SimCLR(encoder=lambda: ResNet(width=4), hidden_dim=16, output_dim=8, seed=0).state_dict()
    for name in ("conv1.weight", "layer1.0.conv1.weight", "layer1.1.bn2.bias"):
        assert torch.equal(state[f"backbone.{name}"], initial[f"backbone.{name}"])
    assert not torch.equal(state["backbone.layer2.0.conv1.weight"], initial["backbone.layer2.0.conv1.weight"])
    capsys.readouterr()
    assert fit(tmp_path, "b", "--model.optimizer.freeze=[backbone.layer5]") == 2
    message = capsys.readouterr().err
    assert (
        "optimizer.freeze: SimCLR has no parameters named 'backbone.layer5', did you mean 'backbone.layer"
        in message
    )
    assert fit(tmp_path, "c", "--model.optimizer.freeze=[backbone, head]") == 2
    assert "optimizer.freeze leaves nothing to train" in capsys.readouterr().err


@pytest.mark.parametrize("names", [["backbone.bn1", "backbone.layer1"], ["backbone"]])
def test_frozen_modules_keep_their_batch_norm_statistics(names, tmp_path):
    frozen = ["--model=SimMoCo", f"--model.optimizer.freeze={names}"]
    assert fit(tmp_path, "a", *frozen) == 0  # two epochs, with a validation after each
    assert fit(tmp_path, "a", *frozen, "--ckpt_path=last", "--trainer.max_epochs=3") == 0
    state = read_checkpoint(tmp_path / "a").state
    initial = SimMoCo(encoder=lambda: ResNet(width=4), hidden_dim=16, output_dim=8, seed=0).state_dict()
    for name in (key for key in initial if key.endswith(("running_mean", "running_var"))):
        fixed = name.removeprefix("momentum_").startswith(tuple(f"{each}." for each in names))
        assert torch.equal(state[name], initial[name]) == fixed, name


def test_frozen_module_of_a_plain_loop_ignores_the_rest_of_the_batch():
    rule = OptimizerRule(freeze=("backbone.conv1", "backbone.bn1", "head"))
    method = SimMoCo(encoder=ResNet(width=4), optimizer=rule, seed=0)
    rule.optimizer(method)
    images, others = torch.rand(2, 4, 3, 8, 8)
    for _ in range(2):  # with and without a call of train
        for frozen, trained in ((method.backbone, method.backbone.layer1), (method.momentum_backbone, None)):
            alone = frozen.bn1(frozen.conv1(images))
            assert torch.equal(frozen.bn1(frozen.conv1(torch.cat([images, others])))[:4], alone)
            assert trained is None or all(module.training for module in trained.modules())
        assert not any(module.training for module in method.head.modules())
        method.eval()
        method.train()
    assert method.training


@pytest.mark.parametrize(
    ("schedule", "warmup", "head", "encoder"),
    [
        ("constant", 2, [1.0] * 7, [0, 0, 0.25, 0.5, 0.75, 1.0, 1.0]),
        ("constant", 0, [1.0] * 7, [0, 0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("cosine", 1, None, [0, 0, 0.5, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_encoder_is_frozen_and_its_learning_rate_then_rises(schedule, warmup, head, encoder):
    method = SimMoCo(encoder=ResNet(width=4), seed=0)
    settings = {"name": "adamw", "lr": 0.1, "schedule": schedule, "warmup_epochs": warmup}
    usual = OptimizerRule(**settings | {"schedule": "cosine"}).optimizer(method)
    scheduler = OptimizerRule(**settings | {"schedule": "cosine"}).scheduler(
        usual, steps=8, steps_per_epoch=2
    )
    rule = OptimizerRule(**settings, freeze_epochs=1, layer_decay=0.5)
    optimizer = rule.optimizer(method)
    frozen = rule.scheduler(optimizer, steps=8, steps_per_epoch=2)
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    for step, share in enumerate(encoder):
        rate = usual.param_groups[0]["lr"] if head is None else 0.1 * head[step]
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)  # the rate that a run logs
        for group in optimizer.param_groups:
            for name in (names[id(parameter)] for parameter in group["params"]):
                part, _, own = name.partition(".")
                decay = 0.5 ** method.backbone.layers_to_head()[own] if part == "backbone" else 1
                assert group["lr"] == pytest.approx(rate * decay * (share if part == "backbone" else 1)), name
        for each in (usual, optimizer):
            each.step()
        scheduler.step()
        frozen.step()


FROZEN_EPOCH = ["--model.optimizer.freeze_epochs=1", "--model.optimizer.warmup_epochs=1", "--model=SimMoCo"]


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_encoder_stays_as_it_is_in_frozen_epochs_only(name, tmp_path):
    options = [*FROZEN_EPOCH, f"--model.optimizer.name={name}", "--trainer.max_epochs=3"]
    every = ["--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.save_top_k=-1"]
    assert fit(tmp_path, "a", *options, *every, "--trainer.callbacks.filename={epoch}") == 0
    first, last = (
        torch.load(next(tmp_path.rglob(file)), weights_only=True)["state_dict"]
        for file in ("epoch=0*.ckpt", "last.ckpt")
    )
    initial = SimMoCo(encoder=lambda: ResNet(width=4), hidden_dim=16, output_dim=8, seed=0).state_dict()
    for key in (key for key in initial if key.startswith(("backbone.", "head.", "momentum_backbone."))):
        assert torch.equal(first[key], initial[key]) == ("backbone" in key), key
        assert not torch.equal(last[key], first[key]), key


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_continued_run_with_frozen_epochs_equals_uninterrupted_run(schedule, tmp_path):
    options = [*FROZEN_EPOCH, f"--model.optimizer.schedule={schedule}", "--trainer.max_epochs=3"]
    assert fit(tmp_path, "whole", *options) == 0
    for batch in (2, 4, 6, 10):  # in a frozen epoch, at its end, and in later ones
        stop = ["--trainer.callbacks+=interrupt_once.InterruptOnce", f"--trainer.callbacks.batch={batch}",
                f"--trainer.callbacks.marker={tmp_path}/{batch}.txt"]  # fmt: skip
        assert fit(tmp_path, str(batch), *options, *stop) == 128 + signal.SIGTERM
        assert main(["fit", str(tmp_path / str(batch)), "--report=false"]) == 0
        assert difference_of_runs(tmp_path / "whole", tmp_path / str(batch)) == ""
