"""Tests of the command ``ssl-vision fit``, mostly in process and on the digits."""

import csv
import json
import shutil
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import timm
import torch
import yaml
from PIL import Image
from pytorch_lightning import callbacks
from pytorch_lightning.callbacks import ProgressBar
from settings import CONFIGS, TINY, UNVALIDATED

from ssl_vision.cli.fit import knn_k
from ssl_vision.cli.run_options import check_callbacks
from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.objectives import Contrastive, TwoViews
from ssl_vision.pretrained.backbones import read_backbone
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.config import derived_name
from ssl_vision.runs.registry import Run


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def fit(runs: Path, *args: str, name: str = "run") -> int:
    return main(["fit", f"--runs_dir={runs}", f"--name={name}", *TINY, *args])


def test_a_run_folder_holds_config_metrics_and_checkpoint(tiny_run):
    assert {p.name for p in tiny_run.iterdir()} == {
        ".lock",
        "config.yaml",
        "metrics.csv",
        "times.csv",
        "weights.csv",
        "checkpoints",
    }
    assert {p.name for p in (tiny_run / "checkpoints").iterdir()} == {"last.ckpt", "previous-last.ckpt"}
    config = yaml.safe_load((tiny_run / "config.yaml").read_text())
    objective = config["model"]["init_args"]["objective"]
    assert objective["class_path"] == "ssl_vision.objectives.MACL"
    assert objective["init_args"]["alpha"] == 3
    assert config["seed_everything"] == 0


def test_metrics_csv_has_every_step_once_with_the_documented_names(tiny_run):
    table = rows(tiny_run)
    assert [int(row["step"]) for row in table] == list(range(8))
    for row in table:
        assert float(row["train/loss"]) >= 1  # MACL's value
        assert 0.1 / 3 <= float(row["train/temperature"]) <= 0.3
        assert float(row["train/temperature"]) == pytest.approx(
            0.1 * 3 ** float(row["train/alignment"]), rel=1e-4
        )
        assert 0 <= float(row["train/weight_q05"]) <= float(row["train/weight_q95"]) <= 1
    for name in ("knn_top1", "alignment", "uniformity", "tolerance", "sensitivity", "rankme"):
        values = [float(row[f"val/{name}"]) for row in table if row[f"val/{name}"]]
        assert len(values) == 2, name
    assert {"val/alignment_hidden", "val/sensitivity_projector", "val/same_cosine"} <= set(table[0])


