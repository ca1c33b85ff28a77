"""Tests on a CUDA device: results match those of the CPU, and the commands run."""

import json
from dataclasses import replace

import pytest
import pytorch_lightning as pl
import torch
from contrastive_classes import PRESETS
from equal import difference_of_runs
from settings import TINY, resnet

from ssl_vision import objectives as o
from ssl_vision.callbacks import ObjectiveStatistics
from ssl_vision.data import Digits, Views
from ssl_vision.main import main
from ssl_vision.methods import OptimizerRule, SimCLR

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

EAGER = Views(compile=False)
TINY_NETWORK = {"encoder": resnet(width=4), "hidden_dim": 16, "output_dim": 8, "seed": 0}
OBJECTIVES = [*PRESETS, o.ArcCon]


@pytest.mark.parametrize("tau", [0.1, 0.01])
@pytest.mark.parametrize("n", [64, 400])
@pytest.mark.parametrize("preset", OBJECTIVES, ids=lambda c: c.__name__)
def test_contrastive_gradients_on_gpu_match_float64(preset, n, tau):
    g = torch.Generator().manual_seed(0)
    z1 = torch.randn(n, 64, generator=g, dtype=torch.float64)
    z2 = z1 + 3 * torch.randn(n, 64, generator=g, dtype=torch.float64)

    def gradient(device, dtype):
        a, b = (z.to(device, dtype).requires_grad_() for z in (z1, z2))
        return torch.cat(torch.autograd.grad(preset(temperature=tau)(a, b), (a, b))).cpu().double()

    exact, single = gradient("cpu", torch.float64), gradient("cuda", torch.float32)
    assert (single - exact).norm() / exact.norm() < (5e-5 if tau == 0.01 else 5e-6)


@pytest.mark.parametrize("cls", [*o.TwoViews.__subclasses__()], ids=lambda c: c.__name__)
def test_two_view_objective_gradients_on_gpu_match_float64(cls):
    g = torch.Generator().manual_seed(0)
    z1 = torch.randn(64, 32, generator=g, dtype=torch.float64)
    z2 = z1 + torch.randn(64, 32, generator=g, dtype=torch.float64)
    objective = o.MET() if cls is o.HardestTriplet else cls()

    def gradient(device, dtype):
        a, b = (z.to(device, dtype).requires_grad_() for z in (z1, z2))
        return torch.cat(torch.autograd.grad(objective(a, b), (a, b))).cpu().double()

    exact, single = gradient("cpu", torch.float64), gradient("cuda", torch.float32)
    assert (single - exact).norm() / exact.norm() < 1e-4


@pytest.mark.parametrize("options", [{}, {"size": 20, "blur": 0.5, "degrees": 15.0}], ids=["plain", "all"])
def test_views_on_gpu_match_cpu(options):
    views = replace(EAGER, **options)
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (64, 3, 32, 32), generator=g, dtype=torch.uint8)
    rows = torch.arange(64)
    on_cpu = views(images, rows, seed=3, epoch=5)
    on_gpu = views(images.cuda(), rows.cuda(), seed=3, epoch=5).cpu()
    torch.testing.assert_close(on_gpu, on_cpu, rtol=0, atol=1e-4)


VIEWS = {"size": 24, "blur": 0.5, "degrees": 10.0, "solarize": 0.1}


def augment(views, **options):
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (256, 3, 32, 32), generator=g, dtype=torch.uint8).cuda()
    return views(images, torch.arange(256, device="cuda"), seed=3, epoch=5, **options)


