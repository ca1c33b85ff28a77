"""Functions that build a fake CUDA device and run a program on it.

Two libraries stand in for libcudart, cuBLAS, cuDNN and the driver. PyTorch's dispatcher, caching allocator,
synchronisation checks, deterministic mode and CUDA graphs, Inductor and Triton's compiler are the real ones.
Kernels are counted but do not run (tests/device/fake/runtime.c).
"""

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

SOURCES = Path(__file__).parents[1] / "device" / "fake"
LIBRARIES = {"libfakecuda.so": ("runtime.c", "libraries.c"), "libcuda.so.1": ("driver.c",)}
HEADER = "include/crt/host_defines.h"
SECONDS = 280.0
"""Time limit of a program, below that of a test."""


def reason_to_skip() -> str | None:
    """Return the missing requirement of the fake device, or None if there is none."""
    if sys.platform != "linux" or torch.version.cuda is None:
        return "the fake device needs a CUDA build of PyTorch on Linux"
    if shutil.which("gcc") is None:
        return "the fake device needs gcc"
    if headers() is None:
        return "the fake device needs CUDA headers: install a toolkit, or pip install nvidia-cuda-crt"
    return None


@functools.cache
def headers() -> Path | None:
    """Return the include directory of a CUDA toolkit or of NVIDIA's packages from PyPI, or None."""
    site = Path(sysconfig.get_paths()["purelib"])
    places = [*site.glob(f"nvidia/*/{HEADER}"), *Path("/usr/local").glob(f"cuda*/{HEADER}")]
    return places[0].parents[1] if places else None


def build(cache: Path) -> Path:
    """Compile the libraries into a directory named after their sources, unless it exists.

    Args:
        cache: directory of the builds.

    Returns:
        The directory of the libraries.
    """
    include = headers()
    digest = hashlib.sha256(f"{torch.__version__} {include}".encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    target = cache / digest.hexdigest()[:16]
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache) as temp:
            for name, sources in LIBRARIES.items():
                files = [str(SOURCES / source) for source in sources]
                command = ["gcc", "-O1", "-fPIC", "-shared", "-w", f"-I{include}", f"-Wl,-soname,{name}"]
                subprocess.run([*command, "-o", f"{temp}/{name}", *files, "-ldl", "-lpthread"], check=True)
            os.symlink("libcuda.so.1", f"{temp}/libcuda.so")  # the name that Triton's launcher is linked with
            try:
                os.rename(shutil.copytree(temp, f"{temp}.complete", symlinks=True), target)
            except OSError:  # another process was faster
                shutil.rmtree(f"{temp}.complete")
    return target


def environment(libraries: Path) -> dict[str, str]:
    """Return the environment variables of a process that uses the fake device."""
    search = os.pathsep.join(filter(None, (str(libraries), os.environ.get("LD_LIBRARY_PATH"))))
    return os.environ | {
        "LD_PRELOAD": str(libraries / "libfakecuda.so"),
        "LD_LIBRARY_PATH": search,
        "TRITON_LIBCUDA_PATH": str(libraries),
        "TRITON_CACHE_DIR": str(libraries / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(libraries / "inductor"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
    }


def run(libraries: Path, program: Path, cases: Iterable[str], *, seconds: float = SECONDS) -> dict[str, Any]:
    """Run cases of a program, which ends with ``device_program.main(function)``, on the fake device.

    Returns:
        What the function returned for each case, ``{"error": message}`` if it raised an exception, or with
        the end of the output if the process ended before or during the case.
    """
    cases = list(cases)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results")
        process = subprocess.Popen(
            [sys.executable, str(program), str(results), *cases],
            env=environment(libraries),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            output = f"{process.communicate()[0]}\nstopped after {seconds:g} s"
        lines = results.read_text().splitlines() if results.exists() else []
    failure = {"error": f"the process ended with {process.returncode}: {output[-2000:]}"}
    return dict.fromkeys(cases, failure) | dict(json.loads(line) for line in lines)
