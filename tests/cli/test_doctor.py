"""Tests of ``ssl-vision doctor``, mostly on simulated machines."""

import hashlib
import importlib
import json
import os
import shlex
import shutil
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement

from ssl_vision.cli.doctor import datasets, hardware, packages
from ssl_vision.cli.doctor.check import Check
from ssl_vision.cli.doctor.doctor import as_json, as_page
from ssl_vision.main import main

GB = 10**9


@pytest.fixture
def installed(monkeypatch):
    """Function that sets the installed versions of distributions; all others are absent."""

    def set_versions(**versions):
        distributions = {name.replace("_", "-"): version for name, version in versions.items()}

        def version(name):
            if name not in distributions:
                raise metadata.PackageNotFoundError(name)
            return distributions[name]

        monkeypatch.setattr(metadata, "version", version)

    return set_versions


@pytest.fixture
def modules(monkeypatch):
    """Function that sets what the import of some modules gives: a module, or an error to raise."""

    def set_modules(**replacements):
        original = importlib.import_module

        def load(name, *args):
            if name not in replacements:
                return original(name, *args)
            if isinstance(replacements[name], Exception):
                raise replacements[name]
            return replacements[name]

        monkeypatch.setattr(importlib, "import_module", load)

    return set_modules


def cuda(*, available=True, build="12.8", devices=()):
    return SimpleNamespace(
        version=SimpleNamespace(cuda=build),
        cuda=SimpleNamespace(
            is_available=lambda: available,
            device_count=lambda: len(devices),
            get_device_properties=devices.__getitem__,
        ),
        get_num_threads=lambda: 2,
    )


def test_requirements_are_checked_against_installed_versions(installed):
    installed(torch="2.12.0", numpy="1.20")
    required = [Requirement("torch>=2.11,<2.16"), Requirement("numpy>=1.26,<3"), Requirement("rich>=14.1")]
    assert list(packages._needed(required)) == [
        Check("numpy", "1.20, not <3,>=1.26", "broken", "pip install 'numpy<3,>=1.26'"),
        Check("rich", "not installed", "broken", "pip install 'rich>=14.1'"),
        Check("requirements", "1 of 3 met"),
    ]


def test_extras_are_listed_with_missing_packages(installed, monkeypatch):
    extras = SimpleNamespace(get_all=lambda key: ["onnx", "maps", "test"])
    monkeypatch.setattr(metadata, "metadata", lambda name: extras)
    installed(onnx="1.18", matplotlib="3.9")
    required = [
        Requirement("torch"),
        Requirement('onnx>=1.17; extra == "onnx"'),
        Requirement('onnxruntime; extra == "onnx"'),
        Requirement('matplotlib; extra == "maps"'),
        Requirement('pytest; extra == "test"'),
    ]
    assert list(packages._extras(required)) == [
        Check("extra onnx", "without onnxruntime", "note", "pip install -e '.[onnx]'"),
        Check("extra maps", "matplotlib"),
    ]


def test_package_that_fails_to_import_is_broken(modules):
    modules(torchvision=RuntimeError("operator torchvision::nms does not exist\nmore"))
    check = packages._imported("torchvision")
    assert check.state == "broken"
    assert check.found == "cannot be imported: RuntimeError: operator torchvision::nms does not exist"


EMPTY = SimpleNamespace()
"""Module of a partly removed package."""


@pytest.mark.parametrize(
    ("builds", "faiss", "gpu", "found", "state"),
    [
        ({}, ImportError("no faiss"), False, "not installed; torch is used instead", "note"),
        ({"faiss_cpu": "1.9"}, {}, False, "faiss-cpu 1.9", "ok"),
        ({"faiss_cpu": "1.9"}, {}, True, "faiss-cpu 1.9, does not use the GPU", "note"),
        ({"faiss_gpu": "1.14"}, {"get_num_gpus": lambda: 2}, True, "faiss-gpu 1.14 on 2 GPUs", "ok"),
        ({"faiss_cpu": "1.9"}, ImportError("libgomp"), False, "cannot be imported: libgomp", "broken"),
        ({"faiss_gpu": "1.14"}, RuntimeError("libcuda"), False, "cannot be imported: libcuda", "broken"),
        ({"faiss_cpu": "1.9"}, EMPTY, False, "cannot be imported: its files are missing", "broken"),
        ({"faiss_cpu": "1.9", "faiss_gpu": "1.14"}, {}, True, "faiss-cpu and faiss-gpu conflict", "broken"),
    ],
)
def test_faiss_check_reports_build_and_gpu_support(builds, faiss, gpu, found, state, installed, modules):
    installed(**builds)
    if isinstance(faiss, dict):
        faiss = SimpleNamespace(__version__=next(iter(builds.values())), IndexFlatIP=None, **faiss)
    modules(faiss=faiss, torch=cuda(available=gpu))
    check = packages._faiss()
    assert check.found.startswith(found)
    assert check.state == state
    assert bool(check.advice) == (state != "ok")