@pytest.mark.parametrize("options", [{"size": 24}, {"size": 24, "blur": 0.5}], ids=["plain", "blur"])
def test_compiled_views_match_eager_views(options):
    torch.testing.assert_close(
        augment(Views(**options)), augment(replace(EAGER, **options)), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("compile", [False, True])
def test_views_support_bfloat16_and_channels_last(compile):
    options = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
    half, full = augment(Views(compile=compile), **options), augment(Views(compile=compile))
    assert half.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(half.float(), full, rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_views_ignore_matmul_precision_and_autocast(precision):
    views = replace(EAGER, blur=0.5)
    exact = augment(views)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with torch.autocast("cuda", torch.bfloat16):
            assert torch.equal(augment(views), exact)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("compile", [False, True])
def test_views_do_not_wait_for_the_device(compile):
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (64, 3, 32, 32), generator=g, dtype=torch.uint8).cuda()
    rows = torch.arange(64, device="cuda")
    views = Views(**VIEWS, compile=compile)
    views(images, rows, seed=0, epoch=0)  # kernels are chosen or compiled in the first call
    torch.cuda.set_sync_debug_mode("error")
    try:
        views(images, rows, seed=0, epoch=0)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_compiled_views_launch_few_kernels():
    def launches(views):
        augment(views)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            augment(views)
        return sum(event.count for event in profile.key_averages() if not event.key.startswith("Mem"))

    assert launches(Views()) < launches(EAGER) / 4


def test_a_step_does_not_wait_for_the_device():
    data = Digits().split("train")
    images, rows = data.images[:64].cuda(), torch.arange(64).cuda()
    objective, views = o.MACL(), Digits().views
    embed = torch.nn.Linear(3 * 16 * 16, 32).cuda()

    def step():
        objective(*embed(views(images, rows, seed=0, epoch=0).flatten(1)).chunk(2)).backward()
        return objective.statistics()

    step()  # the first step fills caches and chooses kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


class ForbidSynchronization(pl.Callback):
    """Turns any wait for the device into an error from the third step on."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx >= 2:
            torch.cuda.set_sync_debug_mode("error")

    def on_train_batch_end(self, *args):
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_step_under_lightning_does_not_wait_for_the_device(tmp_path, name, precision):
    model = SimCLR(encoder=resnet(width=8), objective=o.MACL(), optimizer=OptimizerRule(name=name))
    trainer = pl.Trainer(
        max_epochs=1, limit_val_batches=0, accelerator="gpu", devices=1, precision=precision, logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
        callbacks=[ForbidSynchronization(), ObjectiveStatistics()], default_root_dir=tmp_path,
    )  # fmt: skip
    try:
        trainer.fit(model, Digits(batch_size=64))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trainer.optimizers[0].param_groups[0]["fused"]


def test_fit_and_evaluate_run_on_gpu(tmp_path):
    device = [arg for arg in TINY if "accelerator" not in arg] + ["--trainer.accelerator=gpu"]
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *device, "--trainer.devices=1"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--device=cuda"]) == 0
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())


@pytest.mark.parametrize("compile_mode", [None, "default"])
def test_cuda_graph_run_matches_eager_run(tmp_path, monkeypatch, compile_mode):
    """The learning rate is small, because rounding errors grow 20-fold in each step at 1e-3."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)

    def weights(model):
        return torch.cat([weight.detach().double().flatten().cpu() for weight in model.parameters()])

    def fitted(cuda_graph):
        model = SimCLR(
            **TINY_NETWORK,
            objective=o.InfoNCE(temperature=o.CosineInEpoch(0.1, 0.5, epochs=3)),
            compile_mode=compile_mode,
            cuda_graph=cuda_graph,
            optimizer=OptimizerRule(name="sgd", lr=1e-5, schedule="cosine", warmup_epochs=1),
        )
        initial = weights(model)
        trainer = pl.Trainer(
            accelerator="gpu", devices=1, max_epochs=3, limit_train_batches=4, limit_val_batches=0,
            log_every_n_steps=1, logger=False, enable_progress_bar=False, default_root_dir=tmp_path,
            callbacks=[ObjectiveStatistics()],
        )  # fmt: skip
        trainer.fit(model, Digits(batch_size=32, seed=0))
        return weights(model) - initial, trainer

    plain, plain_trainer = fitted(False)
    recorded, recorded_trainer = fitted(True)
    assert recorded_trainer.global_step == plain_trainer.global_step == 12
    assert (recorded - plain).norm() < 0.05 * plain.norm()
    for key, value in plain_trainer.logged_metrics.items():
        assert float(recorded_trainer.logged_metrics[key]) == pytest.approx(float(value), rel=1e-3)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "lars"])
def test_every_optimizer_trains_with_cuda_graph(tmp_path, name):
    model = SimCLR(**TINY_NETWORK, cuda_graph=True, optimizer=OptimizerRule(name=name))
    before = model.backbone.conv1.weight.clone()
    pl.Trainer(
        accelerator="gpu", devices=1, max_steps=8, limit_val_batches=0, precision="bf16-mixed",
        logger=False, enable_progress_bar=False, default_root_dir=tmp_path,
    ).fit(model, Digits(batch_size=32, seed=0))  # fmt: skip
    assert torch.isfinite(model.backbone.conv1.weight).all()
    assert not torch.equal(model.backbone.conv1.weight.cpu(), before)


def test_resumed_run_equals_uninterrupted_run_in_deterministic_mode(tmp_path):
    def fit(name, *more):
        args = [*TINY, "--trainer.accelerator=gpu", "--trainer.deterministic=true", "--online_probe=true"]
        assert main(["fit", f"--runs_dir={tmp_path}", f"--name={name}", *args, *more]) == 0

    fit("whole")
    fit("cut", "--trainer.max_steps=3")
    fit("cut", "--ckpt_path=last")
    assert not difference_of_runs(tmp_path / "cut", tmp_path / "whole")


def test_nonfinite_step_is_skipped_on_gpu(tmp_path, monkeypatch):
    step, calls, states = SimCLR.training_step, [], []

    def step_with_nan(self, batch, batch_idx):
        states.append({key: value.clone() for key, value in self.state_dict().items()})
        if len(calls) == 2:
            batch.views[0, 0, 0, 0] = float("nan")
        calls.append(1)
        return step(self, batch, batch_idx)

    monkeypatch.setattr(SimCLR, "training_step", step_with_nan)
    args = [*TINY, "--trainer.accelerator=gpu", "--trainer.max_epochs=1"]
    with pytest.warns(UserWarning, match="the update is skipped, 1 so far"):
        assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *args]) == 0
    counted = "num_batches_tracked"
    assert all(torch.equal(states[2][key], states[3][key]) for key in states[2] if not key.endswith(counted))
