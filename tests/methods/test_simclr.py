"""SimCLR as a module: taps, BatchNorm per view, reproducible weights, optimizers, checkpoints from Python."""

from itertools import pairwise

import pytest
import pytorch_lightning as pl
import torch
from lightly.models.modules.heads import SimCLRProjectionHead
from settings import resnet

from ssl_vision.data import Batch, Digits
from ssl_vision.data.loading.loader import Batches
from ssl_vision.errors import InputError
from ssl_vision.methods import Layers, OptimizerRule, SimCLR
from ssl_vision.objectives import DCL, InfoNCE, Learnable, SupCon
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


def test_initial_weights_depend_on_the_seed_and_on_nothing_else():
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


def test_building_a_model_leaves_the_generator_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    SimCLR(**SMALL, seed=5)
    assert torch.equal(torch.rand(3), expected)


def test_joint_batchnorm_sees_both_views_and_per_view_each_alone():
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


def test_a_batch_without_views_is_refused():
    with pytest.raises(ValueError, match="no views"):
        SimCLR(**SMALL).training_step(BATCH._replace(views=None), 0)


def test_the_objectives_parameters_are_trained_too():
    model = SimCLR(**SMALL, objective=InfoNCE(temperature=Learnable()))
    optimizer = model.configure_optimizers()
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert id(model.objective.temperature.log_temperature) in trained


def test_the_default_optimizer_is_the_papers():
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


