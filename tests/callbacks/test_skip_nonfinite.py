"""Tests of skipping updates whose loss or gradients are not finite."""

import csv
import math
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from settings import TINY, UNVALIDATED
from torch import nn
from torch.utils.data import DataLoader

from ssl_vision.callbacks import SkipNonFiniteSteps
from ssl_vision.main import main
from ssl_vision.methods import OptimizerRule, SimCLR
from ssl_vision.methods.optimizer import not_finite
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.folder import RunFolder


def fit(runs, *args, name="run"):
    return main(["fit", f"--runs_dir={runs}", f"--name={name}", *UNVALIDATED, *args])


def rows(run):
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def corrupt_steps(monkeypatch):
    """Return a function that corrupts the views of steps (from 0) and records the state before every step."""

    def corrupt(steps, value=math.nan, states=None):
        original, calls = SimCLR.training_step, []

        def corrupted_step(self, batch, batch_idx):
            if states is not None:
                optimizer = self.trainer.optimizers[0].state_dict()["state"]
                states.append(({k: v.clone() for k, v in self.state_dict().items()}, str(optimizer)))
            if len(calls) in steps:
                batch.views[0, 0, 0, 0] = value
            calls.append(1)
            return original(self, batch, batch_idx)

        monkeypatch.setattr(SimCLR, "training_step", corrupted_step)

    return corrupt


def test_network_without_buffers_skips_nonfinite_step(tmp_path, corrupt_steps, monkeypatch):
    (tmp_path / "no_buffers.py").write_text(
        "from torch import nn\n\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 8))\n"
    )
    monkeypatch.chdir(tmp_path)
    options = [option for option in TINY if "encoder.width" not in option]
    encoder = ["--model.encoder=no_buffers.Net", "--model.head_batch_norm=none"]
    corrupt_steps({2})
    with pytest.warns(UserWarning, match="the update is skipped"):
        assert main(["fit", "--name=run", *options, *encoder, "--trainer.max_epochs=1"]) == 0


@pytest.mark.parametrize(
    ("optimizer", "value"), [("adam", math.nan), ("adam", math.inf), ("lars", math.nan), ("muon", math.inf)]
)
def test_nonfinite_step_changes_neither_weights_nor_optimizer(tmp_path, corrupt_steps, value, optimizer):
    states = []
    corrupt_steps({2}, value, states)
    with pytest.warns(UserWarning, match="at step 3 the loss or a gradient is not finite"):
        assert fit(tmp_path, f"--model.optimizer.name={optimizer}", "--trainer.max_epochs=1") == 0
    (before, momenta), (after, momenta_after) = states[2], states[3]
    batch_counter = "num_batches_tracked"
    assert all(torch.equal(before[key], after[key]) for key in before if not key.endswith(batch_counter))
    assert momenta == momenta_after
    assert not all(torch.equal(states[1][0][key], before[key]) for key in before)
    assert [row["train/skipped_steps"] for row in rows(tmp_path / "run")] == ["", "", "1", "1"]


def test_skipped_step_after_last_logged_step_is_counted(tmp_path, corrupt_steps, capsys):
    corrupt_steps({1})
    with pytest.warns(UserWarning, match="the update is skipped"):
        assert fit(tmp_path, "--trainer.max_epochs=1", "--trainer.log_every_n_steps=10") == 0
    assert "skipped steps  1" in capsys.readouterr().out


def test_epoch_end_logs_skipped_steps_since_last_logged_step():
    """This is the situation on a CUDA device, whose counts the host reads only at logged steps."""
    skips, logged = SkipNonFiniteSteps(), []
    module = SimpleNamespace(log=lambda name, value, **_: logged.append((name, float(value))))
    skips._counts, skips._buffers, skips._finite = torch.ones(2), [], []
    with pytest.warns(UserWarning, match="the update is skipped, 1 so far"):
        skips.on_train_epoch_end(SimpleNamespace(global_step=4), module)
    assert logged == [("train/skipped_steps", 1)]


def test_consecutive_skips_end_run_and_keep_good_checkpoint(tmp_path, corrupt_steps, capsys):
    corrupt_steps(range(4, 100))
    with pytest.warns(UserWarning, match="the update is skipped"):
        assert fit(tmp_path, "--patience=3", "--trainer.max_epochs=3") == 1
    error = capsys.readouterr().err
    assert "3 times in a row" in error
    assert f"the last good checkpoint is {tmp_path}/run/checkpoints/last.ckpt" in error
    checkpoint = read_checkpoint(tmp_path / "run")
    assert checkpoint.epoch == 1
    assert all(tensor.isfinite().all() for tensor in checkpoint.state.values())


