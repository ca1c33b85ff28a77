"""Tests that train every file of configs/ through the command line, on real images where available."""

import csv
import dataclasses
import hashlib
import math
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from settings import CONFIGS, TINY

import ssl_vision.data
from ssl_vision.data import STL10
from ssl_vision.main import main
from ssl_vision.pretrained.opened_run import open_run

FILES = sorted(file for file in CONFIGS.rglob("*.yaml") if file.parent.name not in ("paper", "sweep"))
# A separate test trains these configs.
IMAGENET = ("tiny_imagenet", "imagenet100", "imagenet", "imagenet_moco_v2")
# Folder of each official data set, below the data root.
NEEDS = {"CIFAR10": "cifar-10-batches-py", "CIFAR100": "cifar-100-python", "STL10": "stl10_binary"}


def stl10_with_unlabeled(data_root: Path, root: Path) -> Path:
    """Link the official STL-10 files, and use the first 100 train images as the unlabeled ones."""
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    for file in (data_root / "stl10_binary").iterdir():
        (folder / file.name).symlink_to(file)
    train = (folder / "train_X.bin").read_bytes()
    (folder / "unlabeled_X.bin").write_bytes(train[: 100 * 3 * 96 * 96])
    return root


def options_for(data: str, request, tmp_path) -> list[str]:
    """Options that name the images and limit their number and size."""
    if data == "Digits":
        return []
    if data == "ImageFolder":
        for number in range(20):
            pixels = torch.full((100, 120, 3), 12 * number, dtype=torch.uint8).numpy()
            Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        return [f"--data.root={tmp_path}", "--data.batch_size=4", "--data.views.size=16"]
    data_root = request.getfixturevalue("data_root")
    root = stl10_with_unlabeled(data_root, tmp_path / "data") if data == "STL10" else data_root
    return [
        f"--data.root={root}",
        "--data.batch_size=4",
        "--trainer.limit_val_batches=2",
        "--data.views.size=16",
    ]


def options_of(file: Path, section: str) -> dict:
    return yaml.safe_load(file.read_text()).get(section, {}).get("init_args", {})


def data_of(file: Path) -> str:
    return yaml.safe_load(file.read_text()).get("data", {}).get("class_path", "Digits")


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(
            file,
            id=str(file.relative_to(CONFIGS)),
            marks=[pytest.mark.realdata] if data_of(file) in NEEDS else [],
        )
        for file in FILES
        if file.stem not in IMAGENET
    ],
)
def test_every_config_trains(file, request, tmp_path):
    data = data_of(file)
    short = [
        "--trainer.limit_train_batches=2",
        "--trainer.max_epochs=1",
        "--trainer.check_val_every_n_epoch=1",
    ]
    if "warmup_epochs" in options_of(file, "model").get("optimizer", {}):
        short += ["--model.optimizer.warmup_epochs=0", "--model.optimizer.freeze_epochs=0"]
    if file.parent.name in ("objective", "method"):  # which do not affect the validation
        short += ["--trainer.limit_val_batches=0"]
    if file.stem in ("cifar10_gpu", "cifar10_speedrun"):
        short += ["--trainer.precision=32-true", "--model.compile_mode=null", "--model.cuda_graph=false"]
    data_options = options_for(data, request, tmp_path)
    args = [f"--config={file}", *TINY, *data_options, *short, f"--runs_dir={tmp_path / 'runs'}", "--name=run"]
    assert main(["fit", *args]) == 0
    assert (tmp_path / "runs" / "run" / "checkpoints" / "last.ckpt").exists()
    with (tmp_path / "runs" / "run" / "metrics.csv").open(newline="") as log:
        losses = [float(row["train/loss"]) for row in csv.DictReader(log)]
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))


