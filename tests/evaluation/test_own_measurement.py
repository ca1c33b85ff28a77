"""Tests of a user's own measurement and metric: evaluated, shown and compared like built-in ones."""

import importlib
import json
import shutil
import subprocess
import sys

import pytest
import torch

from ssl_vision.cli.import_paths import names_in_command
from ssl_vision.data import Digits
from ssl_vision.descriptions import defined, description_of
from ssl_vision.errors import InputError
from ssl_vision.evaluation.features import embed
from ssl_vision.evaluation.measurement import kinds
from ssl_vision.evaluation.protocol import _measurement
from ssl_vision.experiments.report.accuracies import protocols
from ssl_vision.experiments.report.curves import of_layers
from ssl_vision.main import main
from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.registry import Run

MODULE = '''
from dataclasses import dataclass

from ssl_vision.evaluation.measurement import Measurement, Value
from ssl_vision.metrics import nearest


@dataclass(frozen=True)
class Impurity(Measurement):
    """Share of the nearest neighbours that have another class than the query."""

    metric_name = "impurity"
    title = "strangers"
    unit = "%"
    higher_is_better = False
    note = "neighbours of other classes"

    neighbours: int = 5

    def measure(self, source, splits, seed):
        index = nearest(source.queries, source.bank, self.neighbours).index
        train, test = (splits.images[name].labels.to(index.device) for name in ("train", "test"))
        share = (train[index] != test[:, None]).double().mean()
        about = {"bank": "train", "k": self.neighbours, "ties": ["first"]}
        yield Value(self.metric_name, float(share), about)


class NoMeasurement:
    pass
'''


@pytest.fixture
def user_folder(tmp_path, monkeypatch):
    """Change to a folder that contains the user's module and protocol, and return it."""
    (tmp_path / "their_metrics.py").write_text(MODULE)
    (tmp_path / "mine.yaml").write_text(
        "measurements:\n- their_metrics.Impurity: {neighbours: 3}\n- knn: {k: 3}\n"
    )
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("their_metrics", None)
    defined.pop("impurity", None)


@pytest.fixture
def run(user_folder, tiny_run):
    return shutil.copytree(tiny_run, user_folder / "runs" / "a")


def evaluated(run):
    assert main(["evaluate", str(run), "--protocol=mine.yaml"]) == 0
    return json.loads((run / "evaluation.json").read_text())


def test_user_measurement_is_in_rows_and_table(run, capsys):
    rows = [row for row in evaluated(run) if row["metric"] == "impurity"]
    assert [row["features"] for row in rows] == ["trained", "untrained", "pixels"]
    model, data = open_run(run).trained(), Digits()
    bank, queries = (
        torch.nn.functional.normalize(embed(model, data.split(name), data.views)["backbone"])
        for name in ("train", "test")
    )
    index = (queries @ bank.T).topk(3).indices
    other = data.split("train").labels[index] != data.split("test").labels[:, None]
    assert rows[0]["value"] == pytest.approx(float(other.double().mean()))
    assert (rows[0]["protocol"], rows[0]["k"], rows[0]["ties"]) == ("mine", 3, ["first"])
    printed = capsys.readouterr().out
    assert "mine. impurity: neighbours 3. kNN: cosine, k = 3, T = 0.1." in printed
    head, first, *_ = printed.splitlines()[2:]
    assert head.split("  ")[-1] == "strangers %"
    assert first.split()[-1] == f"{100 * rows[0]['value']:.2f}"


