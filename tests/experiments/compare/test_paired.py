"""Tests that runs of one seed are pairs: every objective has the same weights, batches and views."""

import json

import pytest
import pytorch_lightning as pl
import torch
from settings import TINY

from ssl_vision.main import main

SEEN = {}


class Witness(pl.Callback):
    """Record the initial weights, and the rows and views of every batch."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_train_start(self, trainer, pl_module):
        state = pl_module.state_dict()
        network = {key: value.clone() for key, value in state.items() if not key.startswith("objective.")}
        SEEN[self.name] = {"weights": network, "indices": [], "views": []}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        SEEN[self.name]["indices"].append(batch.indices.clone())
        SEEN[self.name]["views"].append(batch.views.clone())


def tensors(name):
    entry = SEEN[name]
    return {"weights": list(entry["weights"].values()), "indices": entry["indices"], "views": entry["views"]}


@pytest.fixture(scope="module", autouse=True)
def trained(tmp_path_factory):
    """Train two epochs through the command line, with four objectives and two seeds."""
    runs = tmp_path_factory.mktemp("paired")
    for objective in ("InfoNCE", "DCL", "MACL", "BarlowTwins"):
        for seed in (0, 1):
            name = f"{objective}-{seed}"
            witness = [{"class_path": f"{__name__}.Witness", "init_args": {"name": name}}]
            options = [f"--model.objective={objective}", f"--seed_everything={seed}", f"--name={name}"]
            options += [f"--trainer.callbacks={json.dumps(witness)}", "--trainer.limit_val_batches=0"]
            assert (
                main(["fit", f"--runs_dir={runs}", *TINY, *options, "--trainer.limit_train_batches=2"]) == 0
            )
    yield
    SEEN.clear()


@pytest.mark.parametrize("objective", ["DCL", "MACL", "BarlowTwins"])
@pytest.mark.parametrize("seed", [0, 1])
def test_objectives_share_weights_batches_and_views_of_a_seed(objective, seed):
    first, second = tensors(f"InfoNCE-{seed}"), tensors(f"{objective}-{seed}")
    assert SEEN[f"InfoNCE-{seed}"]["weights"].keys() == SEEN[f"{objective}-{seed}"]["weights"].keys()
    assert (len(first["indices"]), len(first["views"])) == (4, 4)
    for kind in first:
        assert len(first[kind]) == len(second[kind])
        assert all(map(torch.equal, first[kind], second[kind])), kind


def test_seeds_differ_in_weights_batches_and_views():
    first, second = tensors("InfoNCE-0"), tensors("InfoNCE-1")
    assert not torch.equal(first["weights"][0], second["weights"][0])
    for kind in ("indices", "views"):
        assert not any(map(torch.equal, first[kind], second[kind])), kind
