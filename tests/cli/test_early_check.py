"""Tests of the checks of options before torch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest
from settings import CONFIGS

from ssl_vision.cli.fit_command import checked
from ssl_vision.errors import InputError

WRONG = [
    ["fit", "--trainer.max_epoch=3"],
    ["fit", "--model.objective=MACLL"],
    ["fit", "--data=ImageFolder", "--data.root"],
    ["fit", "--config"],
    ["fit", "--config=pretrain/digit"],
    ["fit", "--model=mine.Net"],
    ["sweep", "sweep.yaml"],
    ["fit", "--model.objective.temperature=cold"],
]


def test_wrong_input_is_found_without_importing_torch(tmp_path):
    text = (CONFIGS / "sweep" / "temperature_digits.yaml").read_text()
    (tmp_path / "sweep.yaml").write_text(text.replace("objective.temperature", "objective.temperatur"))
    code = f"import sys; from ssl_vision.main import main; print([main(line) for line in {WRONG}])"
    code += "; sys.exit('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(CONFIGS.parent)},
    )
    assert (result.returncode, result.stdout) == (0, f"{[2] * len(WRONG)}\n"), result.stderr
    assert len(result.stderr.splitlines()) == len(WRONG)


@pytest.mark.parametrize(
    "options",
    [
        "--trainer.max_steps -1 --trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor val/acc",
        "--model MoCo --model.momentum 0.9 --model.init_args.encoder.init_args.width 3",
        "--model.objective lightly.loss.MACLLoss --model.objective.temperature 0.2",
        "--model.objective.temperature Constant --data.views.size 8",
        "--model.encoder Timm --model.encoder.name resnet18 --model.encoder.dict_kwargs.drop_path_rate 1",
        "--data.progressive_resizing {5:16}",
        "--config pretrain/digits --config objective/reclaim --print_config",
    ],
)
def test_valid_options_are_accepted(options):
    assert checked(options.split())[-1] == options.split()[-1]


def test_null_in_a_config_file_is_a_value(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("data: {class_path: Digits}\nmodel: {init_args: {chunk_size: null}}\nname: null\n")
    assert checked([f"--config={file}"]) == [f"--config={file}"]


def test_class_of_the_current_directory_is_left_to_the_parser(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no module named 'mine'"):
        checked(["--model.objective=mine.Loss"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # as in a notebook
    assert checked(["--model.objective=__main__.Loss"])
    Path("mine.py").touch()
    assert checked(["--model.objective=mine.Loss", "--model.objective.any=3"])
