"""Tests of training with a CUDA graph, whose recording needs a CUDA device and is emulated here."""

import copy
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EMAWeightAveraging
from settings import resnet

from ssl_vision import objectives as o
from ssl_vision.data import Digits
from ssl_vision.errors import InputError
from ssl_vision.methods import OptimizerRule, SimCLR
from ssl_vision.methods.cuda_graph import GraphedTraining

SMALL = {"encoder": resnet(width=4), "hidden_dim": 16, "output_dim": 8, "seed": 0}


@pytest.fixture
def recordings(monkeypatch):
    """Emulate recording on the CPU, where a replay repeats the step on the fixed inputs; list recordings."""
    recorders = []

    def record(self, batch):
        recorders.append(self)
        static_batch, loss = copy.deepcopy(batch), torch.zeros(())
        return static_batch, lambda: loss.copy_(self._step(static_batch)), loss

    monkeypatch.setattr(GraphedTraining, "_record", record)
    monkeypatch.setattr(GraphedTraining, "_on_side_stream", GraphedTraining._step)
    monkeypatch.setattr(GraphedTraining, "check", lambda method: None)
    return recorders


class StopAfter(pl.Callback):
    def __init__(self, epochs):
        self.epochs = epochs

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch + 1 == self.epochs:
            trainer.should_stop = True


