"""Tests of the Python API: results equal those of the command line, and process state is restored."""

import json
import os
import random
import signal
import sys
import threading

import numpy as np
import pytest
import torch
import yaml
from equal import difference_of_runs
from settings import CONFIGS, TINY
from torch import nn

import ssl_vision
from ssl_vision.api import _globals_restored
from ssl_vision.errors import InputError
from ssl_vision.main import main

OPTIONS = dict(option.removeprefix("--").split("=") for option in TINY)
ONE_STEP = OPTIONS | {"trainer.limit_train_batches": 1, "trainer.max_epochs": 1}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def process_state():
    """Global state of the process that training might change."""
    generators = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
    handlers = [signal.getsignal(number) for number in SIGNALS]
    kernels = [torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark]
    return generators, handlers, dict(os.environ), kernels, sys.path.copy(), torch.is_grad_enabled()


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """A run of two epochs, trained from Python."""
    fit = ssl_vision.fit  # importing its dependencies may draw random numbers
    torch.rand(7)
    before = process_state()
    run = fit(OPTIONS, name="first", runs_dir=tmp_path_factory.mktemp("runs"))
    assert process_state() == before
    return run


def test_repeated_fit_in_one_process_is_bitwise_equal_to_command(trained_run, tmp_path):
    again = ssl_vision.fit(
        OPTIONS | {"trainer.deterministic": True}, name="first", runs_dir=str(tmp_path / "2")
    )
    assert not torch.are_deterministic_algorithms_enabled()
    options = [*TINY, "--name=first", f"--runs_dir={tmp_path / '3'}"]
    assert main(["fit", *options]) == 0
    assert difference_of_runs(trained_run.folder.path, tmp_path / "3" / "first") == ""
    assert difference_of_runs(again.folder.path, tmp_path / "3" / "first") == ""


def test_fit_records_config_paths_and_dicts_like_command(tmp_path):
    names = ("pretrain/digits.yaml", "objective/macl_b.yaml", "method/moco_v2.yaml")
    files = [CONFIGS / name for name in names]
    args = [f"--config={file}" for file in files]
    args += [f"--{name}={value}" for name, value in ONE_STEP.items()]
    assert main(["fit", *args, f"--runs_dir={tmp_path / 'command'}", "--name=run"]) == 0
    expected = yaml.safe_load((tmp_path / "command/run/config.yaml").read_text())
    forms = {"paths": files, "dicts": [yaml.safe_load(file.read_text()) for file in files]}
    for form, configs in forms.items():
        run = ssl_vision.fit(configs, name="run", runs_dir=tmp_path / form, **ONE_STEP)
        assert run.config == expected | {"runs_dir": run.config["runs_dir"]}, form
        assert run.setting("model") == "MoCo"


def test_run_repr_shows_folder_last_validation_and_report(trained_run, capsys):
    folder = trained_run.folder.path
    text, html = repr(trained_run), trained_run._repr_html_()
    assert text.splitlines()[0] == "first: InfoNCE on Digits, seed 0, 2 epochs"
    (folder / "report.html").touch()
    for form in (text, html):
        assert str(folder) in form
        assert "epoch 2" in form
        assert f"{100 * trained_run.last('val/knn_top1'):.2f}" in form
        assert "report.html" not in form
    for form in (repr(trained_run), trained_run._repr_html_()):
        assert str(folder / "report.html") in form
    (folder / "report.html").unlink()
    assert capsys.readouterr().out == ""
    assert ssl_vision.load_encoder(trained_run).num_features == 32