def test_times_csv_has_duration_of_each_epoch(tiny_run):
    with (tiny_run / "times.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["epoch"] for row in table] == ["0", "1"]
    for row in table:
        assert float(row["time/train_seconds"]) > 0
        assert float(row["time/val_seconds"]) > 0


def test_checkpoint_contains_epoch_and_config(tiny_run):
    checkpoint = read_checkpoint(tiny_run)
    assert checkpoint.epoch == 2
    assert checkpoint.config == yaml.safe_load((tiny_run / "config.yaml").read_text())


def test_every_preset_has_a_config():
    named = {
        yaml.safe_load(file.read_text())["model"]["init_args"]["objective"]["class_path"]
        for file in CONFIGS.glob("objective/*.yaml")
    }
    assert named == (names_below(Contrastive) | names_below(TwoViews) | {"RECLAIM"}) - {"HardestTriplet"}


def names_below(base: type) -> set[str]:
    """Names of the package's public subclasses, at any depth."""
    subclasses = [cls for cls in base.__subclasses__() if cls.__module__.startswith("ssl_vision.")]
    public = {cls.__name__ for cls in subclasses if not cls.__name__.startswith("_")}
    return public.union(*map(names_below, subclasses))


def test_dcl_equals_unadapted_macl_and_differs_from_infonce(tmp_path):
    """With equal initial weights, batches and views, DCL and MACL without adaptation learn the same."""
    assert fit(tmp_path, "--model.objective=DCL", name="dcl") == 0
    assert fit(tmp_path, "--model.objective=MACL", "--model.objective.alpha=1", name="macl") == 0
    assert fit(tmp_path, "--model.objective=InfoNCE", name="infonce") == 0
    dcl, macl, infonce = (read_checkpoint(tmp_path / n).state for n in ("dcl", "macl", "infonce"))
    weight = "backbone.conv1.weight"
    torch.testing.assert_close(dcl[weight], macl[weight], rtol=1e-3, atol=1e-4)
    assert (dcl[weight] - infonce[weight]).abs().max() > 1e-3


def test_same_command_gives_bitwise_identical_run(tmp_path, tiny_run):
    args = ["--model.objective=MACL", "--model.objective.alpha=3"]
    assert fit(tmp_path, *args) == 0
    first, second = read_checkpoint(tiny_run).state, read_checkpoint(tmp_path / "run").state
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert (tiny_run / "metrics.csv").read_text() == (tmp_path / "run" / "metrics.csv").read_text()


def test_resumed_run_matches_uninterrupted_run(tmp_path, tiny_run):
    args = ["--model.objective=MACL", "--model.objective.alpha=3"]
    assert fit(tmp_path, *args, "--trainer.max_epochs=1") == 0
    assert fit(tmp_path, *args, "--ckpt_path=last") == 0
    uninterrupted, continued = read_checkpoint(tiny_run).state, read_checkpoint(tmp_path / "run").state
    assert all(torch.equal(uninterrupted[key], continued[key]) for key in uninterrupted)
    assert rows(tmp_path / "run") == rows(tiny_run)


def test_resuming_logs_whether_a_checkpoint_was_found(tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    assert fit(tmp_path, "--ckpt_path=last", "--trainer.max_epochs=1") == 0
    assert "starting from the beginning" in caplog.text + capsys.readouterr().err
    assert fit(tmp_path, "--ckpt_path=last") == 0
    assert "continuing from" in caplog.text + capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("--model.optimizer.lr=0.777", "model.init_args.optimizer.lr: 0.001 there, 0.777 here"),
        ("--model.objective=DCL", "model.init_args.objective.class_path"),
        ("--seed_everything=1", "seed_everything: 0 there, 1 here"),
    ],
)
def test_resuming_with_changed_config_is_refused(tmp_path, tiny_run, capsys, change, key):
    """Lightning would let the checkpoint's hyper-parameters override the command line."""
    args = ["--model.objective=MACL", "--model.objective.alpha=3"]
    shutil.copytree(tiny_run, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.csv").read_text()
    for path in ("last", str(tmp_path / "run" / "checkpoints" / "last.ckpt")):
        assert fit(tmp_path, *args, f"--ckpt_path={path}", change) == 2
        error = capsys.readouterr().err
        assert key in error
        assert error.count("\n") == 1
    assert (tmp_path / "run" / "metrics.csv").read_text() == before


def test_existing_run_is_overwritten_only_on_request(tmp_path, capsys):
    short = "--trainer.limit_val_batches=0"
    assert fit(tmp_path, short) == 0
    assert fit(tmp_path, short) == 2
    assert "--ckpt_path last" in capsys.readouterr().err
    assert fit(tmp_path, short, "--model.optimizer.lr=0.5") == 2
    assert "model.init_args.optimizer.lr: 0.001 there, 0.5 here" in capsys.readouterr().err
    (tmp_path / "run" / "features").mkdir()
    (tmp_path / "run" / "backbone.safetensors").touch()
    (tmp_path / "run" / "notes.txt").touch()
    (tmp_path / "run" / "checkpoints" / "mine.ckpt").touch()
    assert fit(tmp_path, short, "--model.optimizer.lr=0.5", "--overwrite=true") == 0
    remaining = {file.name for file in (tmp_path / "run").iterdir()}
    logs = {"metrics.csv", "times.csv", "weights.csv"}
    assert remaining == {".lock", "config.yaml", *logs, "checkpoints", "notes.txt"}
    assert (tmp_path / "run" / "checkpoints" / "mine.ckpt").exists()
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["model"]["init_args"]["optimizer"]["lr"] == 0.5


def test_directory_of_run_without_any_step_is_reused(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise RuntimeError("before the first step")

    with monkeypatch.context() as patch:
        patch.setattr(Contrastive, "forward", stop)
        assert fit(tmp_path, "--trainer.max_epochs=1") != 0
    assert (tmp_path / "run" / "config.yaml").exists()
    assert fit(tmp_path, "--trainer.max_epochs=1") == 0
    assert len(rows(tmp_path / "run")) == 4


def test_resuming_without_last_checkpoint_keeps_other_checkpoints(tmp_path, tiny_run, capsys):
    checkpoints = shutil.copytree(tiny_run, tmp_path / "run") / "checkpoints"
    (checkpoints / "last.ckpt").rename(checkpoints / "best.ckpt")
    (checkpoints / "previous-last.ckpt").unlink()
    args = ["--model.objective=MACL", "--model.objective.alpha=3", "--trainer.max_epochs=3"]
    assert fit(tmp_path, *args, "--ckpt_path=last") == 2
    assert "last.ckpt: no such checkpoint" in capsys.readouterr().err
    assert (checkpoints / "best.ckpt").exists()


def test_run_with_results_but_no_checkpoint_is_not_started_again(tiny_run, tmp_path, capsys):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    (run / "backbone.safetensors").touch()
    for file in (run / "checkpoints").iterdir():
        file.unlink()
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert main(["fit", str(run)]) == 2
    assert "has results, but no checkpoint to continue from" in capsys.readouterr().err
    (run / "metrics.csv").unlink()
    before.pop(run / "metrics.csv")
    assert fit(tmp_path, "--model.objective=MACL", "--model.objective.alpha=3") == 2
    assert "already contains this run" in capsys.readouterr().err
    assert before == {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}


def test_run_directory_is_accepted_as_checkpoint(tiny_run, tmp_path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    args = ["--model.objective=MACL", "--model.objective.alpha=3"]
    assert fit(tmp_path, *args, f"--ckpt_path={run}", "--trainer.max_epochs=3") == 0
    assert read_checkpoint(run).epoch == 3


def test_path_in_home_directory_reaches_your_own_class_when_a_run_continues(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenes").mkdir()
    (tmp_path / "own_scenes.py").write_text(
        "from pathlib import Path\n\nfrom torchvision.datasets import FakeData\n\n\n"
        "class Scenes(FakeData):\n"
        "    def __init__(self, folder: str):\n"
        "        assert Path(folder).is_dir(), folder\n"
        "        super().__init__(size=64, image_size=(3, 8, 8))\n"
    )
    data = ["--data=Dataset", "--data.dataset=own_scenes.Scenes", f"--data.dataset.folder={tmp_path}/scenes"]
    short = [*UNVALIDATED, "--data.views.size=8", "--data.batch_size=16", "--trainer.max_epochs=1"]
    assert main(["fit", "--runs_dir=runs", "--name=run", *data, *short]) == 0
    assert "folder: ~/scenes" in Path("runs/run/config.yaml").read_text()
    assert main(["fit", "runs/run", "--trainer.max_epochs=2"]) == 0
    assert read_checkpoint(Path("runs/run")).epoch == 2


def test_module_and_data_of_other_code_are_trained_under_the_bar(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own_code.py").write_text(
        "import torch\nfrom pytorch_lightning import LightningDataModule, LightningModule\n"
        "from torch.utils.data import DataLoader\n\n\n"
        "class Own(LightningModule):\n"
        "    def __init__(self, optimizer: str = 'sgd'):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(1, 1)\n\n"
        "    def training_step(self, batch, index):\n"
        "        return self.layer(batch[1].float()[:, None]).mean()\n\n"
        "    def configure_optimizers(self):\n"
        "        return torch.optim.SGD(self.parameters(), 0.1)\n\n\n"
        "class Plain(LightningDataModule):\n"
        "    def train_dataloader(self):\n"
        "        return DataLoader([((torch.zeros(3), torch.zeros(3)), 1.0)] * 16, batch_size=8)\n"
    )
    options = ["--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--report=false"]
    assert main(["fit", "--model=own_code.Own", "--data=own_code.Plain", "--name=run", *options]) == 0
    assert Run("runs/run").steps == 2


def test_path_in_home_directory_reaches_callbacks_when_a_run_continues(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    loggers = [{"class_path": "CSVLogger", "init_args": {"save_dir": f"{tmp_path}/{name}"}} for name in "ab"]
    options = [f"--trainer.logger={json.dumps(loggers)}", *UNVALIDATED, "--trainer.max_epochs=1"]
    assert main(["fit", "--runs_dir=runs", "--name=run", *options]) == 0
    assert "save_dir: ~/a" in Path("runs/run/config.yaml").read_text()
    assert main(["fit", "runs/run", "--trainer.max_epochs=2"]) == 0
    assert not Path("~").exists()
    assert len(list(Path("b").rglob("metrics.csv"))) == 2


def test_logger_may_write_to_the_run_directory(tmp_path):
    logger = ["--trainer.logger=CSVLogger", f"--trainer.logger.save_dir={tmp_path / 'run'}"]
    assert fit(tmp_path, *logger, "--trainer.max_epochs=1") == 0
    assert list((tmp_path / "run").rglob("lightning_logs/*/metrics.csv"))


def test_user_checkpoint_callback_works_beside_last_checkpoint(tmp_path):
    own = ["--trainer.callbacks=ModelCheckpoint", f"--trainer.callbacks.dirpath={tmp_path / 'own'}"]
    assert fit(tmp_path, *own, "--trainer.max_epochs=1") == 0
    assert list((tmp_path / "own").glob("*.ckpt"))
    assert fit(tmp_path, *own, "--trainer.max_epochs=2", "--ckpt_path=last") == 0
    lasts = {"last.ckpt", "previous-last.ckpt"}
    assert {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()} == lasts
    assert read_checkpoint(tmp_path / "run").epoch == 2


def test_checkpoint_contains_no_local_path_except_runs_dir(tiny_run):
    content = torch.load(tiny_run / "checkpoints" / "last.ckpt", weights_only=True)
    content["ssl_vision"]["config"] = content["ssl_vision"]["config"].replace(
        f"runs_dir: {tiny_run.parent}", ""
    )
    assert str(tiny_run.parent) not in repr({k: v for k, v in content.items() if k != "state_dict"})


def test_run_with_schedule_cannot_be_resumed_with_other_max_epochs(tmp_path, capsys):
    cosine = ["--model.optimizer.schedule=cosine", "--trainer.max_epochs=1"]
    assert fit(tmp_path, *cosine) == 0
    assert fit(tmp_path, *cosine, "--trainer.max_epochs=2", "--ckpt_path=last") == 2
    assert "trainer.max_epochs: 1 there, 2 here" in capsys.readouterr().err


def test_derived_name_depends_on_data_root_but_not_on_epochs():
    def config(root, epochs):
        data = {"class_path": "ssl_vision.data.ImageFolder", "init_args": {"root": root}}
        return {"data": data, "trainer": {"max_epochs": epochs}, "seed_everything": 0}

    assert derived_name(config("a", 1)) == derived_name(config("a", 9)) != derived_name(config("b", 1))


def test_interrupt_exits_with_130_and_says_how_to_continue(tmp_path, capsys, monkeypatch):
    def interrupt(self, batch, batch_idx):
        raise KeyboardInterrupt

    monkeypatch.setattr("ssl_vision.methods.SimCLR.training_step", interrupt)
    assert fit(tmp_path) == 130
    assert "--ckpt_path last" in capsys.readouterr().err


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_every_precision_trains(precision, tmp_path):
    short = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.limit_val_batches=0"]
    assert fit(tmp_path, *short, f"--trainer.precision={precision}") == 0


def test_logged_loss_does_not_depend_on_gradient_accumulation(tmp_path):
    zero_lr = ["--model.optimizer.lr=0", "--trainer.max_epochs=1"]
    for name, accumulated in (("one", 1), ("four", 4)):
        assert fit(tmp_path, *zero_lr, f"--trainer.accumulate_grad_batches={accumulated}", name=name) == 0
    one, four = rows(tmp_path / "one"), rows(tmp_path / "four")
    assert float(four[-1]["train/loss"]) == pytest.approx(float(one[-1]["train/loss"]), rel=1e-4)


@pytest.mark.long
def test_two_processes_train_one_run(tmp_path):
    ddp = ["--trainer.devices=2", "--trainer.strategy=ddp", "--data.batch_size=32", "--trainer.max_epochs=1"]
    command = [sys.executable, "-m", "ssl_vision", "fit", f"--runs_dir={tmp_path}", "--name=run", *TINY, *ddp]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr
    table = rows(tmp_path / "run")
    assert [int(row["step"]) for row in table] == list(range(4))
    assert table[-1]["val/knn_top1"]


def test_run_that_cannot_start_does_not_overwrite_existing_run(tmp_path, tiny_run):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    for options in ("--data.batch_size=5000", f"--data=CIFAR10 --data.root={tmp_path}", "--ckpt_path=last"):
        assert fit(tmp_path, "--overwrite=true", *options.split()) == 2
    assert before == {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}


def test_overwrite_refuses_folder_that_is_not_a_run(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("all of it")
    assert fit(tmp_path, "--overwrite=true") == 2
    assert "not a run directory" in capsys.readouterr().err
    assert (tmp_path / "run" / "thesis.txt").read_text() == "all of it"


def test_overwrite_refuses_folder_with_config_of_another_program(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("model: {layers: 3}\ndata: mine\n")
    (tmp_path / "run" / "metrics.csv").write_text("all of it")
    assert fit(tmp_path, "--overwrite=true") == 2
    assert "its config.yaml is not that of a run" in capsys.readouterr().err
    assert (tmp_path / "run" / "metrics.csv").read_text() == "all of it"


def test_unnamed_runs_get_distinct_names(tmp_path):
    short = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2"]
    short += ["--trainer.limit_val_batches=0"]
    for args in ([], ["--model.objective=DCL"], ["--model.objective.temperature=0.2"]):
        assert main(["fit", f"--runs_dir={tmp_path}", *TINY, *short, *args]) == 0
    names = sorted(p.name for p in tmp_path.iterdir())
    assert len(names) == 3
    assert [name.rsplit("-", 1)[0] for name in names] == [
        "digits-dcl-s0",
        "digits-infonce-s0",
        "digits-infonce-s0",
    ]


def test_config_files_stack_and_later_ones_win(tmp_path):
    files = [CONFIGS / "pretrain/digits.yaml", CONFIGS / "objective/macl_b.yaml"]
    stacked = [f"--config={file}" for file in files]
    args = [*stacked, *TINY, "--model.objective.beta=0.25", "--trainer.max_epochs=1"]
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *args]) == 0
    model = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"]["init_args"]
    assert model["objective"]["class_path"] == "ssl_vision.objectives.MACLb"
    assert model["objective"]["init_args"]["beta"] == 0.25
    assert model["encoder"]["init_args"]["width"] == 4


def test_the_config_records_the_k_of_the_data_set(tmp_path):
    args = [option for option in TINY if not option.startswith("--metrics.k")]
    short = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=0"]
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *args, *short]) == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["metrics"]["k"] == 20
    assert knn_k("ssl_vision.data.CIFAR10") == knn_k("pytorch_lightning.LightningDataModule") == 200


def test_a_loss_of_another_library_trains_too(tmp_path):
    lightly = ["--model.objective=lightly.loss.MACLLoss", "--model.objective.temperature=0.2"]
    assert fit(tmp_path, *lightly, "--trainer.max_epochs=1") == 0
    assert "train/loss" in rows(tmp_path / "run")[0]
    assert "train/temperature" not in rows(tmp_path / "run")[0]


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (
            ["--data.root=images"],
            "unknown option --data.root of Digits; first choose a class with this option: ",
        ),
        (
            ["--data=HERE"],
            "HERE; for a folder of images, use --data ImageFolder --data.root HERE",
        ),
        (["--data=ImageFolder"], "data: the following arguments are required: root"),
    ],
)
def test_wrong_image_folder_options_get_advice(options, advice, tmp_path, monkeypatch, capsys):
    (tmp_path / "HERE").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *options]) == 2
    error = capsys.readouterr().err
    assert advice in error
    assert ("ImageFolder" in error) != (options == ["--data=ImageFolder"])


