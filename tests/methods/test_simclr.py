"""Tests of SimCLR: layers, BatchNorm per view, initial weights, optimizers, chunks and checkpoints."""

import warnings
from functools import partial
from itertools import pairwise

import pytest
import pytorch_lightning as pl
import torch
from lightly.loss import NTXentLoss
from lightly.models.modules.heads import BarlowTwinsProjectionHead, SimCLRProjectionHead
from settings import resnet
from small_backbone import small_backbone
from torch.utils.data import DataLoader

from ssl_vision.data import Batch, Digits
from ssl_vision.data.loading.loader import Batches
from ssl_vision.errors import InputError
from ssl_vision.methods import Layers, OptimizerRule, SimCLR, SimCo, SimMoCo
from ssl_vision.objectives import (
    DCL,
    MACL,
    DualTemperature,
    InfoNCE,
    Learnable,
    LinearInEpoch,
    Objective,
    SupCon,
    UnifiedGradient,
)
from ssl_vision.objectives.gather import _equal_shares

SMALL = {"encoder": resnet(width=4), "hidden_dim": 16, "output_dim": 8}
VIEWS = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
BATCH = Batch(VIEWS[:8], torch.zeros(8), torch.arange(8), VIEWS)


def test_layers_are_backbone_hidden_and_projector():
    model = SimCLR(**SMALL).eval()
    layers = model(VIEWS)
    assert isinstance(layers, Layers)
    assert [tuple(layer.shape) for layer in layers] == [(16, 32), (16, 16), (16, 8)]
    assert (layers.hidden >= 0).all()
    torch.testing.assert_close(model.head(layers.backbone), layers.projector)


def test_setup_without_trainer_prepares_a_plain_loop():
    model = SimCLR(**SMALL, compile_mode="default")
    model.setup("fit")
    assert model.backbone._compiled_call_impl is not None
    eager = SimCLR(**SMALL)
    eager.setup("fit")
    assert torch.isfinite(eager.training_step(BATCH, 0))


def test_objective_that_does_not_gather_warns_on_several_processes(monkeypatch):
    monkeypatch.setattr("ssl_vision.methods.checks.is_distributed", lambda: True)
    for objective in (torch.nn.MSELoss(), InfoNCE(gather=False)):
        name = type(objective).__name__
        with pytest.warns(UserWarning, match=f"{name} does not state that it gathers the embeddings of all"):
            SimCLR(**SMALL, objective=objective).setup("fit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SimCLR(**SMALL).setup("fit")


def test_initial_weights_depend_only_on_seed():
    pl.seed_everything(3, verbose=False)
    first = SimCLR(**SMALL, objective=InfoNCE()).state_dict()
    pl.seed_everything(3, verbose=False)
    torch.rand(100)
    second = SimCLR(**SMALL, objective=DCL(temperature=Learnable())).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert torch.equal(
        first["backbone.conv1.weight"], SimCLR(**SMALL, seed=3).state_dict()["backbone.conv1.weight"]
    )
    assert not torch.equal(
        first["backbone.conv1.weight"], SimCLR(**SMALL, seed=4).state_dict()["backbone.conv1.weight"]
    )


def test_model_construction_does_not_change_random_state():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    SimCLR(**SMALL, seed=5)
    assert torch.equal(torch.rand(3), expected)


def test_bn_normalizes_views_jointly_or_separately():
    views = torch.cat([VIEWS[:8], 3 * VIEWS[8:]])
    losses = {}
    for bn in ("joint", "per_view"):
        model = SimCLR(**SMALL, bn=bn, seed=0)
        losses[bn] = model.training_step(BATCH._replace(views=views), 0)
        if bn == "joint":
            expected = model.objective(*model(views).projector.chunk(2))
        else:
            expected = model.objective(model(views[:8]).projector, model(views[8:]).projector)
        torch.testing.assert_close(losses[bn], expected)
    assert abs(losses["joint"] - losses["per_view"]) > 1e-4


def test_batch_without_views_raises_value_error():
    with pytest.raises(ValueError, match="no views"):
        SimCLR(**SMALL).training_step(BATCH._replace(views=None), 0)


def test_objective_parameters_are_optimized():
    model = SimCLR(**SMALL, objective=InfoNCE(temperature=Learnable()))
    optimizer = model.configure_optimizers()
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert id(model.objective.temperature.log_temperature) in trained


def test_default_lr_and_weight_decay_match_paper():
    group = SimCLR(**SMALL).configure_optimizers().param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (1e-3, 1e-6)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "lars", "muon"])
