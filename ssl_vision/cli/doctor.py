"""``ssl-vision doctor``, which checks packages, hardware and data sets."""

import importlib
import os
import platform
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

from packaging.requirements import Requirement

from ssl_vision._version import __version__
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.progress import Progress

_IMPORTED = ("torch", "torchvision", "pytorch_lightning")
"""Packages that fail on import rather than on installation if versions or drivers do not match."""

_CPUINFO, _DRIVER = Path("/proc/cpuinfo"), Path("/dev/nvidiactl")


class Check(NamedTuple):
    """A check and its result.

    The state ``note`` marks possible improvements, ``broken`` problems that must be fixed.
    """

    name: str
    result: str
    state: Literal["ok", "note", "broken"] = "ok"
    advice: str = ""
    """How to fix or improve it; empty if nothing has to be done."""


def run(args: Sequence[str]) -> None:
    """Check packages, devices and data sets, and report how to fix problems.

    Raises:
        SystemExit: with code 1 if something required is broken.
    """
    parser = ArgumentParser(prog="ssl-vision doctor", description=run.__doc__)
    parser.add_argument("--root", type=str, default="data", help="Directory of the data sets.")
    parser.add_argument("--runs_dir", type=str, default="runs", help="Directory for run directories.")
    options = parser.parse_args(list(args))
    with Progress("checking", lines=False):
        checks = [*packages(), *machine(Path(options.runs_dir)), *data_sets(Path(options.root).expanduser())]
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{check.state:<6}  {check.name:<{width}}  {check.result}")
        if check.advice:
            print(f"{'':<{width + 10}}to do: {check.advice}")
    broken = ", ".join(check.name for check in checks if check.state == "broken")
    print(f"broken: {broken}" if broken else "nothing required is broken")
    if broken:
        raise SystemExit(1)


def packages() -> Iterator[Check]:
    """Check Python and the required packages, and which build of FAISS is used."""
    yield Check("python", platform.python_version())
    yield Check("ssl_vision", __version__)
    for line in metadata.requires("ssl_vision") or ():
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            version = _version(needed.name)
            if version is None or not needed.specifier.contains(version, prereleases=True):
                result = f"{version}, not {needed.specifier}" if version else "not installed"
                yield Check(needed.name, result, "broken", f"pip install '{needed}'")
    for name in _IMPORTED:
        module = _loaded(name)
        if isinstance(module, str):
            advice = "pip install --force-reinstall torch torchvision"
            yield Check(name, f"cannot be imported: {module}", "broken", advice)
        else:
            yield Check(name, str(module.__version__))
    yield _faiss()


def _faiss() -> Check:
    """Check FAISS, whose two builds conflict, as both install the same files."""
    builds = [name for name in ("faiss-cpu", "faiss-gpu") if _version(name)]
    if not builds:
        advice = "pip install -e '.[cpu]' or '.[gpu]'"
        return Check("FAISS", "not installed; torch is used instead", "note", advice)
    if len(builds) > 1:
        advice = "pip uninstall -y faiss-cpu faiss-gpu, then install one of them"
        return Check("FAISS", "faiss-cpu and faiss-gpu conflict", "broken", advice)
    result, torch = f"{builds[0]} {_version(builds[0])}", _loaded("torch")
    if not hasattr(_loaded("faiss"), "IndexFlatIP"):  # of a partly removed build, a folder remains
        advice = f"pip install --force-reinstall {builds[0]}"
        return Check("FAISS", f"{result} cannot be imported", "broken", advice)
    if builds == ["faiss-cpu"] and not isinstance(torch, str) and torch.cuda.is_available():
        advice = "pip uninstall -y faiss-cpu; pip install -e '.[gpu]'"
        return Check("FAISS", f"{result}, does not use the GPU", "note", advice)
    return Check("FAISS", result)


def machine(runs_dir: Path) -> Iterator[Check]:
    """Check devices, cores, and the disk of the run directories."""
    torch = _loaded("torch")
    if not isinstance(torch, str):
        yield from _devices(torch)
        cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
        check = Check("cores", f"{cores}, {threads} threads in torch")
        advice = f"OMP_NUM_THREADS={cores} keeps threads from waiting for each other"
        yield check._replace(state="note", advice=advice) if threads > cores else check
    words = set(_CPUINFO.read_text(encoding="utf-8").split()) if _CPUINFO.exists() else set()
    flags = [name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in words]
    yield Check("bfloat16", f"supported by the CPU ({', '.join(flags)})" if flags else "slow on this CPU")
    folder = runs_dir.expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            yield Check("runs", f"{runs_dir}, {shutil.disk_usage(folder).free / 1e9:.1f} GB free")
    except OSError as error:
        result = f"{runs_dir} cannot be written ({error.strerror})"
        yield Check("runs", result, "broken", "choose another directory with --runs_dir")


def _devices(torch: Any) -> Iterator[Check]:
    build = torch.version.cuda
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            bf16 = "with" if gpu.major >= 8 else "without"
            result = f"{gpu.name}, {gpu.total_memory / 1e9:.1f} GB, {bf16} bfloat16, CUDA {build}"
            yield Check(f"GPU {index}", result)
    elif not _DRIVER.exists():
        yield Check("GPU", "none; training uses the CPU")
    elif build:
        advice = f"update the NVIDIA driver to one for CUDA {build}"
        yield Check("GPU", f"present, but torch for CUDA {build} cannot use it", "note", advice)
    else:
        yield Check(
            "GPU", "present, but torch is built without CUDA", "note", "install a CUDA build of torch"
        )


def data_sets(root: Path) -> Iterator[Check]:
    """Check the data sets below ``root``: CIFAR by MD5 sums, STL-10 by its folder."""
    readers = _loaded("torchvision.datasets")
    if isinstance(readers, str):
        return
    option = "" if root == Path("data") else f" --data.root {shlex.quote(str(root))}"
    for reader in (readers.CIFAR10, readers.CIFAR100, readers.STL10):
        name, folder = reader.__name__, root / reader.base_folder
        parts = [*reader.train_list, *reader.test_list] if name != "STL10" else []
        damaged = [part for part, md5 in parts if not readers.utils.check_integrity(folder / part, md5)]
        fetch = f"ssl-vision fit --config pretrain/{name.lower()} --data.download true{option}"
        if not folder.is_dir():
            advice = f"name its directory with --root; or download and train: {fetch}"
            yield Check(name, f"not in {root}", "note", advice)
        elif damaged:
            advice = f"rm -r {shlex.quote(str(folder))}; {fetch}"
            yield Check(name, f"missing or damaged: {', '.join(damaged)}", "broken", advice)
        else:
            yield Check(name, f"{folder}{', complete' if parts else ''}")


def _loaded(name: str) -> Any:
    """Import a module; return the reason as text if that fails."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # an incompatible binary may raise anything
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