def test_options_before_their_class_are_refused(tmp_path, capsys):
    assert fit(tmp_path, "--model.objective.alpha=3", "--model.objective=MACL") == 2
    assert "of InfoNCE; first choose a class with this option: --model.objective" in capsys.readouterr().err


def test_changing_class_keeps_only_options_of_new_class(tmp_path):
    macl = f"--config={CONFIGS / 'objective/macl.yaml'}"
    args = [macl, "--model.objective=DCL", "--trainer.max_epochs=1"]
    assert fit(tmp_path, *args) == 0
    objective = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"]["init_args"][
        "objective"
    ]
    assert objective == {
        "class_path": "ssl_vision.objectives.DCL",
        "init_args": {"temperature": 0.1, "pairs": None, "gather": True},
    }  # fmt: skip


def test_user_logger_runs_beside_metrics_csv(tmp_path):
    logger = ["--trainer.logger=CSVLogger", f"--trainer.logger.save_dir={tmp_path / 'mine'}"]
    assert fit(tmp_path, *logger, "--trainer.max_epochs=1") == 0
    assert list((tmp_path / "mine").rglob("metrics.csv"))
    assert len(rows(tmp_path / "run")) == 4


@pytest.mark.parametrize("own", [False, True])
def test_user_progress_bar_replaces_default_bar(own, tmp_path, monkeypatch):
    progress_bars = []

    def record(self):
        progress_bars.append([type(c).__name__ for c in self.trainer.callbacks if isinstance(c, ProgressBar)])

    monkeypatch.setattr("ssl_vision.methods.SimCLR.on_train_epoch_start", record)
    bar = ["--trainer.callbacks+=TQDMProgressBar"] if own else []
    assert fit(tmp_path, "--trainer.enable_progress_bar=true", "--trainer.max_epochs=1", *bar) == 0
    assert progress_bars == [["TQDMProgressBar" if own else "RunBar"]]


