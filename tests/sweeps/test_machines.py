"""How many trials run at a time, and what each may use."""

import os

import pytest

from ssl_vision.errors import InputError
from ssl_vision.sweeps.machines import gpus, slots


@pytest.fixture
def visible(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    return lambda names: monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)


def of_gpus(found):
    return [slot.get("CUDA_VISIBLE_DEVICES") for slot in found]


def test_the_gpus_that_are_visible_are_those_there_are(visible):
    visible("0, 3,GPU-x")
    assert gpus() == ["0", "3", "GPU-x"]
    visible("-1")
    assert gpus() == []


def test_slots_share_out_gpus_and_cores(visible):
    visible("0,3")
    assert of_gpus(slots(workers=None, per_gpu=None)) == ["0", "3"]
    assert of_gpus(slots(workers=None, per_gpu=3)) == ["0", "3"] * 3
    assert of_gpus(slots(workers=3, per_gpu=None)) == ["0", "3", "0"]
    assert of_gpus(slots(workers=1, per_gpu=None)) == [None]  # all of them, for torchrun within a trial
    assert {slot["OMP_NUM_THREADS"] for slot in slots(workers=3, per_gpu=None)} == {"4"}
    assert {slot["OMP_NUM_THREADS"] for slot in slots(workers=50, per_gpu=None)} == {"1"}


def test_without_a_gpu_there_is_one_slot_or_as_many_as_asked(visible):
    visible("")
    assert slots(workers=None, per_gpu=None) == [{"OMP_NUM_THREADS": "12"}]
    assert len(slots(workers=5, per_gpu=None)) == 5
    with pytest.raises(InputError, match="found no GPU"):
        slots(workers=None, per_gpu=2)


def test_all_cores_are_used_on_systems_without_affinity(visible, monkeypatch):
    visible("")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert slots(workers=2, per_gpu=None) == [{"OMP_NUM_THREADS": "4"}] * 2


def test_the_users_threads_are_left_alone(visible, monkeypatch):
    visible("")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert slots(workers=2, per_gpu=None) == [{}, {}]


def test_two_ways_to_say_how_many_are_refused(visible):
    with pytest.raises(InputError, match="use one of them"):
        slots(workers=2, per_gpu=2)