def test_every_optimizer_moves_every_parameter(name):
    model = SimCLR(**SMALL, optimizer=OptimizerRule(name=name, lr=0.1))
    optimizer = model.configure_optimizers()
    before = {key: value.clone() for key, value in model.named_parameters()}
    model.objective(*model(VIEWS).projector.chunk(2)).backward()
    optimizer.step()
    assert [key for key, value in model.named_parameters() if torch.equal(value, before[key])] == []


def test_lars_keeps_biases_and_batchnorm_out_of_weight_decay():
    model = SimCLR(**SMALL, optimizer=OptimizerRule(name="lars", weight_decay=0.5))
    decayed, plain = model.configure_optimizers().param_groups
    assert decayed["weight_decay"] == 0.5
    assert plain["weight_decay"] == 0
    assert all(p.ndim > 1 for p in decayed["params"])
    assert {id(p) for p in plain["params"]} >= {id(model.backbone.bn1.weight), id(model.head.layers[3].bias)}


def test_muon_orthogonalises_weight_steps_and_uses_nadamw_elsewhere():
    model = SimCLR(**SMALL, optimizer=OptimizerRule(name="muon", lr=0.01, weight_decay=0.0))
    optimizer = model.configure_optimizers()
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    model.objective(*model(VIEWS).projector.chunk(2)).backward()
    optimizer.step()
    steps = {key: (value - before[key]).detach() for key, value in model.named_parameters()}
    for key in ("backbone.layer1.0.conv1.weight", "head.layers.0.weight"):
        step = steps[key].flatten(1)
        values = torch.linalg.svdvals(step) / (0.01 * 0.2 * max(step.shape) ** 0.5)
        assert values[: len(values) // 2] == pytest.approx(1.0, abs=0.35)  # the gradient has a low rank
    assert steps["backbone.bn1.bias"].abs() == pytest.approx(0.019, rel=1e-3)  # NAdamW: lr (β1 + 1)


def test_cosine_schedule_warms_up_and_ends_near_zero(tmp_path):
    rates = []

    class Rates(pl.Callback):
        def on_train_batch_start(self, trainer, *args):
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    rule = OptimizerRule(name="sgd", lr=1.0, schedule="cosine", warmup_epochs=2)
    trainer = pl.Trainer(
        max_epochs=10, limit_train_batches=5, limit_val_batches=0, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, callbacks=[Rates()], default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(SimCLR(**SMALL, optimizer=rule), Digits(batch_size=64))
    assert len(rates) == 50
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert rates[-1] < 0.01


@pytest.mark.parametrize(
    ("options", "word"),
    [({"lr": -1.0}, "lr"), ({"weight_decay": -1.0}, "weight_decay"), ({"warmup_epochs": 2}, "warmup_epochs")],
)
def test_invalid_optimizer_options_raise_value_error(options, word):
    with pytest.raises(ValueError, match=word):
        OptimizerRule(**options)


def test_checkpoint_saved_by_trainer_restores_network(tmp_path):
    model = SimCLR(**SMALL, objective=DCL())
    trainer = pl.Trainer(
        max_epochs=1, limit_train_batches=2, limit_val_batches=0, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model, Digits(batch_size=32))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    torch.load(tmp_path / "model.ckpt", weights_only=True)
    restored = SimCLR.load_from_checkpoint(tmp_path / "model.ckpt", encoder=SMALL["encoder"], objective=DCL())
    assert restored.backbone.num_features == 32
    torch.testing.assert_close(restored.eval()(VIEWS).projector, model.eval()(VIEWS).projector)
    with pytest.raises(InputError, match=r"as in SimCLR\.load_from_checkpoint\(FILE, encoder="):
        SimCLR.load_from_checkpoint(tmp_path / "model.ckpt")


@pytest.mark.parametrize("bn", ["joint", "per_view"])
@pytest.mark.parametrize("chunk_size", [3, 8, 100])
def test_chunks_give_loss_and_gradients_of_whole_batch(bn, chunk_size):
    """This holds with fixed BatchNorm statistics, or if the whole batch fits into one chunk."""

    def gradients(chunk_size):
        model = SimCLR(**SMALL, bn=bn, chunk_size=chunk_size, seed=0).double()
        if fixed:
            model.eval()
        loss = model.training_step(BATCH._replace(views=VIEWS.double()), 0)
        loss.backward()
        return loss.detach(), [p.grad for p in model.parameters()]

    fixed = chunk_size == 3
    (loss, actual), (expected_loss, expected) = gradients(chunk_size), gradients(None)
    torch.testing.assert_close(loss, expected_loss)
    for gradient, expected_gradient in zip(actual, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-12)


def test_objective_receives_required_labels():
    model = SimCLR(**SMALL, objective=SupCon(), seed=0)
    labels = torch.tensor([0, 1, 0, 1, 2, -1, -1, 2])
    loss = model.training_step(BATCH._replace(labels=labels), 0)
    torch.testing.assert_close(loss, SupCon()(*model(VIEWS).projector.chunk(2), labels))


def test_zero_chunk_size_raises_input_error():
    with pytest.raises(InputError, match="chunk_size must be at least 1 and at most 1048576, got 0"):
        SimCLR(**SMALL, chunk_size=0)


@pytest.fixture
def compile_backend(monkeypatch):
    """A function that makes ``compile_mode`` use a backend that needs no C++ compiler."""
    original = torch.compile
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def set_backend(backend):
        def compile_with_backend(function, *, options, **others):
            return original(function, backend=backend, **others)

        monkeypatch.setattr(torch, "compile", compile_with_backend)

    return set_backend


def short_fit(model, tmp_path, **options):
    trainer = pl.Trainer(
        max_epochs=3, limit_train_batches=4, limit_val_batches=2, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, num_sanity_val_steps=0,
        default_root_dir=tmp_path, **options,
    )  # fmt: skip
    trainer.fit(model, Digits(batch_size=32))
    return trainer


def test_backbone_is_compiled_once_without_changing_weights(tmp_path, compile_backend):
    compile_backend("eager")
    counters = torch._dynamo.utils.counters
    plain, compiled = (SimCLR(**SMALL, seed=0, compile_mode=mode) for mode in (None, "default"))
    short_fit(plain, tmp_path)
    assert not counters["stats"]
    short_fit(compiled, tmp_path)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert not [key for key in compiled.state_dict() if "_orig_mod" in key]
    for (key, expected), value in zip(
        plain.state_dict().items(), compiled.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(value, expected, msg=key)


def gradients(objective, method=SimCLR, **options):
    """Return the gradients of the second of two equal steps, and the method."""
    sizes = {"hidden_dim": 16, "output_dim": 8, "seed": 0}
    model = method(encoder=small_backbone, objective=objective, **sizes, **options)
    model.setup("fit")
    for _ in range(2):
        model.zero_grad()
        model.training_step(BATCH._replace(labels=torch.arange(8) % 4), 0).backward()
    return [p.grad for p in model.parameters() if p.grad is not None], model


@pytest.mark.parametrize(
    ("method", "objective"),
    [*((SimCLR, each) for each in (InfoNCE, MACL, DCL, SupCon)), (SimMoCo, DualTemperature)],
)
def test_compiled_loss_has_eager_gradients(method, objective, compile_backend):
    compile_backend("aot_eager")
    expected, plain = gradients(objective(), method)
    compiled, model = gradients(objective(), method, compile_mode="default", compile_loss=True)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert model.backbone._compiled_call_impl is None
    torch.testing.assert_close(compiled, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.features, plain.features)
    torch.testing.assert_close(model.objective.statistics(), plain.objective.statistics())


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (SimCLR, {}),
        (SimCLR, {"bn": "per_view"}),
        (SimMoCo, {"chunk_size": 3}),
        (SimMoCo, {"compile_mode": "default"}),
    ],
)
def test_fixed_statistics_stay_while_batch_norm_weights_train(method, options, tmp_path, compile_backend):
    compile_backend("eager")
    model = method(**SMALL, encoder_statistics="fixed", seed=0, **options)
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    short_fit(model, tmp_path)  # with validations
    for name, tensor in model.state_dict().items():
        fixed = "running" in name and name.startswith(("backbone.", "momentum_backbone."))
        fixed = fixed or (name.endswith("num_batches_tracked") and "head" not in name)
        assert torch.equal(tensor, initial[name]) == fixed, name


def test_encoder_with_fixed_statistics_does_not_mix_images():
    fixed = {"encoder_statistics": "fixed", "head_batch_norm": "none"}
    whole, _ = gradients(InfoNCE(), **fixed)
    for options in ({"chunk_size": 3}, {"bn": "per_view"}):
        torch.testing.assert_close(gradients(InfoNCE(), **fixed, **options)[0], whole)


class EpochMSE(Objective):
    """An objective of a user, which may read the epoch."""

    def forward(self, z1, z2):
        return (z1 - z2).square().mean()


@pytest.mark.parametrize(
    ("objective", "processes", "reason"),
    [
        (UnifiedGradient, 1, "(Unsupported method call|Attempted to call)"),
        (EpochMSE, 1, "the objective reads the epoch"),
        (InfoNCE, 2, ".* or there are several processes"),
    ],
)
def test_loss_that_cannot_be_compiled_leaves_compiled_encoder(
    objective, processes, reason, compile_backend, monkeypatch
):
    monkeypatch.setattr("ssl_vision.methods.method.is_distributed", lambda: processes > 1)
    compile_backend("aot_eager")
    expected, _ = gradients(objective())
    with pytest.warns(UserWarning, match=f"model.compile_loss compiles only the encoder: {reason}") as warned:
        compiled, model = gradients(objective(), compile_mode="default", compile_loss=True)
    assert len([each for each in warned if "compile_loss" in str(each.message)]) == 1
    assert model.backbone._compiled_call_impl is not None
    torch.testing.assert_close(compiled, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile_loss": True}, "compile_loss and model.compile_options require model.compile_mode"),
        (
            {"compile_mode": "default", "compile_options": {"tuned": True}},
            "model.compile_options: Inductor has no option tuned",
        ),
    ],
)
def test_invalid_compile_options_raise_input_error(options, message):
    with pytest.raises(InputError, match=message):
        SimCLR(**SMALL, **options).setup("fit")


