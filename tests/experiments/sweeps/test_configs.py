"""Tests of the files in configs/sweep: both sweep engines read them, and fit accepts every value."""

import re
from pathlib import Path

import pytest
import yaml
from settings import CONFIGS
from wandb.sdk.launch.sweeps.utils import create_sweep_command, load_sweep_config
from wandb.sdk.sweeps.scheduler.optuna import search_space_from_sweep_config

from ssl_vision.experiments.sweeps.sweep_file import DISTRIBUTIONS, MACROS, parse_sweep
from ssl_vision.experiments.sweeps.trials import Plan, is_fit
from ssl_vision.main import main

FILES = sorted((CONFIGS / "sweep").glob("*.yaml"))
COUNTS = {
    "batch_size": 5,
    "batch_size_equal_steps": 5,
    "batch_size_equal_steps_digits": 3,
    "batch_size_scaled_lr": 15,
    "batch_size_scaled_lr_digits": 9,
    "choosing_cifar10": 24,
    "choosing_cifar100": 24,
    "choosing_stl10": 24,
    "cifar10_cpu": 3,
    "cifar10_cpu_hour": 3,
    "gradient_dissipation": 21,
    "macl_epochs": 6,
    "methods_cifar10_narrow": 24,
    "moco_objectives": 36,
    "moco_objectives_digits": 16,
    "objective_temperature_batch": 32,
    "objectives_best_temperature_cifar10_narrow": 12,
    "macl_weight_and_temperature": 36,
    "objectives_cifar10_narrow": 12,
    "objectives_digits": 15,
    "objectives_stl10": 12,
    "objectives_temperature_cifar10_narrow": 16,
    "reclaim_k": 12,
    "reclaim_negatives": 6,
    "reclaim_weight": 12,
    "temperature": 6,
    "temperature_batch_size": 16,
    "temperature_batch_size_digits": 9,
    "temperature_digits": 5,
    "unified_gradient_margin": 18,
    "unified_gradient_ratio": 15,
    "unified_gradient_temperature": 15,
}


class Parsed(BaseException):
    """Stops a command once its options are accepted."""


def covering_trials():
    """Return the first trial of each file, and those with a new option or value; numbers count as equal."""
    chosen, earlier_values = {}, set()
    for path in FILES:
        plan = Plan(Path("runs/sweep"), path.read_text())
        for trial in plan.trials:
            values = {
                (name, "number" if isinstance(value, (int, float)) else str(value))
                for name, value in trial.parameters.items()
            }
            if path not in chosen or values - earlier_values:
                chosen.setdefault(path, []).append(trial)
            earlier_values |= values
    return chosen


COVERING = covering_trials()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_fit_accepts_every_value(path, monkeypatch, tmp_path):
    def stop(self):
        raise Parsed

    monkeypatch.chdir(CONFIGS.parent)
    monkeypatch.setattr("ssl_vision.cli.fit.FitCLI.instantiate_classes", stop)
    plan = Plan(tmp_path, path.read_text())
    assert len(plan.trials) == len({trial.name for trial in plan.trials}) == COUNTS[path.stem]
    for trial in COVERING[path]:
        line = plan.train_command(trial)
        assert is_fit(line)
        with pytest.raises(Parsed):
            main(line[line.index("fit") :])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_wandb_reads_sweep_file(path):
    content = load_sweep_config(str(path))
    assert search_space_from_sweep_config(content["parameters"]).keys() == content["parameters"].keys()
    assert create_sweep_command(list(content["command"])) == content["command"]
    assert len(path.read_text().splitlines()) <= 20
    assert "--wandb=true" in content["command"]  # without it, W&B would not show the runs of an agent


def test_sweeps_page_has_valid_examples_and_lists_macros_and_files():
    page = (CONFIGS.parent / "docs" / "sweeps.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    assert len(Plan(Path("runs/sweep"), blocks[0]).trials) == 12
    for block in blocks[1:]:
        parse_sweep(yaml.safe_dump(yaml.safe_load(blocks[0]) | yaml.safe_load(block)), where="docs")
    assert all(f"`${{{macro}}}`" in page for macro in MACROS)
    assert all(f"`{name}`" in page for name in DISTRIBUTIONS)
    assert all(f"`{path.name}`" in page for path in FILES)
