"""``ssl-vision doctor``: versions of packages, devices and data sets."""

import importlib
import platform
import shlex
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement

from ssl_vision._version import __version__
from ssl_vision.cli.parser import ArgumentParser
from ssl_vision.optional import available_cores
from ssl_vision.progress import Progress

_CPUINFO, _DRIVER = Path("/proc/cpuinfo"), Path("/dev/nvidiactl")


class Check(NamedTuple):
    """A check and its result."""

    name: str
    result: str
    advice: str = ""
    """How to fix or improve it; empty if nothing has to be done."""
    broken: bool = False
    """True for a problem that must be fixed."""


def run(args: Sequence[str]) -> None:
    """Check packages, devices and data sets, and report how to fix problems.

    Raises:
        SystemExit: with code 1 if something required is broken.
    """
    parser = ArgumentParser(prog="ssl-vision doctor", description=run.__doc__)
    parser.add_argument("--root", type=str, default="data", help="Directory of the data sets.")
    options = parser.parse_args(list(args))
    with Progress("checking", lines=False):
        checks = list(versions())
        if not any(check.broken for check in checks):
            checks += devices(importlib.import_module("torch"))
            checks += data_sets(Path(options.root).expanduser())
    width = max(len(check.name) for check in checks)
    for check in checks:
        state = "broken" if check.broken else "note" if check.advice else "ok"
        print(f"{state:<6}  {check.name:<{width}}  {check.result}")
        if check.advice:
            print(f"{'':<{width + 10}}to do: {check.advice}")
    broken = ", ".join(check.name for check in checks if check.broken)
    print(f"broken: {broken}" if broken else "nothing required is broken")
    if broken:
        raise SystemExit(1)


def versions() -> Iterator[Check]:
    """Check Python and the required packages, and which build of FAISS is used."""
    named = [each for each in metadata.distributions() if each.name]  # an interrupted pip leaves one without
    installed = {each.name.lower().replace("_", "-"): each.version for each in named}
    yield Check("python", platform.python_version())
    yield Check("ssl_vision", __version__)
    for line in metadata.requires("ssl_vision") or ():
        needed = Requirement(line)
        version = installed.get(needed.name.lower().replace("_", "-"))
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        if version is None or not needed.specifier.contains(version, prereleases=True):
            result = f"{version}, not {needed.specifier}" if version else "not installed"
            yield Check(needed.name, result, f"pip install '{needed}'", broken=True)
        else:
            yield Check(needed.name, version)
    try:
        importlib.import_module("pytorch_lightning")  # with torch and torchvision
    except Exception as error:  # an incompatible binary may raise anything
        result = f"cannot be imported: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        yield Check("torch", result, "pip install --force-reinstall torch torchvision", broken=True)
    builds = [f"{name} {installed[name]}" for name in ("faiss-cpu", "faiss-gpu") if name in installed]
    conflict = len(builds) > 1
    advice = "they conflict: pip uninstall -y faiss-cpu faiss-gpu, then install one" if conflict else ""
    yield Check("FAISS", " and ".join(builds) or "not installed; torch is used instead", advice, conflict)


def devices(torch: Any) -> Iterator[Check]:
    """Check GPUs, cores, and the support of bfloat16 by the CPU."""
    build = torch.version.cuda
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        bf16 = "with" if gpu.major >= 8 else "without"
        result = f"{gpu.name}, {gpu.total_memory / 1e9:.1f} GB, {bf16} bfloat16, CUDA {build}"
        yield Check(f"GPU {index}", result)
    if not torch.cuda.is_available() and _DRIVER.exists():
        advice = f"update the NVIDIA driver to one for CUDA {build}" if build else "install torch for CUDA"
        yield Check("GPU", "present, but torch cannot use it", advice)
    elif not torch.cuda.is_available():
        yield Check("GPU", "none; training uses the CPU")
    yield Check("cores", f"{available_cores()}, {torch.get_num_threads()} threads in torch")
    words = set(_CPUINFO.read_text(encoding="utf-8").split()) if _CPUINFO.exists() else set()
    flags = [name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in words]
    yield Check("bfloat16", f"supported by the CPU ({', '.join(flags)})" if flags else "slow on this CPU")


def data_sets(root: Path) -> Iterator[Check]:
    """Check the data sets below ``root``: CIFAR by MD5 sums, STL-10 by its folder."""
    readers = importlib.import_module("torchvision.datasets")
    option = "" if root == Path("data") else f" --data.root {shlex.quote(str(root))}"
    for reader in (readers.CIFAR10, readers.CIFAR100, readers.STL10):
        name, folder = reader.__name__, root / reader.base_folder
        parts = [*reader.train_list, *reader.test_list] if name != "STL10" else []
        damaged = [part for part, md5 in parts if not readers.utils.check_integrity(folder / part, md5)]
        fetch = f"ssl-vision fit --config pretrain/{name.lower()} --data.download true{option}"
        if not folder.is_dir():
            advice = f"name its directory with --root; or download and train: {fetch}"
            yield Check(name, f"not in {root}", advice)
        elif damaged:
            advice = f"rm -r {shlex.quote(str(folder))}; {fetch}"
            yield Check(name, f"missing or damaged: {', '.join(damaged)}", advice, broken=True)
        else:
            yield Check(name, f"{folder}{', complete' if parts else ''}")
