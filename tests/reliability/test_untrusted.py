"""Tests that untrusted files run no code and write only to their folder, and that runs contain no secrets."""

import contextlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from settings import TINY

import ssl_vision
from ssl_vision.data import ImageFolder
from ssl_vision.errors import InputError
from ssl_vision.evaluation.feature_extractor import FeatureCache
from ssl_vision.main import main
from ssl_vision.runs.checkpoint import read_checkpoint

TINY_RUN_CONFIG = ["--model.objective=MACL", "--model.objective.alpha=3", *TINY]
COMMANDS = {
    "fit": ["fit", *TINY_RUN_CONFIG, "--runs_dir=HERE/runs", "--name=run", "--ckpt_path=FILE"],
    "evaluate": ["evaluate", "FILE"],
    "export": ["export", "FILE"],
    "embed": ["embed", "HERE/images", "--weights=FILE", "--output=HERE/f.npz"],
}


class Payload:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def with_payload(run: Path, marker: Path) -> dict:
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return content | {"callbacks": Payload(marker)}


def save_torchscript(run: Path, marker: Path, file: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), file)


FORMS = {
    "zip.ckpt": lambda run, marker, file: torch.save(with_payload(run, marker), file),
    "legacy.pt": lambda run, marker, file: torch.save(
        with_payload(run, marker), file, _use_new_zipfile_serialization=False
    ),
    "protocol2.ckpt": lambda run, marker, file: file.write_bytes(pickle.dumps(Payload(marker), protocol=2)),
    "protocol4.pt": lambda run, marker, file: file.write_bytes(pickle.dumps(Payload(marker), protocol=4)),
    "array.npy": lambda run, marker, file: np.save(file, np.array([Payload(marker)], dtype=object)),
    "arrays.npz": lambda run, marker, file: np.savez(
        file, features=np.array([Payload(marker)], dtype=object)
    ),
    "script.pt": save_torchscript,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("form", "commands"),
    [
        (form, COMMANDS if form == "zip.ckpt" else ["evaluate"]) for form in FORMS
    ],  # the commands share a reader
    ids=FORMS,
)
def test_no_command_executes_code_in_file(form, commands, tiny_run, tmp_path, capfd):
    marker, file = tmp_path / "ran", tmp_path / form
    FORMS[form](tiny_run, marker, file)
    (tmp_path / "images").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "x.png")
    before = set(tmp_path.rglob("*"))
    for name in commands:
        words = [word.replace("HERE", str(tmp_path)).replace("FILE", str(file)) for word in COMMANDS[name]]
        assert main(words) == 2
        error = capfd.readouterr().err
        assert error.startswith(f"ssl-vision {name}: {file}: ")
        assert error.count("\n") == 1
        assert set(tmp_path.rglob("*")) == before
    with pytest.raises(InputError):
        ssl_vision.load_encoder(file)
    assert not marker.exists()
    if form != "script.pt":  # which contains no Payload
        with open(file, "rb") as content:
            assert b"mkdir" in content.read()


def test_a_safetensors_file_that_is_a_pickle_is_refused(tmp_path):
    file = tmp_path / "b.safetensors"
    file.write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    with pytest.raises(InputError, match="not a readable safetensors file"):
        ssl_vision.load_encoder(file)
    assert not (tmp_path / "ran").exists()


def test_feature_cache_recomputes_file_with_payload(tmp_path, capsys):
    cache, features = FeatureCache(tmp_path / "features"), {"backbone": torch.ones(2, 3)}

    def cached_features():
        return cache.get("train", ("a",), ("backbone",), lambda: features)["backbone"]

    cached_features()
    (file,) = (tmp_path / "features").iterdir()
    for content in ({"backbone": Payload(tmp_path / "ran")}, Payload(tmp_path / "ran")):
        torch.save(content, file)
        assert torch.equal(cached_features(), features["backbone"])
        assert "refused" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_image_cache_is_rebuilt_after_payload_or_invalid_index(tmp_path):
    for number in range(3):
        Image.new("RGB", (9, 9), (50 * number, 0, 0)).save(tmp_path / f"{number}.png")

    def images():
        return ImageFolder(root=tmp_path, image_size=8, cache="always").split("train").images.clone()

    expected = images()
    cache_files = [file for file in (tmp_path / ".ssl_vision_cache").iterdir() if file.suffix != ".lock"]
    for cache_file in cache_files:
        cache_file.write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
        assert torch.equal(images(), expected)
    for index in ("[]", '{"version": 1}', '{"version": 1, "images": 3, "skipped": 1}'):
        next(cache_file for cache_file in cache_files if cache_file.suffix == ".json").write_text(index)
        assert torch.equal(images(), expected)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("byte", range(20))
def test_flipped_checkpoint_bit_is_refused_or_changes_nothing(byte, tiny_run, tmp_path):
    """Only the padding of the archive is not covered by a checksum."""
    content = bytearray((tiny_run / "checkpoints" / "last.ckpt").read_bytes())
    random = np.random.default_rng(byte)
    content[random.integers(len(content))] ^= 1 << random.integers(8)
    file = tmp_path / "x.ckpt"
    file.write_bytes(content)
    original = read_checkpoint(tiny_run)
    with contextlib.suppress(InputError):
        flipped = read_checkpoint(file, verify=True)
        assert flipped.config == original.config
        assert all(torch.equal(original.state[name], flipped.state[name]) for name in original.state)


def test_run_and_model_card_contain_no_home_path_or_api_key(tmp_path, monkeypatch, capfd):
    home, key = tmp_path / "home" / "somebody", "0123456789abcdef" * 2 + "01234567"
    for number in range(24):
        file = home / "images" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (9 * number, 0, 0)).save(file)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.chdir(home)
    options = [
        "--data=ImageFolder",
        *TINY,
        "--data.batch_size=8",
        "--data.views.size=16",
        "--data.image_size=16",
    ]
    assert main(["fit", *options, "--data.root=~/images", "--name=run", "--trainer.max_epochs=1"]) == 0
    assert main(["export", "runs/run"]) == 0
    files = [file for file in (home / "runs").rglob("*") if file.is_file()]
    assert {"config.yaml", "last.ckpt", "backbone.safetensors", "backbone.safetensors.md"} <= {
        f.name for f in files
    }
    for file in files:
        content = file.read_bytes()
        assert str(home).encode() not in content, file
        assert key.encode() not in content, file
    assert key not in "".join(capfd.readouterr())