@pytest.mark.parametrize(
    "file", [f for f in FILES if data_of(f) != "Digits"], ids=lambda f: str(f.relative_to(CONFIGS))
)
def test_config_views_extend_defaults_of_data_set(file, capsys):
    with pytest.raises(SystemExit):
        main(["fit", f"--config={file}", "--print_config"])
    data = yaml.safe_load(capsys.readouterr().out)["data"]
    cls = getattr(ssl_vision.data, data["class_path"].rsplit(".", 1)[-1])
    options = {"root": "x"} if cls is ssl_vision.data.ImageFolder else {}
    expected = dataclasses.asdict(cls(**options).views)
    expected |= options_of(file, "data").get("views", {})
    assert data["init_args"]["views"] == {
        k: list(v) if isinstance(v, tuple) else v for k, v in expected.items()
    }


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "stl10"])
def test_pretraining_configs_follow_macl_paper(name, capsys):
    with pytest.raises(SystemExit):
        main(["fit", f"--config={CONFIGS / 'pretrain' / name}.yaml", "--print_config"])
    config = yaml.safe_load(capsys.readouterr().out)
    model, data = config["model"]["init_args"], config["data"]["init_args"]
    optimizer = model["optimizer"]
    assert (optimizer["name"], optimizer["lr"], optimizer["weight_decay"]) == ("adam", 1e-3, 1e-6)
    assert (optimizer["schedule"], config["trainer"]["max_epochs"], data["batch_size"]) == (
        "constant",
        200,
        256,
    )
    assert tuple(model["encoder"]["init_args"][name] for name in ("depth", "width", "stem")) == (
        18,
        64,
        "small",
    )
    assert model["objective"]["init_args"]["temperature"] == 0.1
    views = data["views"]
    assert views["size"] == (96 if name == "stl10" else 32)
    assert views["scale"] == [0.08, 1.0]
    assert [views[k] for k in ("brightness", "contrast", "saturation", "hue")] == [0.4, 0.4, 0.4, 0.1]
    assert [views[k] for k in ("jitter", "grayscale", "hflip", "blur", "degrees")] == [0.8, 0.2, 0.5, 0, 0]
    assert config["metrics"]["k"] == 200


def test_configs_are_short():
    assert [file for file in FILES if len(file.read_text().splitlines()) > 22] == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "side", "lr", "pixels"),
    [
        ("tiny_imagenet", 64, 2e-3, 64),
        ("imagenet100", 256, 0.3 * 4 / 256, 224),
        ("imagenet", 256, 0.075 * 2, 224),  # 0.075 √4
        ("imagenet_moco_v2", 256, 0.03 * 4 / 256, 224),
    ],
    ids=IMAGENET,
)
def test_imagenet_configs_take_two_steps_at_full_size(name, side, lr, pixels, tmp_path):
    generator = torch.Generator().manual_seed(0)
    for number in range(16):
        folder = tmp_path / "images" / ("val" if number % 4 == 3 else "train") / f"n{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        image = torch.randint(256, (side, side, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(image.numpy()).save(folder / f"{number}.jpeg")
    args = [
        f"--config={CONFIGS / 'pretrain' / name}.yaml",
        f"--data.root={tmp_path / 'images'}",
        "--data.batch_size=4",
        "--data.val_share=0.5",
        "--model.optimizer.warmup_epochs=0",
        "--trainer.max_epochs=1",
        "--trainer.limit_train_batches=2",
        "--trainer.check_val_every_n_epoch=1",
        "--trainer.log_every_n_steps=1",
        "--trainer.accelerator=cpu",
        "--report=false",
        f"--runs_dir={tmp_path / 'runs'}",
        "--name=run",
    ]
    assert main(["fit", *args]) == 0
    run = open_run(tmp_path / "runs" / "run")
    model = run.untrained()
    assert (model.backbone.num_features, run.config["data"]["init_args"]["views"]["size"]) == (
        2048 if name in ("imagenet", "imagenet_moco_v2") else 512,
        pixels,
    )
    with (tmp_path / "runs/run/metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("train/loss")]
    assert len(rows) == 2
    assert all(math.isfinite(float(row["train/loss"])) for row in rows)
    state = torch.load(tmp_path / "runs/run/checkpoints/last.ckpt", weights_only=False)
    assert state["optimizer_states"][0]["param_groups"][0]["initial_lr"] == pytest.approx(lr)


def test_imagenet100_names_a_hundred_classes_of_wordnet():
    lines = (CONFIGS / "data" / "imagenet100.txt").read_text().splitlines()
    classes = [line for line in lines if not line.startswith("#")]
    assert len(set(classes)) == len(classes) == 100
    assert all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for name in classes)
    digest = hashlib.sha256("\n".join(sorted(classes)).encode()).hexdigest()
    assert digest == "d61d354b64beb3ce2c2c9cf04a874298362dc9fcd589e15ee34c5e4592145746"


OBJECTIVES = {
    "infonce": ["--model.objective=InfoNCE"],
    "dcl": ["--model.objective=DCL"],
    "dual": ["--model.objective=DualTemperature"],
    "macl": ["--model.objective=MACL"],
    "macl_b": ["--model.objective=MACLb"],
}


