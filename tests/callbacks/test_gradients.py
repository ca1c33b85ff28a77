"""Tests of the gradient diagnostics and the shadow objectives."""

import warnings
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from settings import resnet
from torch import nn

from ssl_vision.callbacks import GradientDiagnostics, ShadowObjectives
from ssl_vision.data import Digits
from ssl_vision.errors import InputError
from ssl_vision.methods import SimCLR
from ssl_vision.metrics import gradient_statistics
from ssl_vision.objectives import (
    DCL,
    MACL,
    MHE,
    MPT,
    RECLAIM,
    AlignmentUniformity,
    ArcCon,
    BarlowTwins,
    DCLPlus,
    DualTemperature,
    InfoNCE,
    SupCon,
    TwoViews,
    UnifiedGradient,
    logit_margin,
    positive_similarity,
)
from ssl_vision.runs.files import read_csv
from ssl_vision.runs.log import RunLog

MEASURED = {"gradient", "shadow"}
SMALL = {"encoder": resnet(width=4), "hidden_dim": 16, "output_dim": 8, "seed": 0}


class EmbeddingRecorder(pl.Callback):
    """Records the embeddings, labels and logged values of each step."""

    def __init__(self):
        self.steps = []

    def on_train_start(self, trainer, pl_module):
        def record(module, embeddings):
            if module is pl_module.objective:  # not a copy of it
                self.embeddings = tuple(z.detach() for z in embeddings[:2])

        self.hook = pl_module.objective.register_forward_pre_hook(record)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        logged = {key: float(value) for key, value in trainer.callback_metrics.items()}
        self.steps.append((self.embeddings, batch.labels, logged))

    def on_train_end(self, trainer, pl_module):
        self.hook.remove()


def train(objective, *callbacks, steps=4, caught=None, **options):
    """Train for a few steps and log every second one; return the model and the recorded steps."""
    model, recorder = SimCLR(objective=objective, **SMALL), EmbeddingRecorder()
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=steps, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, limit_val_batches=0, callbacks=[*callbacks, recorder],
        **{"logger": False, "log_every_n_steps": 2} | options,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        trainer.fit(model, Digits(seed=0, batch_size=24))
    if caught is not None:
        caught += [str(each.message) for each in messages]
    return model, recorder.steps


def step(objective, callback, *, images=24, noise=0.3):
    """Evaluate an objective once; return the embeddings, the labels and what the callback logs."""
    g = torch.Generator().manual_seed(0)
    z1 = torch.randn(images, 8, generator=g)
    z2 = z1 + noise * torch.randn(images, 8, generator=g)
    labels = torch.arange(images) % 3
    trainer = SimpleNamespace(
        global_step=100,
        current_epoch=0,
        log_every_n_steps=10,
        accumulate_grad_batches=1,
        strategy=SimpleNamespace(reduce=lambda value, reduce_op: value),
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=99)),
        callback_metrics={},
        loggers=[],
    )
    module = pl.LightningModule()
    module.objective = objective
    callback.on_train_start(trainer, module)
    inputs = {"labels": labels} if isinstance(objective, SupCon) else {}
    objective(z1.clone().requires_grad_(), z2, **inputs)
    callback.on_train_batch_end(trainer, module, None, None, 0)
    callback.on_train_end(trainer, module)
    return z1, z2, labels, trainer.callback_metrics


@pytest.mark.parametrize("objective", [InfoNCE(), MPT(), BarlowTwins(), SupCon()])
def test_logged_diagnostics_match_gradient_statistics(objective):
    z1, z2, labels, logged = step(objective, GradientDiagnostics(images=16))
    label_arguments = [labels[:16]] if isinstance(objective, SupCon) else []
    statistics = gradient_statistics(lambda *views: objective(*views, *label_arguments), z1[:16], z2[:16])
    expected = {
        f"gradient/{key}": float(value) for key, value in statistics._asdict().items() if not value.isnan()
    }
    del logged["gradient/gate"]
    assert logged == pytest.approx(expected, rel=1e-5)
    assert ("gradient/ratio" in logged) == (not isinstance(objective, BarlowTwins))