def test_finite_step_resets_consecutive_skips(tmp_path, corrupt_steps):
    corrupt_steps({1, 2, 4, 5})
    with pytest.warns(UserWarning, match="4 so far"):
        assert fit(tmp_path, "--patience=3") == 0
    assert rows(tmp_path / "run")[-1]["train/skipped_steps"] == "4"


def test_skipped_step_count_continues_after_resume(tmp_path, corrupt_steps):
    corrupt_steps({1, 5})
    for args in (["--trainer.max_epochs=1"], ["--ckpt_path=last"]):
        with pytest.warns(UserWarning, match="not finite"):
            assert fit(tmp_path, *args) == 0
    last = torch.load(RunFolder(tmp_path / "run").last, weights_only=True)
    assert last["callbacks"]["SkipNonFiniteSteps"] == {"skipped": 2}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite_detects_single_gradient_value(value):
    parameters = [torch.nn.Parameter(torch.zeros(3, 2)) for _ in range(4)]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    assert not not_finite(optimizer)  # no gradient at all
    for parameter in parameters[:3]:
        parameter.grad = torch.full((3, 2), 1e38)  # finite, but its square is not
    assert not not_finite(optimizer)
    parameters[1].grad[2, 1] = value
    assert not_finite(optimizer)


def test_accumulated_batches_count_as_one_step(tmp_path, corrupt_steps, capsys):
    """One corrupted batch in four spoils the update, and three such updates in a row end the run."""
    corrupt_steps(range(0, 100, 4))
    args = ["--trainer.accumulate_grad_batches=4", "--trainer.limit_train_batches=8", "--patience=3"]
    with pytest.warns(UserWarning, match="the update is skipped, 2 so far"):
        assert fit(tmp_path, *args) == 1
    assert "3 times in a row" in capsys.readouterr().err


def test_online_probe_stays_finite_after_skipped_step(tmp_path, corrupt_steps):
    corrupt_steps({2})
    with pytest.warns(UserWarning, match="the update is skipped"):
        assert fit(tmp_path, "--online_probe=true", "--trainer.limit_val_batches=1.0") == 0
    callbacks = torch.load(RunFolder(tmp_path / "run").last, weights_only=True)["callbacks"]
    assert callbacks["OnlineProbe"]["layer"]["weight"].isfinite().all()
    assert float(rows(tmp_path / "run")[-1]["val/online_top1"]) > 0


def test_fused_sgd_is_correct_after_skipped_first_step():
    """When a fused SGD skips its first step, torch leaves its momentum buffer uninitialised."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    module = torch.nn.ParameterList([parameter])
    rule = OptimizerRule(name="sgd", lr=0.1, weight_decay=0.0)
    plain = torch.optim.SGD
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "SGD", lambda *a, **k: plain(*a, **{**k, "fused": True}))
        patch.setattr(torch.Tensor, "is_cuda", True)
        optimizer = rule.optimizer(module)
    for bad in (1.0, 0.0):
        optimizer.found_inf = torch.tensor(bad)  # type: ignore[attr-defined]
        parameter.grad = torch.ones(3)
        optimizer.step()
    assert torch.equal(parameter.detach(), torch.full((3,), -0.1))


class ManualModule(pl.LightningModule):
    """Manual optimisation of two optimizers, the second of which has a gradient of NaN after four steps."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.layers = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])

    def training_step(self, batch, batch_idx):
        for layer, optimizer, factor in zip(self.layers, self.optimizers(), (1.0, math.nan), strict=True):
            optimizer.zero_grad()
            self.manual_backward(layer(batch).mean() * (factor if batch_idx >= 4 else 1.0))
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in self.layers]


def test_manual_optimization_skips_steps_and_ends_run(tmp_path):
    module = ManualModule()
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, callbacks=[SkipNonFiniteSteps(patience=3)],
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    with (
        pytest.warns(UserWarning, match="the update is skipped"),
        pytest.raises(FloatingPointError, match="3 times in a row"),
    ):
        trainer.fit(module, DataLoader(torch.ones(20, 2), batch_size=1))
    assert trainer.fit_loop.total_batch_idx == 6
    assert all(parameter.isfinite().all() for parameter in module.parameters())


def test_callback_accepts_validation_and_checkpoint_without_training(tmp_path):
    class Validated(ManualModule):
        def validation_step(self, batch, batch_idx):
            self.log("val/mean", self.layers[0](batch).mean())

    trainer = pl.Trainer(
        accelerator="cpu", logger=False, callbacks=[SkipNonFiniteSteps()], enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.validate(Validated(), DataLoader(torch.ones(4, 2), batch_size=2))
    trainer.save_checkpoint(tmp_path / "validated.ckpt")
    assert (tmp_path / "validated.ckpt").exists()
