"""Tests of ``ssl-vision doctor``, mostly on simulated machines."""

import hashlib
import importlib
import os
import shlex
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from ssl_vision.cli import doctor
from ssl_vision.cli.doctor import Check
from ssl_vision.main import main


@pytest.fixture
def installed(monkeypatch):
    """Function that sets the installed versions of distributions; all others are absent."""

    def set_versions(**versions):
        distributions = [SimpleNamespace(name=name, version=version) for name, version in versions.items()]
        monkeypatch.setattr(metadata, "distributions", lambda: distributions)

    return set_versions


def cuda(*, available=True, build="12.8", devices=(), threads=2):
    return SimpleNamespace(
        __version__="2.12",
        version=SimpleNamespace(cuda=build),
        cuda=SimpleNamespace(
            is_available=lambda: available,
            device_count=lambda: len(devices),
            get_device_properties=devices.__getitem__,
        ),
        get_num_threads=lambda: threads,
    )


def test_requirements_are_checked_against_installed_versions(installed, monkeypatch):
    installed(torch="2.12.0", numpy="1.20")
    every = [*metadata.distributions(), SimpleNamespace(name=None, version=None)]
    monkeypatch.setattr(metadata, "distributions", lambda: every)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    lines = ["torch>=2.11,<2.16", "numpy>=1.26,<3", "rich>=14.1", 'onnx; extra == "onnx"']
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    checks = {check.name: check for check in doctor.versions()}
    assert checks["numpy"] == Check("numpy", "1.20, not <3,>=1.26", "pip install 'numpy<3,>=1.26'", True)
    assert checks["rich"] == Check("rich", "not installed", "pip install 'rich>=14.1'", True)
    assert checks["torch"].result.startswith("cannot be imported: ModuleNotFoundError: ")
    assert [name for name, check in checks.items() if check.broken] == ["torch", "numpy", "rich"]


@pytest.mark.parametrize(
    ("builds", "result", "state"),
    [
        ({}, "not installed; torch is used instead", (False, False)),
        ({"faiss_cpu": "1.9"}, "faiss-cpu 1.9", (False, False)),
        ({"faiss_gpu": "1.14"}, "faiss-gpu 1.14", (False, False)),
        ({"faiss_cpu": "1.9", "faiss_gpu": "1.14"}, "faiss-cpu 1.9 and faiss-gpu 1.14", (True, True)),
    ],
)
def test_faiss_check_reports_build(builds, result, state, installed):
    installed(**builds)
    *_, check = doctor.versions()
    assert (check.name, check.result, (bool(check.advice), check.broken)) == ("FAISS", result, state)


@pytest.mark.parametrize(
    ("driver", "build", "advice"),
    [(False, "12.8", ""), (True, None, "install torch for CUDA"), (True, "12.8", "update the NVIDIA driver")],
)
def test_gpu_check_advises_if_torch_does_not_see_gpu_of_driver(driver, build, advice, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_DRIVER", tmp_path if driver else tmp_path / "missing")
    gpu, *_ = doctor.devices(cuda(available=False, build=build))
    assert gpu.name == "GPU"
    assert gpu.advice.startswith(advice)
    assert bool(gpu.advice) == driver


def test_devices_are_described(monkeypatch, tmp_path):
    a100 = SimpleNamespace(name="A100", total_memory=40e9, major=8)
    t4 = SimpleNamespace(name="T4", total_memory=16e9, major=7)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setattr(doctor, "_CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("flags\t: avx2 avx512_bf16 amx_bf16\n")
    assert list(doctor.devices(cuda(devices=[a100, t4]))) == [
        Check("GPU 0", "A100, 40.0 GB, with bfloat16, CUDA 12.8"),
        Check("GPU 1", "T4, 16.0 GB, without bfloat16, CUDA 12.8"),
        Check("cores", "1, 2 threads in torch"),
        Check("bfloat16", "supported by the CPU (amx_bf16, avx512_bf16)"),
    ]
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert Check("cores", "7, 2 threads in torch") in list(doctor.devices(cuda()))


def test_cifar_check_reports_absent_complete_and_damaged_files(tmp_path, monkeypatch):
    root = tmp_path / "my data"
    readers = importlib.import_module("torchvision.datasets")
    sums = {name: hashlib.md5(name.encode()).hexdigest() for name in ("train", "test")}
    monkeypatch.setattr(readers.CIFAR10, "train_list", [("train", sums["train"])])
    monkeypatch.setattr(readers.CIFAR10, "test_list", [("test", sums["test"])])

    def check():
        return next(each for each in doctor.data_sets(root) if each.name == "CIFAR10")

    absent = check()
    assert (absent.broken, absent.result) == (False, f"not in {root}")
    assert absent.advice.endswith(f"pretrain/cifar10 --data.download true --data.root '{root}'")
    folder = root / readers.CIFAR10.base_folder
    folder.mkdir(parents=True)
    for name in sums:
        (folder / name).write_bytes(name.encode())
    assert check() == Check("CIFAR10", f"{folder}, complete")
    (folder / "test").write_bytes(b"tesT")
    assert (check().broken, check().result) == (True, "missing or damaged: test")
    remove, fetch = check().advice.split("; ")
    assert shlex.split(remove) == ["rm", "-r", str(folder)]
    assert shlex.split(fetch)[-2:] == ["--data.root", str(root)]


def test_doctor_passes_on_this_machine_without_writing_files(tmp_path, capsys):
    assert main(["doctor", f"--root={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert f"torch              {metadata.version('torch')}" in printed
    assert f"not in {tmp_path}" in printed
    assert printed.endswith("nothing required is broken\n")
    assert not list(tmp_path.iterdir())


def test_broken_check_exits_with_code_1(tmp_path, capsys):
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(SystemExit) as end:
        main(["doctor", f"--root={tmp_path}"])
    assert end.value.code == 1
    printed = capsys.readouterr().out
    assert "missing or damaged" in printed
    assert printed.endswith("broken: CIFAR10\n")
