"""Tests of the comparison of configs, which decides whether a run may continue."""

import pytest

from ssl_vision.errors import InputError
from ssl_vision.runs.config import above_home, below_home, derived_name, differences
from ssl_vision.runs.folder import RunFolder


def config(epochs, **options):
    model = {"class_path": "ssl_vision.methods.SimMoCo", "init_args": options}
    return {"model": model, "trainer": {"max_epochs": epochs, "max_steps": -1}, "seed_everything": 0}


@pytest.mark.parametrize("options", [{"momentum_schedule": "cosine"}, {"optimizer": {"schedule": "cosine"}}])
def test_length_of_run_with_schedule_is_a_difference(options):
    assert differences(config(10, **options), config(100, **options)) == [
        "trainer.max_epochs: 10 there, 100 here"
    ]
    assert derived_name(config(10, **options)) != derived_name(config(100, **options))


def test_length_of_run_with_constant_schedules_is_no_difference():
    options = {"momentum_schedule": "constant", "optimizer": {"schedule": "constant"}}
    assert differences(config(10, **options), config(100, **options)) == []


def test_diagnostics_of_gradients_are_no_difference():
    plain, measured = ({**config(10), "gradients": value} for value in (False, True))
    assert differences(plain, measured) == []
    assert derived_name(plain) == derived_name(measured)


def check(folder):
    folder.check({}, resume=False, overwrite=False)


def test_directory_of_a_run_that_was_killed_while_it_wrote_its_config_is_free(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    (run.path / ".lock").touch()
    (run.path / ".0123abcd-config.yaml").write_text("model:")
    check(run)
    (run.path / "notes.txt").touch()
    with pytest.raises(InputError, match="not a run directory"):
        check(RunFolder(run.path))


def test_files_of_a_logger_in_a_free_directory_are_accepted(tmp_path):
    run = RunFolder(tmp_path / "run")
    check(run)
    (run.path / "lightning_logs").mkdir(parents=True)
    check(run)
    with pytest.raises(InputError, match="not a run directory"):
        check(RunFolder(run.path))


def test_home_directory_is_replaced_and_restored(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    values = {"a": ["/home/me", "/home/me/data"], "b": "/home/mean", "c": 3}
    short = {"a": ["~", "~/data"], "b": "/home/mean", "c": 3}
    assert below_home(values) == short
    assert above_home(short) == values
    assert above_home("~other/data") == "~other/data"
