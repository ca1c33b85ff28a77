"""Command-line tests of every pair of files in configs/method and configs/objective."""

import itertools

import pytest
from settings import CONFIGS, UNVALIDATED

from ssl_vision.main import main

METHODS = sorted(file.stem for file in (CONFIGS / "method").glob("*.yaml"))
OBJECTIVES = sorted(file.stem for file in (CONFIGS / "objective").glob("*.yaml"))

QUEUED = {
    "adaptive_infonce", "arccon", "dcl", "dcl_plus", "dclw", "dual_temperature", "flatnce", "infonce", "macl",
    "macl_b", "macl_c", "macl_icml",
}  # fmt: skip
"""Objectives whose negatives can come from a queue."""

NO_KEYS = {
    "supcon": "pairs must be one of 'keys', 'queue', got 'both'",
    "reclaim": "RECLAIM needs features, indices, which {} does not have",
}
"""Objectives that need a gradient in both views, or the features of both."""

CLASSES = {"moco_v3": "MoCoV3", "simmoco": "SimMoCo"}
"""Methods whose negatives are the keys of the batch."""

SAMPLE = {
    ("moco_v2", "macl"), ("moco_v3", "infonce"), ("moco_v3", "vicreg"), ("simmoco", "dual_temperature"),
    ("simco", "reclaim"), ("simclr", "unified_gradient"),
}  # fmt: skip


def expected_error(method, objective):
    if method == "moco_v2" and objective not in QUEUED:
        return {
            "reclaim": "RECLAIM needs features, indices, labels, which MoCo does not have",
            "supcon": "SupCon in MoCo: pairs must be 'queue', got 'both'",
        }.get(objective, "use one of the InfoNCE family")
    if method not in CLASSES or objective not in NO_KEYS:
        return None
    return NO_KEYS[objective].format(CLASSES[method])


def fit(method, objective, tmp_path, *options):
    files = [
        f"--config={CONFIGS / 'method' / method}.yaml",
        f"--config={CONFIGS / 'objective' / objective}.yaml",
    ]
    short = ["--trainer.limit_train_batches=2", "--trainer.max_epochs=1", "--name=run", *options]
    return main(["fit", *files, *UNVALIDATED, *short, f"--runs_dir={tmp_path}"])


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        pytest.param(*pair, marks=[] if pair in SAMPLE else [pytest.mark.long])
        for pair in itertools.product(METHODS, OBJECTIVES)
        if expected_error(*pair) is None
    ],
)
def test_method_and_objective_train(method, objective, tmp_path):
    assert fit(method, objective, tmp_path) == 0
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").exists()


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        pair
        for pair in itertools.product(METHODS, OBJECTIVES)
        if expected_error(*pair) and (pair[1] in {*NO_KEYS, "vicreg", "mpt"})
    ],
)
def test_unsupported_combination_reports_reason(method, objective, tmp_path, capsys):
    assert fit(method, objective, tmp_path) == 2
    assert capsys.readouterr().err.strip().endswith(expected_error(method, objective))
