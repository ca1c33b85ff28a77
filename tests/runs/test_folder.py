"""Tests of the comparison of configs, which decides whether a run may continue."""

import pytest

from ssl_vision.runs.folder import derived_name, differences


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