def test_gpu_check_describes_each_device():
    a100 = SimpleNamespace(name="A100", total_memory=40 * GB, major=8, minor=0)
    t4 = SimpleNamespace(name="T4", total_memory=16 * GB, major=7, minor=5)
    assert list(hardware._devices(cuda(devices=[a100, t4]))) == [
        Check("GPU 0", "A100, 40.0 GB, capability 8.0, with bfloat16, CUDA 12.8"),
        Check("GPU 1", "T4, 16.0 GB, capability 7.5, without bfloat16, CUDA 12.8"),
    ]


@pytest.mark.parametrize(
    ("driver", "build", "advice"),
    [(False, "12.8", ""), (True, None, "install a CUDA build"), (True, "12.8", "update the NVIDIA driver")],
)
def test_gpu_check_advises_if_torch_does_not_see_gpu_of_driver(driver, build, advice, monkeypatch, tmp_path):
    driver_file = tmp_path / "nvidiactl"
    if driver:
        driver_file.touch()
    monkeypatch.setattr(hardware, "_DRIVER", driver_file)
    (check,) = hardware._devices(cuda(available=False, build=build))
    assert check.advice.startswith(advice)
    assert check.state == ("note" if driver else "ok")


def test_cores_check_advises_against_more_threads_than_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert hardware._cores(cuda()).advice.startswith("OMP_NUM_THREADS=1 ")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert hardware._cores(cuda()) == Check("cores", "2, 2 threads in torch")


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("avx2 avx512_bf16 amx_bf16", "supported by the CPU (amx_bf16, avx512_bf16)"),
        ("avx2", "slow, not supported by the CPU"),
        (None, "unknown on this CPU"),
    ],
)
def test_bfloat16_support_is_read_from_cpu_flags(flags, found, monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "_CPUINFO", tmp_path / "cpuinfo")
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"flags\t: {flags}\n")
    assert hardware._bfloat16() == found


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        (None, "16.4 GB, 8.2 GB free"),
        ("max\n", "16.4 GB, 8.2 GB free"),
        ("4000000000\n", "4.0 GB, 4.0 GB free"),
    ],
)
def test_memory_check_respects_container_limit(limit, found, monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemFree: 1 kB\nMemAvailable: 8000000 kB\n")
    monkeypatch.setattr(hardware, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(hardware, "_CGROUP", tmp_path / "memory.max")
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    assert hardware._memory().found == found


def test_runs_directory_check_reports_unwritable_or_full_disk(tmp_path, monkeypatch):
    assert hardware._writable(tmp_path / "a" / "b").found.startswith(f"{tmp_path}/a/b, ")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    check = hardware._writable(tmp_path / "file" / "runs")
    assert check.state == "broken"
    assert "cannot be written" in check.found
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=GB, total=GB))
    assert hardware._writable(tmp_path).state == "note"


def cifar_reader(folder, files):
    """Return a stand-in for a torchvision dataset whose file lists have the checksums of these files."""
    sums = [(name, hashlib.md5(content).hexdigest()) for name, content in files.items()]
    return SimpleNamespace(
        base_folder=folder, train_list=sums[:1], test_list=sums[1:2],
        meta={"filename": sums[2][0], "md5": sums[2][1]},
    )  # fmt: skip


def test_cifar_check_reports_absent_complete_and_damaged_files(tmp_path):
    files = {"data": b"train", "test": b"test", "meta": b"names"}
    check = datasets._cifar("CIFAR-10", "cifar10", cifar_reader("batches", files), tmp_path)
    assert (check.state, check.found) == ("note", f"not in {tmp_path}")
    assert check.advice.endswith(f"cifar10.yaml --data.download true --data.root {tmp_path}")
    (tmp_path / "batches").mkdir()
    for name, content in files.items():
        (tmp_path / "batches" / name).write_bytes(content)
    check = datasets._cifar("CIFAR-10", "cifar10", cifar_reader("batches", files), tmp_path)
    assert check == Check("CIFAR-10", f"{tmp_path / 'batches'}, complete")
    (tmp_path / "batches" / "test").write_bytes(b"tesT")
    (tmp_path / "batches" / "meta").unlink()
    check = datasets._cifar("CIFAR-10", "cifar10", cifar_reader("batches", files), tmp_path)
    assert (check.state, check.found) == ("broken", "missing or damaged: test, meta")