def test_fit_writes_report_on_request(monkeypatch, tmp_path):
    pages = []
    monkeypatch.setattr("ssl_vision.api.write", lambda **page: pages.append(page["path"]))
    run = ssl_vision.fit(ONE_STEP, name="run", runs_dir=tmp_path, report=True)
    assert pages == [tmp_path / "run"] == [run.folder.path]


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.1},
        {"model": {"class_path": "SimCLR", "init_args": {"lr": 0.1}}},
        {"trainer.max_epochs": 0},
        {"data": {"class_path": "ImageFolder", "init_args": {"root": "no/such/folder"}}},
        {"config": "no/such.yaml"},
        {"data.batch_size": 4, "data": "Digits"},
    ],
    ids=str,
)
def test_fit_errors_match_command_line_errors(options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = process_state()
    with pytest.raises(InputError) as caught:
        ssl_vision.fit(options)
    assert process_state()[1:] == before[1:]
    values = (value if isinstance(value, str) else json.dumps(value) for value in options.values())
    assert main(["fit", *(f"--{name}={value}" for name, value in zip(options, values, strict=True))]) == 2
    assert capsys.readouterr().err == f"ssl-vision fit: {caught.value}\n"


def test_numbers_of_numpy_are_options(tmp_path):
    options = {
        "data.batch_size": np.int64(360),
        "model.optimizer.lr": np.float32(0.5),
        "model.objective.temperature": np.float64(0.2),
        "data.views": {"scale": np.array([0.5, 1.0])},
        "trainer.check_val_every_n_epoch": np.arange(1, 2)[0],
    }
    run = ssl_vision.fit(ONE_STEP | options, runs_dir=tmp_path, report=False)
    assert [run.setting(key) for key in list(options)[:3]] == [360, 0.5, 0.2]
    assert run.setting("data.views.scale") == [0.5, 1.0]


def test_fit_in_a_second_thread_is_refused_without_changing_generators(tmp_path):
    errors = []

    def second():
        try:
            ssl_vision.fit({}, name="b", runs_dir=str(tmp_path))
        except InputError as error:
            errors.append(str(error))

    with _globals_restored():
        before = torch.get_rng_state()
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        assert torch.equal(torch.get_rng_state(), before)
        with _globals_restored():  # within the same thread
            pass
    assert "another thread of this process" in errors[0]
    assert not (tmp_path / "b").exists()


def test_fit_rejects_object_as_option_value():
    with pytest.raises(
        InputError, match=r"model\.objective: expected numbers, strings, lists and dicts, not Identity"
    ):
        ssl_vision.fit({}, **{"model.objective": nn.Identity()})


def test_fit_resumes_interrupted_run(trained_run, tmp_path):
    marker = {
        "class_path": "interrupt_once.InterruptOnce",
        "init_args": {"marker": str(tmp_path / "m"), "batch": 6},
    }
    options = OPTIONS | {"name": "run", "runs_dir": tmp_path / "cut", "trainer.callbacks": [marker]}
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"):
        ssl_vision.fit(options)
    assert signal.getsignal(signal.SIGTERM) == before
    run = ssl_vision.fit(options, ckpt_path="last")
    assert run.steps == trained_run.steps
    assert torch.equal(
        *(ssl_vision.load_encoder(each).state_dict()["conv1.weight"] for each in (run, trained_run))
    )


def test_evaluate_returns_rows_of_run_and_baselines(trained_run, tmp_path, monkeypatch):
    pages = []
    monkeypatch.setattr("ssl_vision.api.write", lambda **page: pages.append(page["path"]))
    result = ssl_vision.evaluate(trained_run, protocol=["solo", "few_labels"])
    assert pages == [trained_run.folder.path]
    rows = json.loads((trained_run.folder.path / "evaluation.json").read_text())
    assert [row.as_dict() for row in result.rows] == rows
    assert result.output == trained_run.folder.evaluation_file
    criteria = {"metric": "knn_top1", "k": 20, "features": "trained", "layer": "backbone"}
    (expected,) = [row["value"] for row in rows if criteria.items() <= row.items()]
    assert result.value("knn_top1", k=20) == expected
    pixels = result.value("linear_top1", features="pixels", layer="raw", labels="1%")
    html = result._repr_html_()
    for form in (repr(result), html):
        assert "Digits: test split (360 images)" in form
        assert f"{100 * pixels:.2f}" in form
        assert "untrained backbone" in form
    assert html.count("<table>") == 2
    with pytest.raises(InputError, match="--k, --temperature and --probe change"):
        ssl_vision.evaluate(trained_run, protocol="solo", k=5)
    with pytest.raises(InputError, match="no such"):
        ssl_vision.evaluate(tmp_path / "nothing")