def test_run_files_contain_neither_home_directory_nor_wandb_key(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "f" * 40)
    images = tmp_path / "images"
    for name in "ab":
        (images / name).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (8, 8), (number, 7 * number, 255 - number)).save(images / name / f"{number}.png")
    (images / "a" / "broken.png").write_bytes(b"not an image")
    data = ["--data=ImageFolder", f"--data.root={images}", "--data.image_size=8", "--data.views.size=8"]
    args = [*data, *TINY, "--data.batch_size=16", "--trainer.max_epochs=1", "--wandb=offline"]
    with pytest.warns(UserWarning, match="skipped 1 of 41 images"):
        assert main(["fit", f"--runs_dir={tmp_path}/runs", "--name=run", *args]) == 0
    run = tmp_path / "runs" / "run"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["data"]["init_args"]["root"] == "~/images"
    assert config["runs_dir"] == "~/runs"
    assert (run / "skipped.txt").read_text() == "a/broken.png\n"
    for file in run.rglob("*"):
        if file.is_file() and not file.name.startswith("debug"):  # W&B's own log, which stays on this machine
            content = file.read_bytes()
            assert str(tmp_path).encode() not in content, file
            assert b"f" * 40 not in content, file
    assert main(["fit", "--runs_dir=~/runs", "--name=run", *args, "--ckpt_path=last"]) == 0