def test_diagnostics_measure_at_their_own_interval():
    _, steps = train(InfoNCE(), GradientDiagnostics(every=3), steps=5)  # the trainer logs every second one
    measured = [any(key.startswith("gradient") for key in logged) for *_, logged in steps]
    assert measured == [False, False, True, True, True]
    z, _, logged = steps[2]
    for key, value in gradient_statistics(InfoNCE(), *z)._asdict().items():
        assert logged[f"gradient/{key}"] == pytest.approx(float(value), rel=1e-4)


def test_only_rows_of_measured_steps_contain_diagnostics(tmp_path):
    log = RunLog(tmp_path / "metrics.csv")
    train(InfoNCE(), GradientDiagnostics(every=3), ShadowObjectives([DCL()], every=3), steps=8, logger=log)
    steps = {row["step"]: {key.split("/")[0] for key in row} for row in read_csv(tmp_path / "metrics.csv")[1]}
    place, logged = {"step", "epoch"}, {"step", "epoch", "train"}
    assert steps == {1: logged, 2: place | MEASURED, 3: logged, 5: logged | MEASURED, 7: logged}


def expected_gate(objective, z1, z2):
    """Return the mean gate (GD) of the anchors, computed from their margins."""
    d = logit_margin(z1, z2, 0.1)
    if isinstance(objective, DualTemperature):
        return logit_margin(z1, z2, 1.0).sigmoid().mean()
    if isinstance(objective, ArcCon):
        positive = positive_similarity(z1, z2)
        rotated = torch.cos(positive.arccos() + objective.angle)
        return (d + ((positive - rotated) / 0.1).repeat(2)).sigmoid().mean()
    if isinstance(objective, InfoNCE):
        return d.sigmoid().mean()
    if isinstance(objective, DCLPlus):
        return (d > 0).double().mean()
    if isinstance(objective, (MPT, UnifiedGradient)):
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        similar = (u @ u.T).masked_fill(torch.eye(len(z1)).repeat(2, 2) > 0, -2)
        inside = positive_similarity(z1, z2).repeat(2) - similar.amax(dim=1) < 0.23
        return inside.double().mean()
    return torch.ones(())


class OwnInfoNCE(nn.Module):
    """InfoNCE as a module that this package does not define."""

    def forward(self, z1, z2):
        u = F.normalize(torch.cat([z1, z2]), dim=1)
        logits = (u @ u.T / 0.1).masked_fill(torch.eye(len(u), dtype=torch.bool), -torch.inf)
        return F.cross_entropy(logits, torch.arange(len(u)).roll(len(z1)))


class OwnTwoViews(TwoViews):
    def loss(self, z1, z2):
        return OwnInfoNCE()(z1, z2)


@pytest.mark.parametrize(
    "objective",
    [
        InfoNCE(), DCL(), DCLPlus(), MACL(), DualTemperature(), ArcCon(), MPT(), AlignmentUniformity(), MHE(),
        UnifiedGradient(),
    ],
    ids=lambda objective: type(objective).__name__,
)  # fmt: skip
def test_logged_gate_matches_anchor_margins(objective):
    if isinstance(objective, UnifiedGradient):
        objective.gate.margin = 0.23
    z1, z2, _, logged = step(objective, GradientDiagnostics())
    assert logged["gradient/gate"] == pytest.approx(float(expected_gate(objective, z1, z2)), abs=1e-5)


@pytest.mark.parametrize("objective", [OwnInfoNCE(), OwnTwoViews()])
def test_unknown_objective_logs_the_values_of_infonce_without_gate(objective):
    *_, expected = step(InfoNCE(), GradientDiagnostics())
    *_, logged = step(objective, GradientDiagnostics())
    assert 0 < expected.pop("gradient/gate") < 1
    assert logged.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(logged[key], value, rtol=1e-4, atol=1e-5, msg=key)


def test_compiled_objective_logs_the_values_of_the_plain_one():
    compiled = step(torch.compile(InfoNCE(), backend="eager"), GradientDiagnostics())
    assert compiled[-1] == step(InfoNCE(), GradientDiagnostics())[-1]


