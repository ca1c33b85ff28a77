"""Tests of the seeds of training steps."""

from types import SimpleNamespace

import torch

from ssl_vision.callbacks import StepSeeds


def numbers(*, seed=0, epoch=0, batch=0, rank=0):
    trainer = SimpleNamespace(current_epoch=epoch, global_rank=rank)
    StepSeeds(seed).on_train_batch_start(trainer, SimpleNamespace(device=torch.device("cpu")), None, batch)
    return torch.rand(4)


def test_numbers_depend_only_on_seed_epoch_batch_and_process():
    first = numbers()
    changed = [numbers(**{name: 1}) for name in ("seed", "epoch", "batch", "rank")]
    assert torch.equal(numbers(), first)
    assert len({tuple(each.tolist()) for each in (first, *changed)}) == 5
