"""Tests of the processes of trials, of their number, and of the GPUs and CPU threads of each."""

import os
import subprocess
import sys
import time

import pytest
from sweeping import until

from ssl_vision.experiments.sweeps.launcher import Process, slots


@pytest.fixture
def visible(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    return lambda names: monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)


def gpu_of_each_slot(trial_slots):
    return [slot.get("CUDA_VISIBLE_DEVICES") for slot in trial_slots]


def test_slots_share_out_gpus_and_cores(visible):
    visible("0, 3")
    assert gpu_of_each_slot(slots(None)) == ["0", "3"]
    assert gpu_of_each_slot(slots(6)) == ["0", "3"] * 3
    assert gpu_of_each_slot(slots(3)) == ["0", "3", "0"]
    assert gpu_of_each_slot(slots(1)) == [None]  # one trial sees all GPUs, for torchrun within it
    assert {slot["OMP_NUM_THREADS"] for slot in slots(3)} == {"4"}
    assert {slot["OMP_NUM_THREADS"] for slot in slots(50)} == {"1"}


def test_slots_without_gpu_default_to_one(visible):
    visible("-1")
    assert slots(None) == [{"OMP_NUM_THREADS": "12"}]
    assert len(slots(5)) == 5


def test_all_cores_are_used_on_systems_without_affinity(visible, monkeypatch):
    visible("")
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert slots(2) == [{"OMP_NUM_THREADS": "4"}] * 2


def test_user_setting_of_omp_num_threads_is_kept(visible, monkeypatch):
    visible("")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert slots(2) == [{}, {}]


def test_log_of_process_has_its_command_and_output(tmp_path):
    log = tmp_path / "run.log"
    for code, text in ((0, "first"), (2, "second")):
        process = Process([sys.executable, "-c", f"import sys; print('{text}'); sys.exit({code})"], log, {})
        while process.poll() is None:
            time.sleep(0.01)
        assert (process.poll(), process.last_line()) == (code, text)
    lines = log.read_text().splitlines()
    assert lines[0].startswith(f"$ {sys.executable} -c ")
    assert lines[1::2] == ["first", "second"]


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_process_receives_sigterm_when_its_parent_is_killed(tmp_path):
    (tmp_path / "waiting.py").write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(pathlib.Path('saved').touch()))\n"
        "pathlib.Path('ready').touch()\n"
        "time.sleep(100)\n"
    )
    code = "from ssl_vision.experiments.sweeps.launcher import Process; import os, pathlib, sys, time\n"
    code += f"os.chdir({str(tmp_path)!r}); log = pathlib.Path('log')\n"
    code += "process = Process([sys.executable, 'waiting.py'], log, {}); time.sleep(100)"
    parent = subprocess.Popen([sys.executable, "-c", code])
    until((tmp_path / "ready").exists)
    parent.kill()
    parent.wait()
    until((tmp_path / "saved").exists)
