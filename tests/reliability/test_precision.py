"""Test that training in bfloat16 stays close to training in float32 with the same seed."""

import csv

import pytest
from settings import TINY

from ssl_vision.main import main

TOLERANCE = 0.1
"""Maximum relative difference between the losses of a step, over the first 24 steps."""


def losses(run):
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("objective", [pytest.param("InfoNCE", marks=pytest.mark.long), "MACL"])
def test_bfloat16_stays_near_float32(tmp_path, objective):
    args = [f"--model.objective={objective}", "--trainer.max_epochs=2", "--trainer.limit_train_batches=12"]
    for precision in ("32-true", "bf16-mixed"):
        run = [f"--runs_dir={tmp_path}", f"--name={precision}", f"--trainer.precision={precision}"]
        assert main(["fit", *TINY, *args, *run]) == 0
    exact, half = losses(tmp_path / "32-true"), losses(tmp_path / "bf16-mixed")
    assert len(exact) == 24
    assert half != exact
    assert max(abs(a - b) / b for a, b in zip(half, exact, strict=True)) < TOLERANCE
