"""Tests of features mapped from a file: the same results as features in memory, with bounded memory."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest
import torch

import ssl_vision.evaluation.features
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.features import empty_rows, in_parts, is_finite, is_large
from ssl_vision.main import main
from ssl_vision.metrics.rows import LazyRows

PROTOCOL = """
layers: [backbone, projector]
measurements:
  - knn: {k: 5}
  - knn: {k: 5, vote: majority, distance: euclidean}
  - linear: {epochs: 2}
  - linear: {epochs: 2, views: 2, augmentation: crop}
  - grid: {epochs: 2, lrs: [0.1, 1.0]}
  - logistic: {max_iter: 5}
  - geometry: {}
"""


@pytest.fixture
def run(tiny_run, tmp_path):
    return shutil.copytree(tiny_run, tmp_path / "tiny")


def evaluated(run, *options):
    assert main(["evaluate", str(run), *options]) == 0
    return json.loads((run / "evaluation.json").read_text())


def conditions(rows):
    return [{name: value for name, value in row.items() if name != "value"} for row in rows]


def test_mapped_features_give_same_rows_as_features_in_memory(run, tmp_path, monkeypatch):
    (tmp_path / "p.yaml").write_text(PROTOCOL)
    options = [f"--protocol={tmp_path / 'p.yaml'}", "--baselines=false", "--report=false"]
    expected = evaluated(run, *options, "--cache=false")
    extracted, plain = [], FeatureExtractor.plain
    monkeypatch.setattr(
        FeatureExtractor, "plain", lambda *args: extracted.append(plain(*args)) or extracted[-1]
    )
    monkeypatch.setattr(ssl_vision.evaluation.features, "IN_MEMORY", 1000)
    for cache in (False, True, True):  # in a temporary file, written to the cache, and mapped from it
        (run / "evaluation.json").unlink()
        rows = evaluated(run, *options, f"--cache={cache}")
        assert conditions(rows) == conditions(expected)
        assert [row["value"] for row in rows] == pytest.approx(
            [row["value"] for row in expected], abs=1 / 360
        )
        assert extracted
        assert all(isinstance(features, LazyRows) for features in extracted)
        extracted.clear()


def test_only_large_rows_are_in_an_unnamed_file(tmp_path, monkeypatch):
    monkeypatch.setattr(ssl_vision.evaluation.features, "IN_MEMORY", 4 * 12)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    small, large = empty_rows((4, 3)), empty_rows((5, 3))
    assert (is_large(small), is_large(large), is_large(large[:1])) == (False, True, True)
    assert list(tmp_path.iterdir()) == []
    large.copy_(torch.arange(15.0).view(5, 3))
    rows = in_parts(large, torch.device("cpu"))
    assert rows[torch.tensor([4, 0])].tolist() == [[12, 13, 14], [0, 1, 2]]
    assert in_parts(small, torch.device("cpu")) is small
    with open("/proc/self/maps") as maps:
        assert str(tmp_path) in maps.read()


def test_full_temporary_directory_is_named(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ssl_vision.evaluation.features, "IN_MEMORY", 4 * 12)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=f"^{tmp_path}: No space left on device .* set TMPDIR to another"):
        empty_rows((5, 3))


@pytest.mark.parametrize("shape", [(9000, 2), (2, 5000, 3)])
def test_finite_check_ignores_memory_layout(shape):
    values = torch.randn(shape).movedim(0, -1)
    assert is_finite(values)
    values[..., -1, 0] = torch.inf
    assert not is_finite(values)


MEMORY = """
import dataclasses
import sys
import threading
from pathlib import Path
import torch
import ssl_vision.evaluation.features
from ssl_vision.data import Digits, Images
from ssl_vision.encoders import ModuleEncoder
from ssl_vision.evaluation.feature_extractor import FeatureCache
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.subject import run_protocol
from ssl_vision.evaluation.measurement import KNN, Source
from ssl_vision.evaluation.probe import Linear
from ssl_vision.evaluation.protocol import Protocol
from ssl_vision.evaluation.splits import Splits

ssl_vision.evaluation.features.IN_MEMORY, count = int(sys.argv[2]), 300_000
torch.manual_seed(0)

def anonymous():  # memory that is not a mapped file, which the system may free
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024

class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(48, 512)
    def forward(self, images):
        return self.layer(images.flatten(1))

images = Images(
    torch.randint(256, (count, 3, 4, 4), dtype=torch.uint8), torch.arange(count) % 2, ("a", "b")
)
views = dataclasses.replace(Digits().views, size=4)
splits = Splits({"train": images, "test": images.select(torch.arange(300))}, views, data="Random")
extractor = FeatureExtractor(
    ModuleEncoder(Wide(), image_size=4), splits,
    description="", cache=FeatureCache(Path(sys.argv[1])),
)
measurements = (KNN(k=5), KNN(k=5, distance="euclidean"), Linear(epochs=1))
peak, before, done = 0, anonymous(), threading.Event()

def watch():
    global peak
    while not done.wait(0.01):
        peak = max(peak, anonymous())

thread = threading.Thread(target=watch)
thread.start()
protocol = Protocol("p", ("backbone",), measurements)
rows = list(run_protocol(protocol, Source(extractor)))
done.set()
thread.join()
assert len(rows) == len(measurements), rows
print(" ".join(str(row.value) for row in rows))
print((peak - before) // 2**20)
"""


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_mapped_bank_of_300_000_rows_needs_less_memory_than_features(tmp_path):
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20), "OMP_NUM_THREADS": "1"}
    size = 300_000 * 512 * 4 // 2**20  # 585 MiB
    results = []
    for limit in (2**20, 2**40):
        command = [sys.executable, "-c", MEMORY, str(tmp_path / str(limit)), str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        values, peak = done.stdout.splitlines()
        results.append((values, int(peak)))
    (mapped_values, mapped_peak), (values, peak) = results
    assert mapped_values == values
    assert mapped_peak < size // 2
    assert peak > size
