"""Tests of invalid input on the command line: exit code 2, one line with the cause, and no files left.

A line is anything on stderr, except for blank lines and Python's warnings.
"""

import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from PIL import Image
from settings import TINY

from ssl_vision import __version__
from ssl_vision.main import main

FOLDER = "--data=ImageFolder --data.root={here}/images --data.batch_size=4 --data.views.size=16"
FOLDER += " --data.image_size=16"


class Case(NamedTuple):
    """A situation, a command line, and the expected message."""

    name: str
    command_line: str
    """Command in which {here} stands for the folder of the test, and {run} for that of a finished run."""
    line: str
    """Regular expression for the line on stderr, without the leading ``ssl-vision COMMAND: ``."""
    make: Callable[[Path, Path], object] = lambda here, run: None


def image(path: Path, *, mode: str = "RGB", size: tuple[int, int] = (20, 24), **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, 100).save(path, **options)
    return path


def images(here: Path, *names: str) -> Path:
    for name in names or [f"{label}/{number}.png" for label in "ab" for number in range(12)]:
        image(here / "images" / name)
    return here / "images"


def with_file(name: str, content: bytes) -> Callable[[Path, Path], object]:
    """Write valid images and one file with this content among them."""
    return lambda here, run: (images(here) / name).write_bytes(content)


def with_user_file(name: str, content: bytes) -> Callable[[Path, Path], object]:
    return lambda here, run: (here / name).write_bytes(content)


def with_changed_checkpoint(change: Callable[[dict], object]) -> Callable[[Path, Path], object]:
    """Write here/other.ckpt, the finished run's checkpoint with changed content."""

    def make(here: Path, run: Path) -> None:
        content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
        change(content)
        torch.save(content, here / "other.ckpt")

    return make


def with_replaced_config_text(old: str, new: str) -> Callable[[Path, Path], object]:
    """Write here/other.ckpt, the finished run's checkpoint with ``old`` replaced by ``new`` in its config."""
    return with_changed_checkpoint(
        lambda content: content["ssl_vision"].update(config=content["ssl_vision"]["config"].replace(old, new))
    )