def test_compile_options_extend_those_of_mode():
    options = {"combo_kernels": True, "max_autotune": False}
    model = SimCLR(**SMALL, compile_mode="max-autotune-no-cudagraphs", compile_options=options)
    assert model._compilation()["options"] == {"coordinate_descent_tuning": True, **options}


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_gradient_clipping_limits_update_norm(tmp_path, precision):
    norms = []

    class NormRecorder(pl.Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            norms.append(torch.cat([p.grad.flatten() for p in module.parameters()]).norm())

    short_fit(SimCLR(**SMALL, seed=0), tmp_path, precision=precision, callbacks=[NormRecorder()])
    unclipped = norms.copy()
    norms.clear()
    before = {}

    class InitialWeights(pl.Callback):
        def on_train_start(self, trainer, module):
            before.update({key: value.clone() for key, value in module.named_parameters()})

    rule = OptimizerRule(name="sgd", lr=1.0, momentum=0.0, weight_decay=0.0)
    model = SimCLR(**SMALL, seed=0, optimizer=rule)
    trainer = pl.Trainer(
        max_steps=1, limit_val_batches=0, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, precision=precision, gradient_clip_val=1e-3, callbacks=[InitialWeights()],
        default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model, Digits(batch_size=32))
    update_norm = torch.cat(
        [(p.detach() - before[key]).flatten() for key, p in model.named_parameters()]
    ).norm()
    assert float(unclipped[0]) > 0.01
    assert float(update_norm) == pytest.approx(1e-3, rel=1e-2)


def test_loss_is_logged_at_log_interval_of_trainer(tmp_path):
    logged = []

    class RecordingSimCLR(SimCLR):
        def log(self, name, value, **options):
            if name == "train/loss":
                logged.append((self.trainer.global_step, bool(torch.isfinite(value))))
            super().log(name, value, **options)

    short_fit(RecordingSimCLR(**SMALL), tmp_path, log_every_n_steps=5)
    assert logged == [(5, True), (10, True)]


@pytest.mark.parametrize("equal", [True, False])
def test_equal_shares_of_loader_reach_loss_and_backward_hook(tmp_path, monkeypatch, equal):
    equal_shares = []

    class RecordingSimCLR(SimCLR):
        def loss(self, batch):
            equal_shares.append(_equal_shares.get())
            return super().loss(batch)

        def after_backward(self):
            equal_shares.append(_equal_shares.get())

    monkeypatch.setattr(Batches, "equal_shares", equal)
    short_fit(RecordingSimCLR(**SMALL), tmp_path, max_steps=2)
    assert equal_shares == [equal] * 4


LINEAR, NORM = {"weight", "bias"}, {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


@pytest.mark.parametrize(
    ("head_batch_norm", "layers"),
    [
        ("hidden", {0: {"weight"}, 1: NORM, 3: LINEAR}),  # the default, with the keys of existing checkpoints
        ("none", {0: LINEAR, 2: LINEAR}),
        ("all", {0: {"weight"}, 1: NORM, 3: {"weight"}, 4: NORM}),
    ],
)
def test_head_batch_norm_places_batchnorm_in_head(head_batch_norm, layers):
    option = {} if head_batch_norm == "hidden" else {"head_batch_norm": head_batch_norm}
    model = SimCLR(**SMALL, **option, seed=0).train()
    keys = {f"layers.{index}.{name}" for index, names in layers.items() for name in names}
    assert model.head.state_dict().keys() == keys
    features, hidden, projector = model(VIEWS)
    torch.testing.assert_close(model.head(features), projector)
    assert hidden.shape == (16, 16)
    assert (hidden >= 0).all()
    centred = projector.mean(dim=0).abs().max() < 1e-5
    assert bool(centred) == (head_batch_norm == "all")


def test_head_with_batchnorm_everywhere_matches_lightly():
    model = SimCLR(**SMALL, head_batch_norm="all", seed=0).train()
    lightly_head = SimCLRProjectionHead(32, 16, 8)
    lightly_head.load_state_dict(model.head.state_dict())
    layers = model(VIEWS)
    torch.testing.assert_close(lightly_head(layers.backbone), layers.projector)


@pytest.mark.parametrize(
    ("head_batch_norm", "layers"),
    [
        ("hidden", {0: {"weight"}, 1: NORM, 3: {"weight"}, 4: NORM, 6: LINEAR}),
        ("none", {0: LINEAR, 2: LINEAR, 4: LINEAR}),
        ("all", {0: {"weight"}, 1: NORM, 3: {"weight"}, 4: NORM, 6: {"weight"}, 7: NORM}),
    ],
)
def test_head_of_three_layers_has_a_second_hidden_layer(head_batch_norm, layers):
    model = SimCLR(**SMALL, head_layers=3, head_batch_norm=head_batch_norm, seed=0).train()
    keys = {f"layers.{index}.{name}" for index, names in layers.items() for name in names}
    assert model.head.state_dict().keys() == keys
    features, hidden, projector = model(VIEWS)
    torch.testing.assert_close(model.head(features), projector)
    last = model.head.layers[-1 if head_batch_norm != "all" else -2]
    output = last(hidden)
    torch.testing.assert_close(
        output if head_batch_norm != "all" else model.head.layers[-1](output), projector
    )
    assert model.head.layers[0].weight.shape[0] == last.weight.shape[1] == hidden.shape[1] == 16


def test_head_of_three_layers_matches_lightly():
    model = SimCLR(**SMALL, head_layers=3, seed=0).train()
    lightly_head = BarlowTwinsProjectionHead(32, 16, 8)
    lightly_head.load_state_dict(model.head.state_dict())
    layers = model(VIEWS)
    torch.testing.assert_close(lightly_head(layers.backbone), layers.projector)


def test_head_of_one_layer_raises_input_error():
    with pytest.raises(InputError, match="head_layers must be at least 2, got 1"):
        SimCLR(**SMALL, head_layers=1)


def test_any_data_loader_of_two_views_trains_like_a_data_module(tmp_path):
    """The views of the data module, collated by a DataLoader of pairs, give the same weights."""
    data = Digits(batch_size=32, seed=0)
    rows = torch.arange(64)
    first, second = data.training_views(0)(data.split("train").at(rows), rows, seed=0, epoch=0).chunk(2)
    labels = data.split("train").labels[:64]
    pairs = [((first[i], second[i]), labels[i], f"{i}.png") for i in range(64)]
    batches = [
        Batch(first[part], labels[part], part, torch.cat([first[part], second[part]]))
        for part in rows.split(32)
    ]
    trained = []
    for loader in (DataLoader(pairs, batch_size=32), DataLoader(batches, batch_size=None)):
        model = SimCLR(**SMALL, objective=SupCon(), seed=0)
        trainer = pl.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(model, loader)
        trained.append(model.state_dict())
    torch.testing.assert_close(trained[0], trained[1], rtol=0, atol=0)
    assert not torch.equal(trained[0]["head.layers.0.weight"], SimCLR(**SMALL, seed=0).head.layers[0].weight)


def test_unknown_head_batch_norm_raises_input_error():
    with pytest.raises(
        InputError, match="head_batch_norm must be one of 'none', 'hidden', 'all', got 'output'"
    ):
        SimCLR(**SMALL, head_batch_norm="output")


def test_unknown_bn_raises_input_error():
    with pytest.raises(InputError, match="bn must be one of 'joint', 'per_view', got 'none'"):
        SimCLR(**SMALL, bn="none")


@pytest.mark.parametrize("name", ["hidden_dim", "output_dim"])
def test_zero_head_width_raises_input_error(name):
    with pytest.raises(InputError, match=f"{name} must be at least 1 and at most 1048576, got 0"):
        SimCLR(**(SMALL | {name: 0}))


@pytest.mark.parametrize("objective", [Learnable(), torch.nn.Linear(3, 3), SimCLR(**SMALL)])
def test_module_that_is_no_objective_raises_input_error(objective):
    with pytest.raises(InputError, match=f"{type(objective).__name__} is not an objective"):
        SimCLR(**SMALL, objective=objective)


@pytest.mark.parametrize("make", [lambda: InfoNCE(temperature=LinearInEpoch(0.1, 0.2)), SupCon, DCL])
def test_compiled_objective_trains_like_the_plain_one(make, tmp_path):
    states = []
    for wrap in (lambda module: module, partial(torch.compile, backend="eager")):
        objective = make()
        model = SimCLR(**SMALL, objective=wrap(objective), seed=0)
        short_fit(model, tmp_path)
        states.append((model.backbone.state_dict(), objective.statistics()))
    for name, value in states[0][0].items():
        assert torch.equal(states[1][0][name], value), name
    assert states[0][1] == states[1][1]


@pytest.mark.parametrize("method", [SimMoCo, SimCo])
def test_pairs_of_compiled_objective_are_checked(method):
    with pytest.raises(InputError, match=r"pairs must be .*, got .both"):
        method(**SMALL, objective=torch.compile(InfoNCE(pairs="both"), backend="eager"))


def test_checkpoint_has_memory_bank_of_another_library(tmp_path):
    def model():
        return SimCLR(**SMALL, seed=0, objective=NTXentLoss(memory_bank_size=(32, 8)))

    torch.manual_seed(0)
    whole = model()
    short_fit(whole, tmp_path).save_checkpoint(tmp_path / "model.ckpt")
    continued = model()
    checkpoint = torch.load(tmp_path / "model.ckpt", weights_only=True)
    continued.on_load_checkpoint(checkpoint)
    continued.load_state_dict(checkpoint["state_dict"])
    assert torch.equal(whole.training_step(BATCH, 0), continued.training_step(BATCH, 0))
    SimCLR.load_from_checkpoint(tmp_path / "model.ckpt", encoder=SMALL["encoder"])  # another objective