@pytest.fixture(scope="module")
def cifar_runs(data_root, tmp_path_factory):
    """Runs of 30 steps on real CIFAR-10 at batch size 32 with a narrow ResNet-18, one for each objective."""
    runs = tmp_path_factory.mktemp("cifar")
    for name, objective in OBJECTIVES.items():
        thirty_steps(data_root, runs, name, *objective, "--model.encoder.width=4", "--data.batch_size=32")
    return runs


def thirty_steps(data_root, runs, name, *args):
    start = [f"--config={CONFIGS / 'pretrain/cifar10.yaml'}", f"--data.root={data_root}"]
    short = [
        "--trainer.max_epochs=1",
        "--trainer.limit_train_batches=30",
        "--trainer.limit_val_batches=0",
        "--trainer.log_every_n_steps=1",
        "--trainer.accelerator=cpu",
        "--trainer.enable_progress_bar=false",
        "--report=false",
    ]
    assert main(["fit", *start, f"--runs_dir={runs}", f"--name={name}", *args, *short]) == 0


# The other objectives are marked long; test_every_config_trains trains them for two steps.
SAMPLE = ("reclaim", "vicreg")


@pytest.mark.realdata
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=[] if file.stem in SAMPLE else [pytest.mark.long])
        for file in sorted((CONFIGS / "objective").glob("*.yaml"))
    ],
)
def test_every_objective_takes_thirty_steps_on_cifar10(file, data_root, tmp_path):
    small = ["--model.encoder.width=4", "--data.batch_size=16", "--gradients=true"]
    thirty_steps(data_root, tmp_path, "run", f"--config={file}", *small)
    with (tmp_path / "run/metrics.csv").open(newline="") as log:
        losses = [float(row["train/loss"]) for row in csv.DictReader(log)]
    assert len(losses) == 30
    assert all(map(math.isfinite, losses))
    run = open_run(tmp_path / "run")
    trained, initial = run.checkpoint, run.untrained().state_dict()
    weights = [name for name in initial if name.endswith(("conv1.weight", "conv2.weight"))]
    assert all(trained.state[name].isfinite().all() for name in weights)
    assert not any(torch.equal(trained.state[name], initial[name]) for name in weights)


@pytest.mark.long
@pytest.mark.realdata
@pytest.mark.parametrize("name", OBJECTIVES)
def test_thirty_steps_on_cifar10_align_the_views(cifar_runs, name):
    with (cifar_runs / name / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    alignment = torch.tensor([float(row["train/alignment"]) for row in rows])
    losses = torch.tensor([float(row["train/loss"]) for row in rows])
    assert len(rows) == 30
    assert losses.isfinite().all()
    # The first steps spread the embeddings apart, which lowers alignment; from there it rises.
    low = int(alignment.argmin())
    assert alignment[-5:].mean() > alignment[low : low + 5].mean()
    assert losses[-5:].mean() < losses[:5].mean()


@pytest.mark.long
@pytest.mark.realdata
def test_evaluate_needs_only_checkpoint_on_cifar10(cifar_runs, tmp_path, capsys):
    args = ["--baselines=false", "--probe.epochs=1", f"--output={tmp_path / 'evaluation.json'}"]
    assert main(["evaluate", str(cifar_runs / "macl"), *args]) == 0
    printed = capsys.readouterr().out
    assert "CIFAR10: test split (10000 images) against 50000 labelled train images" in printed
    knn = float(next(line for line in printed.splitlines() if "trained backbone" in line).split()[2])
    assert 20 < knn < 60  # ten classes: chance is 10


@pytest.mark.parametrize("data", NEEDS)
def test_fit_reports_missing_data_in_one_line_with_path_and_remedy(data, tmp_path, capsys):
    args = [f"--data={data}", f"--data.root={tmp_path}", f"--runs_dir={tmp_path / 'runs'}", "--name=run"]
    assert main(["fit", *args]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / NEEDS[data]) in error
    assert "--data.download true" in error
    assert "--data Digits" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.realdata
def test_unlabelled_stl10_images_are_excluded_from_validation(data_root, tmp_path):
    root = stl10_with_unlabeled(data_root, tmp_path)
    data = STL10(root=root, seed=0)
    pretrain = data.split("pretrain")
    assert len(pretrain) == 600
    assert int((~pretrain.labelled).sum()) == 100
    queries, bank = data.val_dataloader()
    assert bank.data.labelled.all()
    assert queries.data.labelled.all()
    assert len(bank.data) + len(queries.data) == 500