def truncate_checkpoint(here: Path, run: Path) -> None:
    content = (run / "checkpoints" / "last.ckpt").read_bytes()
    (here / "other.ckpt").write_bytes(content[: len(content) // 2])


def flip_checkpoint_bit(here: Path, run: Path) -> None:
    content = bytearray((run / "checkpoints" / "last.ckpt").read_bytes())
    weights = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    content[content.index(weights["head.layers.0.weight"].numpy().tobytes()) + 7] ^= 64
    (here / "other.ckpt").write_bytes(content)


def decompression_bomb() -> bytes:
    """A PNG of about 100 bytes that claims 30000 x 30000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def corrupt_image(name: str, content: bytes, reason: str) -> Case:
    """A file among valid images that stops a run with ``strict``."""
    return Case(
        name,
        f"fit {FOLDER} --data.strict=true",
        rf"{{here}}/images/a/x\.png cannot be decoded \({reason}.*\); remove it, or set strict false .*",
        with_file("a/x.png", content),
    )


def cifar(here: Path, *, archive: bytes = b"", batch: bytes = b"") -> None:
    (here / "cifar-10-batches-py").mkdir()
    (here / "cifar-10-batches-py" / "data_batch_1").write_bytes(batch)
    (here / "cifar-10-python.tar.gz").write_bytes(archive)


def stl10(here: Path, **files: bytes) -> None:
    (here / "stl10_binary").mkdir()
    content = {"train_X": bytes(27648), "train_y": b"\1", "unlabeled_X": bytes(27648)} | files
    for name, value in content.items():
        (here / "stl10_binary" / f"{name}.bin").write_bytes(value)
    (here / "stl10_binary" / "class_names.txt").write_text("\n".join("abcdefghij"))


KEYS = [
    Case("no command of that name", "fti", r"unknown command 'fti', did you mean 'fit'\?"),
    Case(
        "a wrong key",
        "fit --model.encoder.widht=3",
        r"unknown option --model\.encoder\.widht of ResNet, did you mean --model\.encoder\.width\?",
    ),
    Case(
        "a wrong key of the objective",
        "fit --model.objective.temprature=1",
        r"unknown option .* of InfoNCE, did you mean --model\.objective\.temperature\?",
    ),
    Case(
        "a wrong key of the data",
        "fit --data.batchsize=3",
        r"unknown option --data\.batchsize of Digits, did you mean --data\.batch_size\?",
    ),
    Case(
        "a wrong key of the views",
        "fit --data.views.sise=3",
        r"unknown option --data\.views\.sise of Digits, did you mean 'data\.views\.size'\?",
    ),
    Case(
        "a wrong key of the optimizer",
        "fit --model.optimizer.rl=3",
        r"unknown option --model\.optimizer\.rl of SimCLR, did you mean 'model\.optimizer\.lr'\?",
    ),
    Case(
        "a wrong key of the trainer",
        "fit --trainer.max_epoch=3",
        r"unknown option --trainer\.max_epoch, did you mean --trainer\.max_epochs\?",
    ),
    Case(
        "a wrong key of the metrics",
        "fit --metrics.kk=3",
        r"unknown option --metrics\.kk, did you mean 'metrics\.k'\?",
    ),
    Case(
        "a wrong key at the top",
        "fit --learning_rate=3",
        r"unknown option --learning_rate, did you mean --model\.optimizer\.lr\?",
    ),
    Case(
        "an abbreviated key",
        "fit --model.encoder.wid=3",
        r"unknown option --model\.encoder\.wid of ResNet, did you mean 'model\.encoder\.width'\?",
    ),
    Case("zero workers", "fit --data.num_workers=0", r"unknown option --data\.num_workers of Digits.*"),
    Case(
        "a wrong class",
        "fit --model.objective=MCAL",
        r"--model\.objective: no class named MCAL, did you mean 'MACL'\?",
    ),
    Case(
        "a wrong class of data", "fit --data=Digit", r"--data: no class named Digit, did you mean 'Digits'\?"
    ),
    Case(
        "a wrong section in a file",
        "fit --config={here}/c.yaml",
        r"unknown option --metrix\.k, did you mean --metrics\.k\?",
        with_user_file("c.yaml", b"metrix: {k: 3}"),
    ),
    Case(
        "a wrong key of the metrics in a file",
        "fit --config={here}/c.yaml",
        r"unknown option --metrics\.kk, did you mean 'metrics\.k'\?",
        with_user_file("c.yaml", b"metrics: {kk: 3}"),
    ),
    Case(
        "a wrong key of a probe",
        "evaluate {run} --probe.epoch=3",
        r"unknown option --probe\.epoch, did you mean 'probe\.epochs'\?",
    ),
    Case(
        "a wrong key in a file",
        "fit --config={here}/c.yaml",
        r"unknown option --model\.hiden_dim of SimCLR, did you mean --model\.hidden_dim\?",
        with_user_file("c.yaml", b"model: {class_path: SimCLR, init_args: {hiden_dim: 18}}"),
    ),
    Case(
        "a file that is no YAML",
        "fit --config={here}/c.yaml",
        r"{here}/c\.yaml, line 2: .*",
        with_user_file("c.yaml", b"data: Digits\nmodel: ["),
    ),
    Case(
        "a file that is a list",
        "fit --config={here}/c.yaml",
        r"{here}/c\.yaml: not a table of keys and values",
        with_user_file("c.yaml", b"- a\n- b\n"),
    ),
    Case(
        "a file that is not text",
        "fit --config={here}/c.yaml",
        r"{here}/c\.yaml is not a text file",
        with_user_file("c.yaml", b"\xff\xfe\x00"),
    ),
    Case(
        "a number for a section",
        "fit --config={here}/c.yaml",
        r"{here}/c\.yaml: metrics: expected keys and values, got 3",
        with_user_file("c.yaml", b"metrics: 3"),
    ),
    Case(
        "a file that asks for code",
        "fit --config={here}/c.yaml",
        r"{here}/c\.yaml, line 1: could not determine a constructor for the tag .*os\.system'",
        with_user_file("c.yaml", b"data: !!python/object/apply:os.system [x]"),
    ),
    Case("an absent file", "fit --config={here}/c.yaml", r"--config {here}/c\.yaml: no such file or recipe"),
]

VALUES = [
    Case(
        "a word for a number",
        "fit --model.encoder.width=wide",
        r"model\.encoder\.width: expected int, got wide",
    ),
    Case(
        "a number with a comma",
        "fit --model.encoder.width=2.5",
        r"model\.encoder\.width: expected int, got 2\.5",
    ),
    Case("a list for a number", "fit --data.batch_size=[1]", r"data\.batch_size: expected int, got \[1\]"),
    Case(
        "a word that is none of some",
        "fit --model.objective.pairs=all",
        r"model\.objective\.pairs: expected one of 'both', 'cross', 'keys', 'queue', got all",
    ),
    Case(
        "a depth that is none",
        "fit --model.encoder.depth=19",
        r"model\.encoder\.depth: expected one of 18, 34, 50, 101, got 19",
    ),
    Case(
        "a stem that is none",
        "fit --model.encoder.stem=big",
        r"model\.encoder\.stem: expected one of 'small', 'imagenet', got big",
    ),
    Case(
        "a temperature that is no number",
        "fit --model.objective.temperature=cold",
        r"--model\.objective\.temperature: expected float or a class, got cold; available: Align.*",
    ),
    Case("temperature 0", "fit --model.objective.temperature=0", r".*temperature must be .*0"),
    Case(
        "temperature below 0",
        "fit --model.objective.temperature=-0.1",
        r"temperature must be at least 0\.001.*-0\.1",
    ),
    Case(
        "temperature nan",
        "fit --model.objective.temperature=nan",
        r"model\.objective\.temperature: expected float, got nan",
    ),
    Case(
        "a learning rate below 0",
        "fit --model.optimizer.lr=-1",
        r".*optimizer\.lr must be at least 0 and at most 3\.4.*e\+38, got -1.*",
    ),
    Case(
        "a learning rate nan",
        "fit --model.optimizer.lr=nan",
        r"model\.optimizer\.lr: expected float, got nan",
    ),
    Case("a width of 0", "fit --model.encoder.width=0", r".*width must be at least 1, got 0"),
    Case(
        "a warm-up without a schedule",
        "fit --model.optimizer.warmup_epochs=1",
        r".*warmup_epochs needs .*'cosine'",
    ),
    Case(
        "a schedule without an end",
        "fit --trainer.max_epochs=-1 --model.optimizer.schedule=cosine",
        r"optimizer\.schedule 'cosine' needs an end: .*",
    ),
    Case("a share above 1", "fit --data.views.hflip=2", r".*views\.hflip.*2.*"),
    Case(
        "half of the images and more held out",
        "fit --data.val_share=0.9",
        r".*val_share must be above 0 and at most 0\.5, got 0\.9",
    ),
    Case(
        "a share that holds none out",
        "fit --data.val_share=1e-9",
        r"val_share 1e-09 leaves 0 queries and 1437 labelled bank images, .*",
    ),
    Case("a way to compile that is none", "fit --data.views.compile=always", r"data\.views\.compile.*"),
    Case(
        "a timm model for a class",
        "fit --model.encoder=convnext_atto",
        r".*use --model\.encoder Timm --model\.encoder\.name convnext_atto.*",
    ),
    Case(
        "a timm model with its prefix for a class",
        "fit --model.encoder=timm/resnet18",
        r".*use --model\.encoder Timm --model\.encoder\.name resnet18.*",
    ),
    Case(
        "a timm model without a name",
        "fit --model.encoder=Timm",
        r"model\.encoder: the following arguments are required: name",
    ),
    Case(
        "an option of a timm model",
        "fit --model.encoder=Timm --model.encoder.name=resnet18 --model.encoder.drop_path_rate=1",
        r"unknown option .* of Timm; options of the timm model are given as "
        r"--model\.encoder\.dict_kwargs\.drop_path_rate.*",
    ),
    Case("an accelerator that is none", "fit --trainer.accelerator=gpuu", r".*gpuu.*"),
    Case("a precision that is none", "fit --trainer.precision=12", r"trainer\.precision: .*"),
    Case(
        "a negative seed",
        "fit --seed_everything=-1",
        r"seed_everything: must be at least 0 and below 4294967296, got -1",
    ),
    Case("no seed", "fit --seed_everything=false", r"seed_everything: .*false.*"),
    Case("a path for a name", "fit --name=a/b", r"--name a/b: must be a name, not a path; .*"),
    Case(
        "batches of 0",
        "fit --data.batch_size=0",
        r".*batch_size must be at least 1 and at most 1048576, got 0",
    ),
    Case("batches of 1", "fit --data.batch_size=1", r"batch_size must be 2 or more, .*"),
    Case(
        "a batch larger than the data set",
        "fit --data.batch_size=5000",
        r"batch_size 5000 is more than the 1437 images: set --data\.batch_size 1437 or less",
    ),
    Case(
        "a full batch that few images do not fill",
        f"fit {FOLDER} --data.batch_size=25",
        r"batch_size 25 is more than the 24 images: set --data\.batch_size 24 or less",
        lambda here, run: images(here),
    ),
    Case(
        "validation batches of 0",
        "fit --data.eval_batch_size=0",
        r".*eval_batch_size must be at least 1 and at most 1048576, got 0",
    ),
    Case("k of 0", "fit --metrics.k=0", r"k must be at least 1, got 0"),
    Case("k of 0 in an evaluation", "evaluate {run} --k=0", r"--k must be at least 1, got 0"),
    Case("an absent protocol", "evaluate {run} --protocol=none", r".*none.*"),
    Case(
        "the data's options before the data",
        "fit --data.batch_size=4 --data=Digits",
        r"--data\.batch_size must come after the data class, .*",
    ),
    Case(
        "a continuation that replaces",
        "fit --ckpt_path=last --overwrite=true",
        r"--ckpt_path continues a run and --overwrite replaces it: .*",
    ),
]

TRAINER = [
    *(
        Case(
            f"{option} {value}",
            f"fit --{option}={value}",
            rf"--{option} must .*, (not|got) {re.escape(value.strip('.'))}",
        )
        for option, values in {
            "trainer.accumulate_grad_batches": ("0",),
            "trainer.check_val_every_n_epoch": ("0",),
            "trainer.val_check_interval": ("0",),
            "trainer.max_epochs": ("0",),
            "trainer.max_steps": ("0",),
            "trainer.limit_train_batches": ("0",),
            "trainer.gradient_clip_val": ("-1", ".nan"),
        }.items()
        for value in values
    ),
    Case(
        "validation after more batches than there are",
        "fit --trainer.val_check_interval=99",
        r"`val_check_interval` \(99\) must be less than or equal to the number of the training batches .*",
    ),
    Case(
        "a strategy that spawns processes",
        "fit --trainer.strategy=ddp_spawn --trainer.devices=2",
        "--trainer.strategy ddp_spawn cannot pass a run to its processes; use ddp",
    ),
    Case(
        "a loss of embeddings and labels",
        "fit --model.objective=pytorch_metric_learning.losses.NTXentLoss",
        "NTXentLoss is not an objective: its forward does not accept the embeddings of two views",
    ),
    Case("a name that is too long", f"fit --name={'x' * 300}", r"--name x+…: longer than 200 bytes"),
    Case("the directory above", "fit --name=..", r"--name \.\.: must be a name, not a path; .*"),
    Case("runs in a file", "fit --runs_dir=/dev/null", r"--runs_dir: /dev/null is not a directory"),
    Case(
        "a run directory that is a dangling link",
        "fit --runs_dir={here} --name=link",
        r"--name: {here}/link is not a directory",
        lambda here, run: (here / "link").symlink_to(here / "absent"),
    ),
]

SIZES = [
    *(
        Case(f"{option} {value}", f"fit --{option}={value}", line)
        for option, value, line in [
            ("data.views.size", 10**6, r".*views\.size must be .* at most 4096, got 1000000"),
            (
                "data.batch_size",
                10**9,
                r".*batch_size must be .* at most 1048576, got 1000000000",
            ),
            (
                "data.eval_batch_size",
                10**30,
                r".*eval_batch_size must be at least 1 and at most 1048576, got .*",
            ),
            (
                "model.hidden_dim",
                10**9,
                r".*hidden_dim must be at least 1 and at most 1048576, got 1000000000",
            ),
            ("model.output_dim", 10**30, r".*output_dim must be at least 1 and at most 1048576, got .*"),
            ("model.chunk_size", 10**30, r".*chunk_size must be at least 1 and at most 1048576, got .*"),
        ]
    ),
    Case(
        "images that are too large",
        f"fit {FOLDER} --data.image_size=1000000",
        r".*image_size must be at least 1 and at most 4096, got 1000000",
        lambda here, run: images(here),
    ),
]

DATA = [
    Case(
        "absent images",
        f"fit {FOLDER}",
        r"no folder {here}/images: give the directory of the images with --data\.root",
    ),
    Case(
        "a file for a folder",
        f"fit {FOLDER}",
        r"no folder {here}/images: give the directory of the images with --data\.root",
        with_user_file("images", b""),
    ),
    Case(
        "no images",
        f"fit {FOLDER}",
        r"no images in {here}/images: looked for .*",
        lambda here, run: (here / "images").mkdir(),
    ),
    Case(
        "an absent test split",
        f"fit {FOLDER} --data.val=test",
        r"no folder for the test split in {here}/images: set it with --data\.test FOLDER "
        r"\(folders: a and b\)",
        lambda here, run: images(here),
    ),
    Case(
        "a class that is in test only",
        f"fit {FOLDER} --data.val=test",
        r"{here}/images/test/z is a class that the train split does not have",
        lambda here, run: images(here, "train/a/1.png", "train/b/1.png", "test/z/1.png"),
    ),
    Case(
        "none but corrupt images",
        f"fit {FOLDER}",
        r"none of the 2 images can be decoded, for example {here}/images/x\.jpg \(Unidentified.*\)",
        lambda here, run: [
            (images(here, "t/1.png"), (here / "images" / "t" / "1.png").unlink()),
            write_corrupt_images(here, "x.jpg", "y.png"),
        ],
    ),
    corrupt_image("a text file named as an image", b"hello, world\n", "unknown image format"),
    corrupt_image(
        "a decompression bomb", decompression_bomb(), r"Image size \(900000000 pixels\) exceeds limit"
    ),
    Case(
        "a truncated photo",
        f"fit {FOLDER} --data.strict=true",
        r"{here}/images/a/x\.jpg cannot be decoded \(.*truncated.*",
        lambda here, run: save_truncated_jpeg(images(here) / "a" / "x.jpg"),
    ),
    Case(
        "a pipe named as an image",
        f"fit {FOLDER} --data.strict=true",
        r"{here}/images/a/x\.png cannot be decoded \(not a regular file\); .*",
        lambda here, run: os.mkfifo(images(here) / "a" / "x.png"),
    ),
    Case(
        "a link to itself",
        f"fit {FOLDER} --data.strict=true",
        r"{here}/images/a/x\.png cannot be decoded \(.*",
        lambda here, run: (images(here) / "a" / "x.png").symlink_to("x.png"),
    ),
    Case(
        "a corrupt file of a name that is not ASCII",
        f"fit {FOLDER} --data.strict=true",
        r"{here}/images/a/ü 图\.png cannot be decoded .*",
        with_file("a/ü 图.png", b""),
    ),
    Case(
        "a corrupt file to embed",
        "embed {here}/images --weights={run} --output={here}/f.npz --strict=true",
        r"{here}/images/a/x\.png cannot be decoded .*",
        with_file("a/x.png", b"no image"),
    ),
    Case(
        "squares of side 0",
        f"fit {FOLDER} --data.image_size=0",
        r".*image_size must be at least 1 and at most 4096, got 0",
        lambda here, run: images(here),
    ),
    Case(
        "a cache where there is a file",
        f"fit {FOLDER} --data.cache=always --data.cache_dir={{here}}/f",
        r"decoded images cannot be written to {here}/f/images-.* \(.*\); set cache_dir",
        lambda here, run: (images(here), (here / "f").touch()),
    ),
    Case(
        "no labels where a probe needs them",
        "evaluate {run} --data=ImageFolder --data.root={here}/images --data.image_size=16",
        r"ImageFolder has no labels in train or test: .*",
        lambda here, run: images(here, *(f"{part}/{n}.png" for part in ("train", "test") for n in range(4))),
    ),
    Case(
        "one query",
        f"fit {FOLDER} --data.val=train",
        r"val_share 0\.1 leaves 1 queries and 11 labelled bank images, but 2 and 1 are required; .*",
        lambda here, run: images(here, *(f"a/{number}.png" for number in range(12))),
    ),
    Case(
        "one query without a label",
        f"fit {FOLDER}",
        r"val_share 0\.1 leaves 1 of 12 images as queries, but 2 are required; .*",
        lambda here, run: images(here, *(f"{number}.png" for number in range(12))),
    ),
    Case(
        "absent CIFAR-10",
        "fit --data=CIFAR10 --data.root={here}",
        r"CIFAR-10 is missing or damaged at {here}/cifar-10-batches-py; download it with .*, "
        r"give the directory that contains cifar-10-batches-py with --data\.root, .*",
    ),
    Case(
        "absent CIFAR-100",
        "fit --data=CIFAR100 --data.root={here}",
        r"CIFAR-100 is missing or damaged at {here}/cifar-100-python; .*",
    ),
    Case(
        "absent STL-10",
        "fit --data=STL10 --data.root={here}",
        r"STL-10 is missing or damaged at {here}/stl10_binary/train_X\.bin; .*",
    ),
    Case(
        "CIFAR-10 with another MD5 sum",
        "fit --data=CIFAR10 --data.root={here}",
        r"CIFAR-10 is missing or damaged at {here}/cifar-10-batches-py; .*",
        lambda here, run: cifar(here, batch=b"other"),
    ),
    Case(
        "a truncated archive of CIFAR-10",
        "fit --data=CIFAR10 --data.root={here} --data.download=true",
        r"CIFAR-10 could not be downloaded to {here}/cifar-10-batches-py \(.*\); check the connection, .*",
        lambda here, run: cifar(here, archive=b"\x1f\x8b"),
    ),
    Case(
        "half of STL-10",
        "fit --data=STL10 --data.root={here}",
        r"{here}/stl10_binary/train_X\.bin is damaged; download it with --data\.download true",
        lambda here, run: stl10(here, train_X=bytes(20000)),
    ),
    Case(
        "labels of other images in STL-10",
        "fit --data=STL10 --data.root={here}",
        r"{here}/stl10_binary/train_y\.bin contains 2 labels for 1 images",
        lambda here, run: stl10(here, train_y=b"\1\2"),
    ),
    Case(
        "labels outside those of STL-10",
        "fit --data=STL10 --data.root={here}",
        r"{here}/stl10_binary/train_y\.bin contains labels outside 1\.\.10",
        lambda here, run: stl10(here, train_y=b"\0"),
    ),
]


def write_corrupt_images(here: Path, *names: str) -> None:
    for name in names:
        (here / "images" / name).write_bytes(b"no image")


def save_truncated_jpeg(path: Path) -> None:
    Image.effect_noise((64, 64), 90).convert("RGB").save(path)
    path.write_bytes(path.read_bytes()[:700])


TINY_RUN_CONFIG = "--model.objective=MACL --model.objective.alpha=3"
READERS = {
    "fit": f"fit {TINY_RUN_CONFIG} --ckpt_path={{here}}/other.ckpt",
    "evaluate": "evaluate {here}/other.ckpt",
    "export": "export {here}/other.ckpt",
    "embed": "embed {here}/images --weights={here}/other.ckpt --output={here}/f.npz",
}


def checkpoint_case(reader: str, name: str, line: str, make: Callable[[Path, Path], object]) -> Case:
    def make_files(here: Path, run: Path) -> None:
        make(here, run)
        if reader == "embed":
            images(here)

    return Case(f"{reader}: {name}", READERS[reader], line, make_files)


SITUATIONS = [
    ("an absent checkpoint", r"{here}/other\.ckpt: no such checkpoint", lambda here, run: None),
    (
        "a truncated checkpoint",
        r"{here}/other\.ckpt: not a readable checkpoint \(\w+\)",
        truncate_checkpoint,
    ),
    (
        "a checkpoint of a later version",
        rf"{{here}}/other\.ckpt: written by ssl_vision 99\.1\.0, but {__version__} is installed; .*",
        with_changed_checkpoint(lambda content: content["ssl_vision"].update(version="99.1.0")),
    ),
    (
        "another package's checkpoint",
        r"{here}/other\.ckpt: was not written by ssl-vision fit.*",
        with_changed_checkpoint(lambda content: content.pop("ssl_vision")),
    ),
]
CHECKPOINTS = [
    checkpoint_case(reader, *situation)
    for reader in READERS
    for situation in (SITUATIONS if reader in ("fit", "export") else SITUATIONS[1:2])  # the others share code
] + [
    checkpoint_case(
        "fit",
        "a checkpoint with a flipped bit",
        r"{here}/other\.ckpt: damaged, the checksum of .* does not match",
        flip_checkpoint_bit,
    ),
    Case(
        "an empty checkpoint",
        "export {here}/other.ckpt",
        r"{here}/other\.ckpt: not a readable checkpoint \(EOFError\)",
        with_user_file("other.ckpt", b""),
    ),
    Case(
        "a text for a checkpoint",
        "export {here}/other.ckpt",
        r"{here}/other\.ckpt: .*",
        with_user_file("other.ckpt", b"hello world"),
    ),
    Case(
        "weights alone",
        "export {here}/other.ckpt",
        r"{here}/other\.ckpt: was not written by ssl-vision fit.*",
        lambda here, run: torch.save(torch.zeros(3), here / "other.ckpt"),
    ),
    Case(
        "a checkpoint without progress",
        "export {here}/other.ckpt",
        r"{here}/other\.ckpt: was not written by ssl-vision fit.*",
        with_changed_checkpoint(lambda content: content.pop("loops")),
    ),
    Case(
        "another architecture to continue",
        "fit --model.encoder.width=8 --ckpt_path={run}/checkpoints/last.ckpt",
        r"{run}/checkpoints/last\.ckpt was made with another config \(.*width: 4 there, 8 here.*\); "
        r"use that config with ssl-vision fit {run}",
    ),
    *(
        checkpoint_case("evaluate", f"{new} in its config", line, with_replaced_config_text(old, new))
        for old, new, line in [
            ("width: 4", "width: 8", r"{here}/other\.ckpt: .*size mismatch for backbone\.conv1\.weight.*"),
            (
                "ssl_vision.methods.SimCLR",
                "no.such.Class",
                r".*names the class no\.such\.Class, .*--allow_class no\.such\.Class; .*",
            ),
            (
                "ssl_vision.objectives.MACL",
                "no.such.Class",
                r".*names the class no\.such\.Class, .*--allow_class no\.such\.Class; .*",
            ),
        ]
    ),
    Case(
        "a table that cannot be written",
        "evaluate {run} --protocol=check --baselines=false --cache=false --output={here}/f/x.json",
        r"--output {here}/f/x\.json: {here}/f cannot be written to",
        with_user_file("f", b""),
    ),
    Case(
        "an empty folder for a run", "evaluate {here}", r"{here}/checkpoints/last\.ckpt: no such checkpoint"
    ),
    Case("no checkpoint", "export", r".*checkpoint.*"),
    Case(
        "an export that is none",
        "embed {here}/images --weights={here}/b.safetensors --output={here}/f.npz",
        r"{here}/b\.safetensors: not a readable safetensors file",
        lambda here, run: (images(here), (here / "b.safetensors").write_bytes(b"x" * 99)),
    ),
    Case(
        "features of another form",
        "embed {here}/images --weights={run} --output={here}/f.csv",
        r"--output {here}/f\.csv must end with \.npz or \.parquet",
        lambda here, run: images(here),
    ),
]


def command_line(case: Case, here: Path, run: Path) -> list[str]:
    """Return the arguments of a case: config files and data first, then a tiny run, then the rest."""
    command, *rest = case.command_line.format(here=here, run=run).split(" ")
    if command == "fit" and "--data.batch_size=4 --data=Digits" not in case.command_line:
        files_and_data = [arg for arg in rest if arg.startswith(("--config=", "--data="))]
        rest = [
            *files_and_data,
            f"--runs_dir={here / 'runs'}",
            "--name=run",
            *TINY,
            *(arg for arg in rest if arg not in files_and_data),
        ]
    return [command, *rest]


def lines_of(error: str) -> list[str]:
    return [line for line in error.splitlines() if line.strip()]


def contents(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "case", [*KEYS, *VALUES, *TRAINER, *SIZES, *DATA, *CHECKPOINTS], ids=lambda case: case.name
)
def test_invalid_input_is_reported_in_one_line(case, tiny_run, tmp_path, capfd):
    case.make(tmp_path, tiny_run)
    before = contents(tiny_run)
    assert main(command_line(case, tmp_path, tiny_run)) == 2
    (line,) = lines_of(capfd.readouterr().err)
    expected = case.line.replace("{here}", re.escape(str(tmp_path))).replace(
        "{run}", re.escape(str(tiny_run))
    )
    assert re.fullmatch(f"ssl-vision {case.command_line.split()[0]}: {expected}", line), line
    assert not (tmp_path / "runs").exists()
    assert not list(tmp_path.glob("*.npz"))
    assert contents(tiny_run) == before


@pytest.mark.parametrize(
    "named", ["--data.batch_size=5000", pytest.param("--model.encoder.widht=3", marks=pytest.mark.long)]
)
def test_process_writes_only_the_error_line_to_stderr(named, tmp_path):
    command = [
        sys.executable,
        "-m",
        "ssl_vision",
        "fit",
        f"--runs_dir={tmp_path / 'runs'}",
        "--name=run",
        *TINY,
    ]
    result = subprocess.run([*command, named], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    (line,) = lines_of(result.stderr)
    assert line.startswith("ssl-vision fit: ")
    assert not (tmp_path / "runs").exists()


def test_unreadable_folder_is_named_in_error(tmp_path, capfd):
    (images(tmp_path) / "a").chmod(0)
    try:
        if os.access(tmp_path / "images" / "a", os.R_OK):
            pytest.skip("this user can read everything")
        case = Case("", f"fit {FOLDER}", "")
        assert main(command_line(case, tmp_path, tmp_path)) == 2
        assert f"{tmp_path}/images/a cannot be read (Permission denied)" in capfd.readouterr().err
    finally:
        (tmp_path / "images" / "a").chmod(0o755)


FEW_LABELS = {
    "one class": [f"a/{number}.png" for number in range(24)],
    "an image of each class": [f"{number:02}/x.png" for number in range(24)],
    "some labels": [*(f"a/{number}.png" for number in range(24)), "b/x.png", "loose.png"],
    "no labels": [f"{number}.png" for number in range(24)],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("names", FEW_LABELS.values(), ids=FEW_LABELS)
def test_fit_succeeds_with_few_or_no_labels(names, tmp_path):
    images(tmp_path, *names)
    assert (
        main(
            command_line(
                Case("", f"fit {FOLDER} --metrics.k=1000 --trainer.max_epochs=1", ""), tmp_path, tmp_path
            )
        )
        == 0
    )
    assert (tmp_path / "runs" / "run" / "checkpoints" / "last.ckpt").is_file()


def test_fit_skips_and_counts_corrupt_image(tmp_path):
    with_file("a/x.png", b"no image")(tmp_path, tmp_path)
    case = Case("", f"fit {FOLDER} --trainer.max_epochs=1", "")
    with pytest.warns(
        UserWarning, match=r"skipped 1 of 25 images that cannot be decoded: .*images/a/x\.png$"
    ):
        assert main(command_line(case, tmp_path, tmp_path)) == 0
