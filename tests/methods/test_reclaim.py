"""Tests of SimCLR with RECLAIM: the inputs of the objective, with and without chunks, and checkpoints."""

from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from settings import TINY, resnet

from ssl_vision import load_encoder
from ssl_vision.data import Batch, Digits
from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.methods import OptimizerRule, SimCLR
from ssl_vision.objectives import RECLAIM
from ssl_vision.runs.checkpoint import read_checkpoint

SMALL = {"encoder": resnet(width=4), "hidden_dim": 16, "output_dim": 8, "seed": 0}
DIMS = {"embeddings": 8, "features": 32, "shallow": 16}
VIEWS = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.tensor([0, 1, 0, 1, 2, -1, -1, 2])
BATCH = Batch(VIEWS[:8], LABELS, torch.arange(20, 28), VIEWS)


def model(pair="layers", **options):
    """Return a float64 model with fixed BatchNorm and banks of 30 rows."""
    simclr = SimCLR(**SMALL, objective=RECLAIM(pair=pair, k=3), **options)
    simclr.objective.prepare(images=30, **DIMS)
    return simclr.double().eval()


@pytest.mark.parametrize("bn", ["joint", "per_view"])
@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("pair", ["layers", "views", "depths"])
def test_objective_receives_required_inputs(pair, chunk_size, bn):
    actual, reference = model(pair, chunk_size=chunk_size, bn=bn), model(pair)
    loss = actual.training_step(BATCH, 0)
    backbone = reference.backbone
    stages = (backbone.conv1, backbone.bn1, backbone.relu, backbone.layer1, backbone.layer2, backbone.layer3)
    shallow = VIEWS
    for stage in stages:
        shallow = stage(shallow)
    features = backbone.layer4(shallow).mean(dim=(2, 3))
    inputs = {"features": features.chunk(2), "shallow": shallow.mean(dim=(2, 3)).chunk(2)}
    inputs = {name: value for name, value in inputs.items() if name in reference.objective.required_inputs}
    z = reference.head(features).chunk(2)
    reference_loss = reference.objective(*z, indices=BATCH.indices, labels=LABELS, **inputs)
    torch.testing.assert_close(loss, reference_loss)
    loss.backward()
    reference_loss.backward()
    for parameter, expected in zip(actual.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=1e-8, atol=1e-12)
    for key, value in reference.objective.state_dict().items():
        torch.testing.assert_close(actual.objective.state_dict()[key], value, msg=key)
    assert actual.objective.u_bank.written.nonzero()[:, 0].tolist() == list(range(20, 28))
    assert not actual.features.requires_grad


def trainer(tmp_path, **options):
    return pl.Trainer(
        max_epochs=1, limit_train_batches=2, limit_val_batches=0, accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, default_root_dir=tmp_path, **options,
    )  # fmt: skip


def test_fit_prepares_banks_for_number_of_training_images(tmp_path):
    data = Digits(batch_size=32)
    simclr = SimCLR(**SMALL, objective=RECLAIM(k=3))
    initial_weight = SimCLR(**SMALL).state_dict()["backbone.conv1.weight"].clone()
    assert torch.equal(simclr.state_dict()["backbone.conv1.weight"], initial_weight)
    trainer(tmp_path).fit(simclr, data)
    assert len(simclr.objective.labels) == len(data.split("pretrain"))
    assert simclr.objective.u_bank.written.sum() == 64
    assert "objective.u_bank.rows" in simclr._ddp_params_and_buffers_to_ignore
    assert not any("backbone" in name for name in simclr._ddp_params_and_buffers_to_ignore)
    optimizer = simclr.configure_optimizers()
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in simclr.objective.critic.parameters()} <= trained


def test_missing_data_module_or_too_few_images_raise_input_error(tmp_path):
    with pytest.raises(InputError, match="RECLAIM requires the number of training images"):
        trainer(tmp_path).fit(SimCLR(**SMALL, objective=RECLAIM()), torch.utils.data.DataLoader([0]))
    with pytest.raises(InputError, match="k 5000 must be below the number of training images, 1"):
        trainer(tmp_path).fit(SimCLR(**SMALL, objective=RECLAIM(k=5000)), Digits(batch_size=32))


def test_batch_and_random_negatives_allow_k_above_image_count(tmp_path):
    for negatives in ("batch", "random"):
        simclr = SimCLR(**SMALL, objective=RECLAIM(k=5000, gamma=1.0, negatives=negatives))
        trainer(tmp_path).fit(simclr, Digits(batch_size=32))
        assert int(simclr.objective.steps) > 0


def test_compile_mode_and_cuda_graph_raise_input_error(tmp_path):
    simclr = SimCLR(**SMALL, objective=RECLAIM(pair="depths"), compile_mode="default")
    with pytest.raises(InputError, match="compile_mode does not support"):
        trainer(tmp_path).fit(simclr, Digits(batch_size=32))
    simclr = SimCLR(**SMALL, objective=RECLAIM(), cuda_graph=True, optimizer=OptimizerRule())
    simclr._trainer = SimpleNamespace(
        world_size=1, precision="32-true", gradient_clip_val=None, accumulate_grad_batches=1,
        strategy=SimpleNamespace(root_device=torch.device("cuda")), datamodule=Digits(),
    )  # fmt: skip
    with pytest.raises(InputError, match=r"cuda_graph does not support model\.objective RECLAIM"):
        simclr.setup("fit")


def test_checkpoint_loads_and_evaluates(tmp_path, capsys):
    args = ["--model.objective=RECLAIM", "--model.objective.k=5", f"--runs_dir={tmp_path}", "--name=run"]
    assert main(["fit", *args, *TINY]) == 0
    run = tmp_path / "run"
    state = read_checkpoint(run).state
    assert state["objective.u_bank.rows"].shape[1] == 32
    torch.testing.assert_close(load_encoder(run).conv1.weight, state["backbone.conv1.weight"])
    assert main(["evaluate", str(run), "--baselines=false", "--probe.epochs=1"]) == 0
    assert "trained backbone" in capsys.readouterr().out