def test_command_that_replaces_damaged_data_set_quotes_its_folder(tmp_path):
    root = tmp_path / "my data"
    files = {"data": b"train", "test": b"test", "meta": b"names"}
    (root / "batches").mkdir(parents=True)
    checks = [datasets._cifar("CIFAR-10", "cifar10", cifar_reader("batches", files), root)]
    (root / "stl10_binary").mkdir()
    checks.append(datasets._stl10(root / "stl10_binary"))
    for check, folder in zip(checks, ("batches", "stl10_binary"), strict=True):
        remove, fetch = check.advice.split("; ")
        assert shlex.split(remove) == ["rm", "-r", str(root / folder)]
        assert shlex.split(fetch)[-2:] == ["--data.root", str(root)]


def test_stl10_check_compares_file_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_STL10", {"train_X.bin": 3, "train_y.bin": 1, "unlabeled_X.bin": 5})
    folder = tmp_path / "stl10_binary"
    assert datasets._stl10(folder).state == "note"
    folder.mkdir()
    for name, size in (("train_X.bin", 3), ("train_y.bin", 1)):
        (folder / name).write_bytes(bytes(size))
    check = datasets._stl10(folder)
    assert (check.state, check.advice) == ("note", "train with --data.unlabeled false")
    (folder / "unlabeled_X.bin").write_bytes(bytes(4))
    assert datasets._stl10(folder).found.endswith("sizes differ from the official files: unlabeled_X.bin")
    (folder / "unlabeled_X.bin").write_bytes(bytes(5))
    assert datasets._stl10(folder) == Check("STL-10", f"{folder}, complete")
    (folder / "train_y.bin").unlink()
    assert datasets._stl10(folder).state == "broken"


SECRET = "0123456789abcdef" * 3


@pytest.mark.parametrize(
    ("environment", "file", "found"),
    [
        ({}, "", "online with --wandb true, no key for api.wandb.ai"),
        ({"WANDB_API_KEY": SECRET}, "", "online with --wandb true, a key for api.wandb.ai"),
        ({}, "machine api.wandb.ai login user password " + SECRET, "online with --wandb true, a key for"),
        ({}, "machine elsewhere login user password " + SECRET, "online with --wandb true, no key for"),
        (
            {"WANDB_BASE_URL": "https://own.org:8080"},
            "machine own.org login u password x",
            "online with --wandb true, a key",
        ),
        ({"WANDB_MODE": "offline"}, "", "offline with --wandb true, no key for api.wandb.ai"),
    ],
)
def test_wandb_check_reports_mode_and_does_not_reveal_key(environment, file, found, monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    (tmp_path / "netrc").write_text(file)
    (check,) = datasets.wandb()
    assert check.found.startswith(found)
    assert (check.state == "note") == ("online" in found and "no key" in found)
    assert SECRET not in str(check)


FOUND = {
    "software": [Check("torch", "2.12"), Check("FAISS", "absent", "note", "pip install it")],
    "machine": [Check("runs", "cannot be written", "broken", "elsewhere")],
}


def test_page_lists_every_check_with_its_advice():
    assert as_page(FOUND) == (
        "software\n"
        "  ok      torch  2.12\n"
        "  note    FAISS  absent\n"
        "                 to do: pip install it\n"
        "\n"
        "machine\n"
        "  broken  runs   cannot be written\n"
        "                 to do: elsewhere\n"
        "\n"
        "broken: runs"
    )


def test_json_lists_every_check():
    rows = json.loads(as_json(FOUND))
    assert rows[1] == {
        "group": "software", "name": "FAISS", "found": "absent", "state": "note", "advice": "pip install it"
    }  # fmt: skip
    assert len(rows) == 3


def test_doctor_passes_on_this_machine_without_writing_files(tmp_path, capsys):
    assert main(["doctor", f"--root={tmp_path}", f"--runs_dir={tmp_path}/runs", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["torch"]["found"] == torch.__version__
    assert rows["CIFAR-10"]["found"] == f"not in {tmp_path}"
    assert rows["digits"]["state"] == "ok"
    assert not list(tmp_path.iterdir())


def test_broken_check_exits_with_code_1(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as end:
        main(["doctor", f"--root={tmp_path}", f"--runs_dir={tmp_path}/file/runs"])
    assert end.value.code == 1
    assert capsys.readouterr().out.endswith("broken: runs\n")