def fitted(
    tmp_path, *, cuda_graph, optimizer="sgd", objective=None, stop=None, ckpt_path=None, sizes=None, epochs=3,
    callbacks=(), statistics="batch", **rule,
):  # fmt: skip
    model = SimCLR(
        **SMALL,
        objective=objective or o.MACL(),
        cuda_graph=cuda_graph,
        encoder_statistics=statistics,
        optimizer=OptimizerRule(name=optimizer, lr=0.1, schedule="cosine", warmup_epochs=1, **rule),
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=[StopAfter(stop), *callbacks],
        limit_train_batches=3,
        limit_val_batches=0,
        log_every_n_steps=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    data = Digits(batch_size=32, seed=0, progressive_resizing=sizes)
    trainer.fit(model, data, ckpt_path=ckpt_path, weights_only=True)
    return model, trainer


def assert_states_close(replayed, plain):
    """Assert that weights agree except for the learning rate's rounding to float32."""
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(replayed.state_dict()[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "lars"])
def test_replayed_run_matches_plain_run(tmp_path, recordings, optimizer):
    plain, plain_trainer = fitted(tmp_path, cuda_graph=False, optimizer=optimizer)
    replayed, replayed_trainer = fitted(tmp_path, cuda_graph=True, optimizer=optimizer)
    assert len(recordings) == 1
    assert replayed_trainer.global_step == plain_trainer.global_step == 9
    assert_states_close(replayed, plain)
    losses = [float(trainer.logged_metrics["train/loss"]) for trainer in (plain_trainer, replayed_trainer)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    rates = [
        float(trainer.optimizers[0].param_groups[0]["lr"]) for trainer in (plain_trainer, replayed_trainer)
    ]
    assert rates[1] == pytest.approx(rates[0], rel=1e-6)


def test_replayed_run_with_fixed_statistics_matches_plain_run(tmp_path, recordings):
    plain, replayed = (fitted(tmp_path, cuda_graph=graph, statistics="fixed")[0] for graph in (False, True))
    assert len(recordings) == 1
    assert not replayed.backbone.bn1.num_batches_tracked
    assert_states_close(replayed, plain)


def test_replayed_run_with_frozen_epochs_matches_plain_run(tmp_path, recordings):
    plain, replayed = (
        fitted(tmp_path, cuda_graph=graph, epochs=5, freeze_epochs=2)[0] for graph in (False, True)
    )
    assert len(recordings) == 2  # in the second epoch, and again when the encoder is in training mode
    assert_states_close(replayed, plain)


def test_replayed_run_with_averaged_weights_matches_plain_run(tmp_path, recordings):
    plain, replayed = (
        fitted(tmp_path, cuda_graph=graph, callbacks=[EMAWeightAveraging(decay=0.8)])[0]
        for graph in (False, True)
    )
    assert len(recordings) == 1
    assert_states_close(replayed, plain)  # the averages, which are copied when training ends


def test_replayed_run_with_new_view_size_matches_plain_run(tmp_path, recordings, monkeypatch):
    recorded_before = []

    def on_side_stream(self, batch):
        recorded_before.append(len(recordings))
        return self._step(batch)

    monkeypatch.setattr(GraphedTraining, "_on_side_stream", on_side_stream)
    (plain, _), (replayed, _) = (
        fitted(tmp_path, cuda_graph=graph, sizes={2: 4}, epochs=4) for graph in (False, True)
    )
    assert recorded_before == [0] * 3 + [1] * 3  # eager steps, which are all of the first epoch of each size
    assert len(recordings) == 2
    assert_states_close(replayed, plain)


class HalvedEachEpoch(o.TemperatureRule):
    """A custom rule whose number is fixed in a recording."""

    def forward(self, positive):
        return positive.new_full((), 0.5 / 2**self.epoch)


@pytest.mark.parametrize(
    ("rule", "count"),
    [(o.CosineInEpoch(0.1, 0.5, epochs=3), 1), (HalvedEachEpoch(), 2)],  # the first epoch is all warm-up
    ids=["tensor", "number"],
)
def test_epoch_dependent_temperature_is_recorded_again_only_if_it_is_a_number(
    tmp_path, recordings, rule, count
):
    plain, replayed = (
        fitted(tmp_path, cuda_graph=graph, objective=o.InfoNCE(temperature=rule))[0]
        for graph in (False, True)
    )
    assert len(recordings) == count
    assert_states_close(replayed, plain)


class EpochScaledObjective(o.Objective):
    """A custom objective, scaled by a number that depends on the epoch."""

    scale = 1.0

    def set_epoch(self, epoch):
        self.scale = 1.0 + epoch

    def forward(self, z1, z2):
        return self.scale * (z1 - z2).square().mean()


def test_epoch_dependent_objective_is_recorded_each_epoch(tmp_path, recordings):
    fitted(tmp_path, cuda_graph=True, objective=EpochScaledObjective())
    assert len(recordings) == 2  # the first epoch is all warm-up


def test_run_with_cuda_graph_resumes_from_checkpoint(tmp_path, recordings):
    def run(folder, stop, **options):
        return fitted(folder, cuda_graph=True, stop=stop, **options)

    uninterrupted, _ = run(tmp_path / "whole", 3)
    _, trainer = run(tmp_path / "part", 2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    resumed, trainer = run(tmp_path / "rest", 3, ckpt_path=tmp_path / "two.ckpt")
    assert trainer.global_step == 9
    assert_states_close(resumed, uninterrupted)


@pytest.mark.parametrize(
    ("trainer", "model", "what"),
    [
        ({}, {}, "a CPU"),
        ({"gradient_clip_val": 1.0}, {}, "trainer.gradient_clip_val"),
        ({"accumulate_grad_batches": 2}, {}, "trainer.accumulate_grad_batches"),
        ({"precision": "16-mixed"}, {}, "trainer.precision 16-mixed"),
        ({"world_size": 2}, {}, "2 processes"),
        ({}, {"chunk_size": 8}, "model.chunk_size"),
        ({}, {"compile_mode": "reduce-overhead"}, "model.compile_mode reduce-overhead"),
        ({}, {"optimizer": OptimizerRule(name="muon")}, "optimizer.name muon"),
    ],
)
def test_unsupported_settings_raise_input_error(trainer, model, what):
    method = SimCLR(**SMALL, cuda_graph=True, **model)
    device = torch.device("cpu" if what == "a CPU" else "cuda")
    defaults = {
        "world_size": 1,
        "precision": "bf16-mixed",
        "gradient_clip_val": None,
        "accumulate_grad_batches": 1,
        "strategy": SimpleNamespace(root_device=device),
    }
    method._trainer = SimpleNamespace(**(defaults | trainer))
    with pytest.raises(InputError, match=f"cuda_graph does not support {what}"):
        method.setup("fit")