def test_evaluation_file_describes_metric_without_its_module(run, user_folder):
    """Compare and report the run in a process that does not know the module."""
    rows = evaluated(run)
    assert all(
        (row["title"], row["unit"], row["direction"]) == ("strangers", "%", "lower")
        for row in rows
        if row["metric"] == "impurity"
    )
    assert all("title" not in row for row in rows if row["metric"] == "knn_top1")
    other = shutil.copytree(run, user_folder / "runs" / "b")
    config = (other / "config.yaml").read_text()
    assert config.count("alpha: 3") == 1
    (other / "config.yaml").write_text(config.replace("alpha: 3", "alpha: 4"))
    for row in rows:
        row["value"] /= 2
    (other / "evaluation.json").write_text(json.dumps(rows))
    (user_folder / "their_metrics.py").unlink()
    command = [sys.executable, "-m", "ssl_vision", "compare", "runs", "--by=model.objective.alpha"]
    command += ["--metric=impurity", "--protocol=mine", "--output=out.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "in percent, lower is better" in done.stdout
    written = json.loads((user_folder / "out.json").read_text())
    assert (written["unit"], written["direction"]) == ("percent", "lower")
    assert [group["name"] for group in written["groups"]] == ["3.0", "4.0"]
    value = next(row["value"] for row in rows if row["metric"] == "impurity")
    assert written["groups"][1]["mean"] == pytest.approx(100 * value)
    defined.pop("impurity")
    assert "strangers %" in protocols(Run(run))[1]


def test_logged_metric_with_description_has_curve(run, capsys):
    head, *lines = (run / "metrics.csv").read_text().splitlines()
    column = head.split(",").index("val/knn_top1")
    cells = [line.split(",")[column] for line in lines]
    lines = [f"{line},{cell}" for line, cell in zip(lines, cells, strict=True)]
    (run / "metrics.csv").write_text("\n".join([f"{head},val/impurity", *lines, ""]))
    assert "strangers" not in of_layers(Run(run))[1]
    evaluated(run)  # imports the module
    body = of_layers(Run(run))[1]
    assert "Validation strangers, %" in body
    assert "neighbours of other classes" in body
    capsys.readouterr()
    assert main(["runs", str(run), "--columns", "val/impurity", "val/knn_top1"]) == 0
    own, knn = capsys.readouterr().out.splitlines()[-1].split()
    assert own == knn


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("their_metrics.Absent", "their_metrics.Absent cannot be imported"),
        (
            "absent_module.Impurity",
            "absent_module.Impurity cannot be imported: No module named 'absent_module'",
        ),
        ("their_metrics.NoMeasurement", "is not a subclass of ssl_vision.evaluation.measurement.Measurement"),
        ("Impurity", "expected one of finetune, geometry"),
    ],
)
def test_invalid_import_path_is_reported_in_one_line(run, user_folder, capsys, kind, words):
    (user_folder / "mine.yaml").write_text(f"measurements: [{kind}: {{}}]")
    assert main(["evaluate", str(run), "--protocol=mine.yaml"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("ssl-vision evaluate: protocol mine.yaml: measurement 1: ")
    assert error.count("\n") == 1


def test_only_user_protocol_may_name_import_path(user_folder):
    with pytest.raises(InputError, match="expected one of finetune, geometry"):
        _measurement({"their_metrics.Impurity": {}}, 20, "protocol macl", own=False)
    assert "their_metrics" not in sys.modules
    assert list(names_in_command(["evaluate", "--protocol", "mine.yaml"])) == ["their_metrics.Impurity"]
    assert list(names_in_command(["evaluate", "--config", "mine.yaml"])) == []


def test_failing_measurement_leaves_out_only_itself(run, user_folder, capsys):
    module = (
        MODULE
        + "\n\n@dataclass(frozen=True)\nclass Failing(Impurity):\n"
        + (
            "    def measure(self, source, splits, seed):\n"
            "        if self.neighbours == 1:\n"
            "            raise ValueError('one is too few')\n"
            "        return super().measure(source, splits, seed)\n"
        )
    )
    (user_folder / "their_metrics.py").write_text(module)
    kind = "their_metrics.Failing"
    text = f"measurements: [{kind}: {{neighbours: 1}}, {kind}: {{neighbours: 2}}]"
    (user_folder / "mine.yaml").write_text(text)
    rows = evaluated(run)
    assert {row["k"] for row in rows} == {2}
    assert "mine: failing of trained backbone is left out: one is too few" in capsys.readouterr().err


def test_kinds_are_the_classes_of_the_package_that_measure(user_folder, monkeypatch):
    monkeypatch.syspath_prepend(user_folder)
    importlib.import_module("their_metrics")
    assert list(kinds()) == ["finetune", "geometry", "grid", "knn", "linear", "logistic", "online"]


def test_unknown_metric_is_titled_by_its_name():
    assert description_of("val/impurity").title == "val/impurity"