@pytest.mark.parametrize(
    ("frozen", "complaint"),
    [(0, "optimizer.warmup_epochs 5"), (1, "optimizer.freeze_epochs + optimizer.warmup_epochs 6")],
)
def test_a_warm_up_longer_than_the_run_is_refused(frozen, complaint, tmp_path, capsys):
    args = ["--model.optimizer.schedule=cosine", "--model.optimizer.warmup_epochs=5"]
    assert fit(tmp_path, *args, f"--model.optimizer.freeze_epochs={frozen}") == 2
    advice = "is longer than the run of 2 epochs: reduce it, or increase --trainer.max_epochs"
    assert f"{complaint} {advice}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "validated"),
    [
        (["--trainer.max_epochs=1", "--trainer.check_val_every_n_epoch=2"], [3]),
        (["--trainer.max_epochs=3", "--trainer.check_val_every_n_epoch=2"], [7, 11]),
        (["--trainer.max_epochs=2", "--trainer.check_val_every_n_epoch=2"], [7]),
        (["--trainer.val_check_interval=3"], [2, 6, 7]),
        (["--trainer.check_val_every_n_epoch=3", "--trainer.max_steps=4"], [3]),
        (["--trainer.max_epochs=-1", "--trainer.check_val_every_n_epoch=3", "--trainer.max_steps=6"], [5]),
        (["--trainer.check_val_every_n_epoch=null", "--trainer.val_check_interval=5"], [4, 7]),
    ],
)
def test_last_epoch_is_validated_whatever_the_interval(tmp_path, options, validated):
    assert fit(tmp_path, *options) == 0
    assert [int(row["step"]) for row in rows(tmp_path / "run") if row["val/knn_top1"]] == validated