def test_muon_orthogonalises_steps_of_weights_and_takes_nadamw_steps_of_the_rest():
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

    class Watch(pl.Callback):
        def on_train_batch_start(self, trainer, *args):
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    rule = OptimizerRule(name="sgd", lr=1.0, schedule="cosine", warmup_epochs=2)
    trainer = pl.Trainer(
        max_epochs=10, limit_train_batches=5, limit_val_batches=0, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, callbacks=[Watch()], default_root_dir=tmp_path,
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
def test_impossible_optimizer_options_are_refused_by_name(options, word):
    with pytest.raises(ValueError, match=word):
        OptimizerRule(**options)


def test_a_checkpoint_written_from_python_rebuilds_the_network(tmp_path):
    model = SimCLR(**SMALL, objective=DCL())
    trainer = pl.Trainer(
        max_epochs=1, limit_train_batches=2, limit_val_batches=0, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model, Digits(batch_size=32))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    torch.load(tmp_path / "model.ckpt", weights_only=True)
    again = SimCLR.load_from_checkpoint(tmp_path / "model.ckpt", encoder=SMALL["encoder"], objective=DCL())
    assert again.backbone.num_features == 32
    torch.testing.assert_close(again.eval()(VIEWS).projector, model.eval()(VIEWS).projector)
    with pytest.raises(InputError, match=r"as in SimCLR\.load_from_checkpoint\(FILE, encoder="):
        SimCLR.load_from_checkpoint(tmp_path / "model.ckpt")


class Rows(torch.nn.Module):
    def forward(self, z1, z2):
        return (z1 - z2).square().mean(dim=1)


class Number(torch.nn.Module):
    def forward(self, z1, z2):
        return torch.tensor(0.5)


@pytest.mark.parametrize(
    ("objective", "problem"), [(Rows(), r"has shape \(\d+,\)"), (Number(), "has no gradient")]
)
def test_a_loss_that_cannot_be_trained_with_is_refused(objective, problem):
    model = SimCLR(**SMALL, objective=objective, seed=0)
    with pytest.raises(
        InputError, match=f"the loss of SimCLR with {type(objective).__name__} {problem}: it must"
    ):
        model.training_step(BATCH._replace(views=VIEWS), 0)


@pytest.mark.parametrize("bn", ["joint", "per_view"])
@pytest.mark.parametrize("chunk_size", [3, 8, 100])
def test_chunks_hold_both_views_and_the_objective_sees_all(bn, chunk_size):
    """With BatchNorm fixed the gradients are those of the whole batch; one that fits in a chunk is whole."""

    def gradients(chunk_size):
        model = SimCLR(**SMALL, bn=bn, chunk_size=chunk_size, seed=0).double()
        if fixed:
            model.eval()
        loss = model.training_step(BATCH._replace(views=VIEWS.double()), 0)
        loss.backward()
        return loss.detach(), [p.grad for p in model.parameters()]

    fixed = chunk_size == 3
    (loss, ours), (whole, want) = gradients(chunk_size), gradients(None)
    torch.testing.assert_close(loss, whole)
    for one, other in zip(ours, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_an_objective_that_wants_labels_gets_them():
    model = SimCLR(**SMALL, objective=SupCon(), seed=0)
    labels = torch.tensor([0, 1, 0, 1, 2, -1, -1, 2])
    loss = model.training_step(BATCH._replace(labels=labels), 0)
    torch.testing.assert_close(loss, SupCon()(*model(VIEWS).projector.chunk(2), labels))


def test_a_chunk_of_nothing_is_refused():
    with pytest.raises(InputError, match="chunk_size must be 1 or more, not 0"):
        SimCLR(**SMALL, chunk_size=0)


def compiled_by(backend, monkeypatch):
    """Lets ``compile_mode`` compile with a backend that needs no C++ compiler."""
    compile_ = torch.nn.Module.compile

    def other(self, *, mode, **options):
        compile_(self, backend=backend, **options)

    monkeypatch.setattr("ssl_vision.encoders.resnet.ResNet.compile", other)


def short_fit(model, tmp_path, **options):
    trainer = pl.Trainer(
        max_epochs=3, limit_train_batches=4, limit_val_batches=2, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, num_sanity_val_steps=0,
        default_root_dir=tmp_path, **options,
    )  # fmt: skip
    trainer.fit(model, Digits(batch_size=32))
    return trainer


def test_a_compiled_backbone_is_compiled_once_and_changes_nothing(tmp_path, monkeypatch):
    compiled_by("eager", monkeypatch)
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    plain, compiled = (SimCLR(**SMALL, seed=0, compile_mode=mode) for mode in (None, "default"))
    short_fit(plain, tmp_path)
    assert not counters["stats"]
    short_fit(compiled, tmp_path)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert not [key for key in compiled.state_dict() if "_orig_mod" in key]
    for (key, one), other in zip(plain.state_dict().items(), compiled.state_dict().values(), strict=True):
        torch.testing.assert_close(other, one, msg=key)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_clipping_clips(tmp_path, precision):
    norms = []

    class Watch(pl.Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            norms.append(torch.cat([p.grad.flatten() for p in module.parameters()]).norm())

    short_fit(SimCLR(**SMALL, seed=0), tmp_path, precision=precision, callbacks=[Watch()])
    free = norms.copy()
    norms.clear()
    before = {}

    class Step(pl.Callback):
        def on_train_start(self, trainer, module):
            before.update({key: value.clone() for key, value in module.named_parameters()})

    rule = OptimizerRule(name="sgd", lr=1.0, momentum=0.0, weight_decay=0.0)
    model = SimCLR(**SMALL, seed=0, optimizer=rule)
    trainer = pl.Trainer(
        max_steps=1, limit_val_batches=0, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, precision=precision, gradient_clip_val=1e-3, callbacks=[Step()],
        default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model, Digits(batch_size=32))
    moved = torch.cat([(p.detach() - before[key]).flatten() for key, p in model.named_parameters()]).norm()
    assert float(free[0]) > 0.01
    assert float(moved) == pytest.approx(1e-3, rel=1e-2)


def test_the_loss_is_logged_at_the_trainers_steps(tmp_path):
    trainer = short_fit(SimCLR(**SMALL, seed=0), tmp_path, log_every_n_steps=12)
    assert torch.isfinite(trainer.callback_metrics["train/loss"])


@pytest.mark.parametrize("equal", [True, False])
def test_equal_shares_stated_by_the_loader_reach_the_loss_and_the_backward(tmp_path, monkeypatch, equal):
    seen = []

    class Watched(SimCLR):
        def loss(self, batch):
            seen.append(_equal_shares.get())
            return super().loss(batch)

        def after_backward(self):
            seen.append(_equal_shares.get())

    monkeypatch.setattr(Batches, "equal_shares", equal)
    short_fit(Watched(**SMALL), tmp_path, max_steps=2)
    assert seen == [equal] * 4


LINEAR, NORM = {"weight", "bias"}, {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


@pytest.mark.parametrize(
    ("head_batch_norm", "layers"),
    [
        ("hidden", {0: {"weight"}, 1: NORM, 3: LINEAR}),  # the default, so the keys of existing checkpoints
        ("none", {0: LINEAR, 2: LINEAR}),
        ("all", {0: {"weight"}, 1: NORM, 3: {"weight"}, 4: NORM}),
    ],
)
def test_head_has_batchnorm_where_it_is_asked_for(head_batch_norm, layers):
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


def test_head_with_batchnorm_everywhere_is_lightlys():
    model = SimCLR(**SMALL, head_batch_norm="all", seed=0).train()
    theirs = SimCLRProjectionHead(32, 16, 8)
    theirs.load_state_dict(model.head.state_dict())
    layers = model(VIEWS)
    torch.testing.assert_close(theirs(layers.backbone), layers.projector)


def test_an_unknown_place_of_batchnorm_is_refused():
    with pytest.raises(InputError, match="head_batch_norm must be none, hidden or all, not output"):
        SimCLR(**SMALL, head_batch_norm="output")


def test_an_unknown_batchnorm_of_views_is_refused():
    with pytest.raises(InputError, match="bn must be joint or per_view, not none"):
        SimCLR(**SMALL, bn="none")


@pytest.mark.parametrize("name", ["hidden_dim", "output_dim"])
def test_a_head_of_no_width_is_refused(name):
    with pytest.raises(InputError, match=f"{name} must be 1 or more, not 0"):
        SimCLR(**(SMALL | {name: 0}))


@pytest.mark.parametrize("objective", [Learnable(), torch.nn.Linear(3, 3), SimCLR(**SMALL)])
def test_what_does_not_take_two_embeddings_is_no_objective(objective):
    with pytest.raises(InputError, match=f"{type(objective).__name__} is not an objective"):
        SimCLR(**SMALL, objective=objective)
