"""Tests of the number of concurrent trials and of the GPUs and CPU threads of each."""

import os

import pytest

from ssl_vision.errors import InputError
from ssl_vision.experiments.sweeps.runner import slots


@pytest.fixture
def visible(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    return lambda names: monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)


def gpu_of_each_slot(trial_slots):
    return [slot.get("CUDA_VISIBLE_DEVICES") for slot in trial_slots]


def test_slots_share_out_gpus_and_cores(visible):
    visible("0, 3")
    assert gpu_of_each_slot(slots(workers=None, per_gpu=None)) == ["0", "3"]
    assert gpu_of_each_slot(slots(workers=None, per_gpu=3)) == ["0", "3"] * 3
    assert gpu_of_each_slot(slots(workers=3, per_gpu=None)) == ["0", "3", "0"]
    assert gpu_of_each_slot(slots(workers=1, per_gpu=None)) == [
        None
    ]  # one trial sees all GPUs, for torchrun within it
    assert {slot["OMP_NUM_THREADS"] for slot in slots(workers=3, per_gpu=None)} == {"4"}
    assert {slot["OMP_NUM_THREADS"] for slot in slots(workers=50, per_gpu=None)} == {"1"}


def test_slots_without_gpu_default_to_one_and_reject_per_gpu(visible):
    visible("-1")
    assert slots(workers=None, per_gpu=None) == [{"OMP_NUM_THREADS": "12"}]
    assert len(slots(workers=5, per_gpu=None)) == 5
    with pytest.raises(InputError, match="found no GPU"):
        slots(workers=None, per_gpu=2)


def test_all_cores_are_used_on_systems_without_affinity(visible, monkeypatch):
    visible("")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert slots(workers=2, per_gpu=None) == [{"OMP_NUM_THREADS": "4"}] * 2


def test_user_setting_of_omp_num_threads_is_kept(visible, monkeypatch):
    visible("")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert slots(workers=2, per_gpu=None) == [{}, {}]


def test_workers_and_per_gpu_together_raise_input_error(visible):
    with pytest.raises(InputError, match="use one of them"):
        slots(workers=2, per_gpu=2)