def test_shadow_objectives_match_direct_evaluation():
    shadows = [DCL(), InfoNCE(temperature=0.5), InfoNCE(), MPT(), SupCon()]
    objective = InfoNCE()
    _, steps = train(objective, ShadowObjectives(shadows, every=2))
    (z1, z2), labels, logged = steps[3]
    z = torch.cat([z1, z2]).double().requires_grad_()

    def value_and_gradient(objective):
        value = objective(*z.chunk(2), *([labels] if isinstance(objective, SupCon) else []))
        return float(value), torch.autograd.grad(value, z)[0].flatten()

    _, training = value_and_gradient(objective)
    assert logged["shadow/training/gradient_norm"] == pytest.approx(float(training.norm()), rel=1e-4)
    for name, shadow in zip(["DCL", "InfoNCE", "InfoNCE_2", "MPT", "SupCon"], shadows, strict=True):
        value, gradient = value_and_gradient(shadow)
        assert logged[f"shadow/{name}/value"] == pytest.approx(value, rel=1e-4)
        assert logged[f"shadow/{name}/gradient_norm"] == pytest.approx(float(gradient.norm()), rel=1e-4)
        cosine = float(training @ gradient / training.norm() / gradient.norm())
        assert logged[f"shadow/{name}/cosine"] == pytest.approx(cosine, rel=1e-4)
    assert logged["shadow/InfoNCE_2/cosine"] == pytest.approx(1)


def test_shadow_without_gradient_logs_no_cosine():
    *_, logged = step(InfoNCE(), ShadowObjectives([MPT(margin=1e-9)]), images=2, noise=0.0)
    assert logged["shadow/MPT/gradient_norm"] == logged["shadow/MPT/value"] == 0
    assert "shadow/MPT/cosine" not in logged


def test_diagnostics_do_not_change_weights_or_objective_statistics():
    alone, _ = train(MACL())
    watched, _ = train(MACL(), GradientDiagnostics(every=2, images=5), ShadowObjectives([MACL()], every=2))
    for (key, value), expected in zip(watched.state_dict().items(), alone.state_dict().values(), strict=True):
        assert torch.equal(value, expected), key
    assert watched.objective.statistics() == alone.objective.statistics()
    assert watched.objective.gather


class Indexed(InfoNCE):
    required_inputs = ("labels", "indices")

    def forward(self, z1, z2, *, labels, indices):
        return super().forward(z1, z2)


def test_objective_that_needs_indices_raises_input_error():
    message = r"^Indexed is not a function of embeddings alone \(it needs indices\)$"
    for callback in (GradientDiagnostics(), ShadowObjectives([DCL()])):
        with pytest.raises(InputError, match=message):
            train(Indexed(), callback)
    with pytest.raises(InputError, match=message):
        ShadowObjectives([Indexed()])


def test_diagnostics_use_last_accumulated_batch(monkeypatch):
    steps = []
    monkeypatch.setattr(
        "ssl_vision.callbacks.objective_eval.log", lambda trainer, *_: steps.append(trainer.global_step)
    )
    train(InfoNCE(), GradientDiagnostics(every=2, images=5), accumulate_grad_batches=3)
    assert steps == [2, 4]


def test_diagnostics_of_reclaim_use_inner_objective():
    callbacks = GradientDiagnostics(every=2, images=5), ShadowObjectives([InfoNCE(temperature=0.2)], every=2)
    _, steps = train(RECLAIM(objective=InfoNCE(temperature=0.2), k=3), *callbacks)
    (z1, z2), _, logged = steps[-1]
    statistics = gradient_statistics(InfoNCE(temperature=0.2), z1[:5], z2[:5])
    for key, value in statistics._asdict().items():
        if not torch.isnan(value):
            assert logged[f"gradient/{key}"] == pytest.approx(float(value), rel=1e-5), key
    assert logged["gradient/gate"] == pytest.approx(
        float(logit_margin(z1[:5], z2[:5], temperature=0.2).sigmoid().mean()), rel=1e-5
    )
    assert logged["shadow/InfoNCE/cosine"] == pytest.approx(1)
    assert logged["shadow/InfoNCE/gradient_norm"] == pytest.approx(logged["shadow/training/gradient_norm"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradientDiagnostics(every=0), "every must be at least 1, got 0"),
        (lambda: GradientDiagnostics(images=1), "images must be at least 2, got 1"),
        (lambda: ShadowObjectives([DCL()], every=0), "every must be at least 1, got 0"),
        (lambda: ShadowObjectives([]), "objectives: expected at least one"),
    ],
)
def test_invalid_options_raise_value_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
