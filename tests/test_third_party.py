"""Test that a third-party objective in its own file is trained, resumed, compared and reported."""

import csv
import sys

import pytest
import torch
from settings import TINY

from ssl_vision.main import main

OBJECTIVE = '''
import torch.nn.functional as F

from ssl_vision.objectives import Objective


class AlignmentRepulsion(Objective):
    """Mean squared distance of positives, less that of all pairs."""

    def forward(self, z1, z2):
        z1, z2 = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        self.distance = (z1 - z2).square().sum(dim=1).mean()
        return self.distance - (z1[:, None] - z2).square().sum(dim=2).mean()

    def statistics(self):
        return {"distance": self.distance.detach()} if hasattr(self, "distance") else {}
'''


@pytest.fixture
def working_directory(tmp_path, monkeypatch):
    (tmp_path / "their_objective.py").write_text(OBJECTIVE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("their_objective", None)


def fit(*options):
    assert main(["fit", "--runs_dir=runs", *TINY, *options]) == 0


def logged(run):
    with (run / "metrics.csv").open(newline="") as file:
        return [row["train/distance"] for row in csv.DictReader(file) if row["train/distance"]]


def test_third_party_objective_is_accepted_except_by_maps(working_directory, capsys):
    third_party = "--model.objective=their_objective.AlignmentRepulsion"
    for name, objective in (("theirs", third_party), ("ours", "--model.objective=InfoNCE")):
        fit(f"--name={name}", objective, "--trainer.max_epochs=2")
    # resumed: rows and weights equal those of the uninterrupted run
    fit("--name=resumed", third_party, "--trainer.max_epochs=1")
    fit("--name=resumed", third_party, "--trainer.max_epochs=2", "--ckpt_path=last")
    whole, resumed = working_directory / "runs" / "theirs", working_directory / "runs" / "resumed"
    assert logged(whole) == logged(resumed) != []
    states = [
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for run in (whole, resumed)
    ]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    # compared
    capsys.readouterr()
    assert (
        main(["compare", str(whole), str(working_directory / "runs" / "ours"), "--metric=val/knn_top1"]) == 0
    )
    assert "AlignmentRepulsion" in capsys.readouterr().out
    # evaluated and reported, with permission, because the run names a class from outside the package
    allow = "--allow_class=their_objective.AlignmentRepulsion"
    assert main(["evaluate", str(whole), allow, "--probe.epochs=1", "--baselines=false"]) == 0
    assert main(["report", str(whole), allow, "--embed=false"]) == 0
    assert "AlignmentRepulsion" in (whole / "report.html").read_text()
    # not drawn: the error gives the reason
    capsys.readouterr()
    assert main(["maps", "--objectives=their_objective.AlignmentRepulsion", "--output=maps.svg"]) == 2
    assert "no map of AlignmentRepulsion: angles of single anchors" in capsys.readouterr().err
