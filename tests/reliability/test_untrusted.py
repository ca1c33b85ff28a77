"""Files from others: none runs code, writes outside its folder, or takes paths and keys of a home along."""

import contextlib
import hashlib
import io
import os
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from settings import TINY
from torchvision import datasets

import ssl_vision
from ssl_vision.data import CIFAR10, STL10, ImageFolder
from ssl_vision.errors import InputError
from ssl_vision.evaluation.cache import FeatureCache
from ssl_vision.main import main
from ssl_vision.runs.checkpoint import read_checkpoint

SAME = ["--model.objective=MACL", "--model.objective.alpha=3", *TINY]
COMMANDS = {
    "fit": ["fit", *SAME, "--runs_dir=HERE/runs", "--name=run", "--ckpt_path=FILE"],
    "validate": ["validate", *SAME, "--runs_dir=HERE/runs", "--name=run", "--ckpt_path=FILE"],
    "evaluate": ["evaluate", "FILE"],
    "export": ["export", "FILE"],
    "embed": ["embed", "HERE/images", "--backbone=FILE", "--output=HERE/f.npz"],
}


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def with_payload(run: Path, marker: Path) -> dict:
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return content | {"callbacks": Payload(marker)}


def scripted(run: Path, marker: Path, file: Path) -> None:
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
    "script.pt": scripted,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS)
def test_no_command_runs_what_a_file_holds(form, tiny_run, tmp_path, capfd):
    marker, file = tmp_path / "ran", tmp_path / form
    FORMS[form](tiny_run, marker, file)
    (tmp_path / "images").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "images" / "x.png")
    before = set(tmp_path.rglob("*"))
    for name, command in COMMANDS.items():
        words = [word.replace("HERE", str(tmp_path)).replace("FILE", str(file)) for word in command]
        assert main(words) == 2
        error = capfd.readouterr().err
        assert error.startswith(f"ssl-vision {name}: {file}: ")
        assert error.count("\n") == 1
        assert set(tmp_path.rglob("*")) == before
    with pytest.raises(InputError):
        ssl_vision.load_encoder(file)
    assert not marker.exists()
    if form != "script.pt":  # the payload is one
        with open(file, "rb") as content:
            assert b"mkdir" in content.read()


def test_a_safetensors_file_that_is_a_pickle_is_refused(tmp_path):
    file = tmp_path / "b.safetensors"
    file.write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    with pytest.raises(InputError, match="not a readable safetensors file"):
        ssl_vision.load_encoder(file)
    assert not (tmp_path / "ran").exists()


def test_a_payload_among_kept_features_is_made_again(tmp_path, capsys):
    cache, features = FeatureCache(tmp_path / "features"), {"backbone": torch.ones(2, 3)}

    def kept():
        return cache.get("train", ("a",), ("backbone",), lambda: features)["backbone"]

    kept()
    (file,) = (tmp_path / "features").iterdir()
    for content in ({"backbone": Payload(tmp_path / "ran")}, Payload(tmp_path / "ran")):
        torch.save(content, file)
        assert torch.equal(kept(), features["backbone"])
        assert "not readable" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_a_payload_in_the_cache_of_decoded_images_is_made_again(tmp_path):
    for number in range(3):
        Image.new("RGB", (9, 9), (50 * number, 0, 0)).save(tmp_path / f"{number}.png")

    def images():
        return ImageFolder(root=tmp_path, image_size=8, cache="always").split("train").images.clone()

    expected = images()
    places = [file for file in (tmp_path / ".ssl_vision_cache").iterdir() if file.suffix != ".lock"]
    for place in places:
        place.write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
        assert torch.equal(images(), expected)
    for index in ("[]", '{"version": 1}', '{"version": 1, "images": 3, "skipped": 1}'):
        next(place for place in places if place.suffix == ".json").write_text(index)
        assert torch.equal(images(), expected)
    assert not (tmp_path / "ran").exists()


def archive(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member in members:
            content = b"outside"
            member.size = 0 if member.linkname else len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


@pytest.mark.parametrize("known", [True, False], ids=["as if its sum were right", "with another sum"])
@pytest.mark.parametrize(
    ("data", "reader", "name"),
    [(CIFAR10, datasets.CIFAR10, "cifar-10-python.tar.gz"), (STL10, datasets.STL10, "stl10_binary.tar.gz")],
)
@pytest.mark.parametrize("way", ["above", "absolute", "link"])
def test_an_archive_writes_nothing_outside_its_folder(way, data, reader, name, known, tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    members = {
        "above": [tarfile.TarInfo("../outside")],
        "absolute": [tarfile.TarInfo(str(outside))],
        "link": [link("inside", str(tmp_path)), tarfile.TarInfo("inside/outside")],
    }
    content = archive(*members[way])
    (tmp_path / "data").mkdir()
    if known:
        monkeypatch.setattr(reader, "tgz_md5", hashlib.md5(content).hexdigest())

    class Answer(io.BytesIO):
        length = len(content)

    monkeypatch.setattr(
        "ssl_vision.data.loading.download.urllib.request.urlopen", lambda *_, **__: Answer(content)
    )
    module = data(root=tmp_path / "data", download=True)
    with contextlib.suppress(InputError):
        module.prepare_data()
    with pytest.raises(InputError, match="is missing or damaged"):
        module.split("train")
    assert not outside.exists()
    assert (tmp_path / "data" / name).exists() == known


@pytest.mark.parametrize("byte", range(20))
def test_a_flipped_bit_is_refused_or_changes_nothing(byte, tiny_run, tmp_path):
    """The few bytes that are in no checksum are the archive's padding."""
    content = bytearray((tiny_run / "checkpoints" / "last.ckpt").read_bytes())
    random = np.random.default_rng(byte)
    content[random.integers(len(content))] ^= 1 << random.integers(8)
    file = tmp_path / "x.ckpt"
    file.write_bytes(content)
    ours = read_checkpoint(tiny_run)
    with contextlib.suppress(InputError):
        theirs = read_checkpoint(file)
        assert theirs.config == ours.config
        assert all(torch.equal(ours.state[name], theirs.state[name]) for name in ours.state)


def test_a_compressed_checkpoint_is_refused_before_it_grows(tiny_run, tmp_path):
    whole, file = tiny_run / "checkpoints" / "last.ckpt", tmp_path / "x.ckpt"
    shutil.unpack_archive(whole, tmp_path / "parts", "zip")
    shutil.move(shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "parts"), file)
    with pytest.raises(InputError, match=r"x\.ckpt: refused, it is compressed"):
        read_checkpoint(file)


def test_neither_a_home_nor_a_key_goes_into_a_run_or_a_card(tmp_path, monkeypatch, capfd):
    home, key = tmp_path / "home" / "somebody", "0123456789abcdef" * 2 + "01234567"
    for number in range(24):
        file = home / "images" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (9 * number, 0, 0)).save(file)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.chdir(home)
    tiny = [
        "--data=ImageFolder",
        *TINY,
        "--data.batch_size=8",
        "--data.views.size=16",
        "--data.image_size=16",
    ]
    assert main(["fit", *tiny, "--data.root=~/images", "--name=run", "--trainer.max_epochs=1"]) == 0
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