def test_run_validated_after_its_last_epoch_continues_with_its_own_interval(tmp_path):
    args = ["--trainer.check_val_every_n_epoch=2"]
    assert fit(tmp_path, "--trainer.max_epochs=1", *args) == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["trainer"]["check_val_every_n_epoch"] == 2
    assert main(["fit", str(tmp_path / "run"), "--trainer.max_epochs=4"]) == 0
    assert [row["epoch"] for row in rows(tmp_path / "run") if row["val/knn_top1"]] == ["0", "1", "3"]
    assert fit(tmp_path, "--trainer.max_epochs=4", *args, name="whole") == 0
    one, other = (read_checkpoint(tmp_path / name).state for name in ("run", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in one)


USABLE = {
    "BasePredictionWriter", "Callback", "Checkpoint", "DeviceStatsMonitor", "EarlyStopping",
    "EMAWeightAveraging", "LambdaCallback", "LearningRateMonitor", "ModelCheckpoint", "ModelSummary",
    "OnExceptionCheckpoint", "ProgressBar", "RichModelSummary", "RichProgressBar", "SpikeDetection",
    "StochasticWeightAveraging", "ThroughputMonitor", "Timer", "TQDMProgressBar", "WeightAveraging",
}  # fmt: skip
REFUSED = {
    "BackboneFinetuning": [],
    "BatchSizeFinder": [],
    "GradientAccumulationScheduler": ["--trainer.callbacks.scheduling={1: 2}"],
    "LearningRateFinder": [],
    "ModelPruning": ["--trainer.callbacks.pruning_fn=l1_unstructured", "--trainer.callbacks.amount=0.5"],
}


def test_every_callback_of_lightning_is_usable_or_refused():
    names = {name for name in callbacks.__all__ if not name.startswith("Base") or name in USABLE}
    assert names - {"BaseFinetuning"} == USABLE | REFUSED.keys()
    for name in callbacks.__all__:
        cls = getattr(callbacks, name)
        expected = nullcontext()
        if name in REFUSED or name == "BaseFinetuning":
            expected = pytest.raises(InputError, match=name)
        elif name == "StochasticWeightAveraging":
            expected = pytest.warns(UserWarning, match=f"{name}: a continued run differs")
        with expected:
            check_callbacks([cls.__new__(cls)])


def test_config_with_device_of_a_callback_can_be_read_back(tmp_path):
    averaging = ["--trainer.callbacks+=StochasticWeightAveraging", "--trainer.callbacks.swa_lrs=0.01"]
    with pytest.warns(UserWarning, match="a continued run differs"):
        assert fit(tmp_path, *averaging, "--trainer.max_epochs=1", "--trainer.limit_val_batches=0") == 0
    assert "device: cpu" in (tmp_path / "run" / "config.yaml").read_text()
    with pytest.warns(UserWarning, match="a continued run differs"):
        assert main(["fit", str(tmp_path / "run"), "--trainer.max_epochs=2"]) == 0


@pytest.mark.parametrize("name", REFUSED)
def test_callback_that_would_make_a_run_inexact_is_refused_before_the_first_step(tmp_path, capsys, name):
    assert fit(tmp_path, f"--trainer.callbacks+={name}", *REFUSED[name]) == 2
    assert f"--trainer.callbacks {name} cannot be used: " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_continued_run_warns_about_another_number_of_threads(tmp_path, tiny_run, monkeypatch):
    shutil.copytree(tiny_run, tmp_path / "run")
    threads = torch.get_num_threads()
    args = ["fit", str(tmp_path / "run")]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    with pytest.warns(UserWarning, match=f"trained with {threads} threads and continues with {threads + 1},"):
        assert main([*args, "--trainer.max_epochs=3"]) == 0
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*threads")
        assert main([*args, "--trainer.max_epochs=4"]) == 0


def test_run_directory_argument_supplies_config_and_checkpoint(tiny_run, tmp_path, monkeypatch, capsys):
    shutil.copytree(tiny_run, tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert main(["fit", "."]) == 0
    assert capsys.readouterr().out.startswith("nothing was left to train: 2 epochs")
    assert main(["fit", str(tmp_path / "moved"), "--trainer.max_epochs=3", "--report=false"]) == 0
    assert read_checkpoint(tmp_path / "moved").epoch == 3
    assert main(["fit", str(tmp_path)]) == 2
    assert f"{tmp_path}: no run directory (no config.yaml); options start with --" in capsys.readouterr().err
    assert main(["fit", "pretrain/digits"]) == 2
    assert "(no config.yaml); for the recipe, use --config pretrain/digits" in capsys.readouterr().err


def test_run_with_class_of_current_directory_can_be_continued(tmp_path, monkeypatch):
    source = "from ssl_vision.objectives import InfoNCE\n\n\nclass Mine(InfoNCE):\n    pass\n"
    (tmp_path / "objective_of_mine.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert fit(Path("runs"), "--model.objective=objective_of_mine.Mine", "--trainer.max_epochs=1") == 0
    monkeypatch.delitem(sys.modules, "objective_of_mine")
    assert main(["fit", "runs/run", "--trainer.max_epochs=2"]) == 0
    assert read_checkpoint(Path("runs/run")).epoch == 2


def test_directory_of_runs_is_refused_with_example_run(tiny_run):
    with pytest.raises(
        InputError, match=rf"no such checkpoint; give one of its 1 runs, such as .*/{tiny_run.name}$"
    ):
        read_checkpoint(tiny_run.parent)


def test_backbone_description_has_normalisation_of_run(tiny_run):
    views = yaml.safe_load((tiny_run / "config.yaml").read_text())["data"]["init_args"]["views"]
    described = read_backbone(str(tiny_run)).description
    assert (list(described.mean), list(described.std)) == (views["mean"], views["std"])


def test_changed_config_error_shortens_differences_and_names_command(tmp_path, capsys):
    assert fit(tmp_path, "--trainer.max_epochs=1") == 0
    capsys.readouterr()
    views = ("hflip", "hue", "jitter", "grayscale", "blur", "solarize")
    view_options = [f"--data.views.{name}=0.15" for name in views]
    other_options = ["--model.optimizer.lr=0.7", "--seed_everything=1"]
    assert fit(tmp_path, *view_options, *other_options, "--ckpt_path=last") == 2
    error = capsys.readouterr().err
    assert "; and 2 more)" in error
    assert "seed_everything" not in error
    assert error.endswith(f"; use that config with ssl-vision fit {tmp_path / 'run'}\n")


def test_fit_emits_no_warnings_from_lightning_cli(tmp_path, monkeypatch, recwarn):
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "all")
    warnings.simplefilter("always")
    assert fit(tmp_path, "--trainer.max_steps=1") == 0
    assert not [str(each.message) for each in recwarn if each.filename.endswith("cli.py")]


def test_early_stopping_on_a_missing_metric_is_an_input_error(tmp_path, capsys):
    stop = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/acc"]
    assert main(["fit", f"--runs_dir={tmp_path}", *TINY, "--trainer.max_epochs=1", *stop]) == 2
    assert "Early stopping conditioned on metric `val/acc` which is not available" in capsys.readouterr().err


def test_enumerations_of_callbacks_are_recorded_as_their_values(tmp_path):
    timer = ["--trainer.callbacks+=Timer", "--trainer.callbacks.duration=00:01:00:00"]
    args = [f"--runs_dir={tmp_path}", "--name=run", *TINY, "--trainer.max_epochs=1", *timer]
    assert main(["fit", *args]) == 0
    (callback,) = Run(tmp_path / "run").config["trainer"]["callbacks"]
    assert callback["init_args"]["interval"] == "step"


def test_images_are_normalised_for_the_weights_of_a_timm_model_unless_stated(tmp_path):
    torch.save(timm.create_model("resnet10t").state_dict(), file := tmp_path / "weights.pth")
    encoder = ["--model.encoder=Timm", "--model.encoder.name=resnet10t", "--trainer.limit_train_batches=1"]
    start = f"--initial_checkpoint={file}"
    for name, options, mean in (
        ("from_weights", [start], [0.485, 0.456, 0.406]),
        ("random", [], [0.3054] * 3),
        ("stated", [start, "--data.views.mean=[0.5,0.5,0.5]"], [0.5] * 3),
    ):
        place = [f"--runs_dir={tmp_path}", f"--name={name}", "--trainer.max_epochs=1"]
        assert main(["fit", *encoder, *options, *TINY[1:], *place]) == 0
        config = yaml.safe_load((tmp_path / name / "config.yaml").read_text())
        assert config["data"]["init_args"]["views"]["mean"] == pytest.approx(mean)
    assert main(["fit", str(tmp_path / "from_weights"), "--trainer.max_epochs=2"]) == 0
    assert read_checkpoint(tmp_path / "from_weights").epoch == 2
