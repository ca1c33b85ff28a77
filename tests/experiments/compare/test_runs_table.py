"""Tests of ``ssl-vision runs`` on hand-made run directories."""

import json
import subprocess
import sys
import time

import pytest
import yaml

from ssl_vision.main import main

HEAD = "step,epoch,train/loss,val/knn_top1\r\n"


@pytest.fixture
def runs(tmp_path):
    """Three runs, the last one in a sweep's folder."""
    for name, objective, temperature, epochs, knn in (
        ("b", "MACL", 0.1, 2, 0.5),
        ("a", "DCL", 0.05, 1, 0.75),
        ("sweep/c", "MACL", 1e-3, 2, None),
    ):
        spec = {"class_path": f"ssl_vision.objectives.{objective}", "init_args": {"temperature": temperature}}
        if objective == "MACL":
            spec["init_args"]["alpha"] = 2.0
        config = {
            "seed_everything": 5,
            "model": {"class_path": "ssl_vision.methods.SimCLR", "init_args": {"objective": spec}},
            "data": {"class_path": "ssl_vision.data.Digits", "init_args": {"batch_size": 64}},
            "trainer": {"max_epochs": 2},
        }
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        rows = "".join(f"{3 + 4 * i},{i},1.5,{'' if knn is None else knn}\r\n" for i in range(epochs))
        (folder / "metrics.csv").write_text(HEAD + rows)
        times = "".join(f"{3 + 4 * i},{i},61.5\r\n" for i in range(epochs))
        (folder / "times.csv").write_text("step,epoch,time/train_seconds\r\n" + times)
    return tmp_path


def list_runs(capsys, *args):
    assert main(["runs", *map(str, args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def names(rows):
    return [row["run"].rpartition("/")[2] for row in rows]


def test_table_has_one_line_per_run(runs, capsys, monkeypatch):
    monkeypatch.chdir(runs.parent)
    assert main(["runs", runs.name]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    images = "held-out train images"
    assert lines == [
        "run status objective data seed epoch kNN % kNN measured on time",
        f"{runs.name}/a stopped DCL Digits 5 1 75.00 {images} 1:02",
        f"{runs.name}/b finished MACL Digits 5 2 50.00 {images} 2:03",
        f"{runs.name}/sweep/c finished MACL Digits 5 2 2:03",
    ]


def test_json_has_fractions_and_seconds(runs, capsys):
    first = list_runs(capsys, runs)[0]
    assert (first["knn"], first["time"], first["epoch"], first["seed"]) == (0.75, 61.5, 1, 5)


def test_knn_split_column_names_validation_images(runs, capsys):
    file = runs / "b" / "config.yaml"
    config = yaml.safe_load(file.read_text())
    config["data"]["init_args"]["val"] = "test"
    file.write_text(yaml.safe_dump(config))
    rows = list_runs(capsys, runs)
    assert [row["knn_split"] for row in rows] == ["held-out train images", "test images", None]
    assert names(list_runs(capsys, runs, "--where=knn_split=test images")) == ["b"]
    # shards may have a validation split
    config["data"] = {"class_path": "ssl_vision.data.Shards", "init_args": {"val": "auto"}}
    file.write_text(yaml.safe_dump(config))
    assert list_runs(capsys, runs)[1]["knn_split"] == "held-out images"


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["objective=MACL"], ["b", "c"]),
        (["objective=macl", "model.objective.temperature=1e-3"], ["c"]),
        (["model.init_args.objective.init_args.temperature=0.10"], ["b"]),
        (["status=stopped"], ["a"]),
        (["val/knn_top1=0.75"], ["a"]),
        (["model.objective.alpha=null"], ["a"]),
        (["objective=InfoNCE"], []),
        (["objective=InfoNCE", "objective=MACL"], []),
    ],
)
def test_where_options_filter_runs(runs, capsys, filters, expected):
    options = [f"--where={text}" for text in filters]
    assert names(list_runs(capsys, runs, *options)) == expected


def test_sorting_puts_values_that_are_not_finite_last(runs, capsys):
    for name, loss in (("b", "nan"), ("a", "2"), ("sweep/c", "1")):
        (runs / name / "metrics.csv").write_text(f"{HEAD}0,0,{loss},\r\n")
    assert names(list_runs(capsys, runs, "--sort=train/loss")) == ["c", "a", "b"]
    assert names(list_runs(capsys, runs, "--sort=train/loss", "--descending")) == ["a", "c", "b"]


def test_sorting_puts_runs_without_the_number_last(runs, capsys):
    assert names(list_runs(capsys, runs, "--sort=knn")) == ["b", "a", "c"]
    assert names(list_runs(capsys, runs, "--sort=knn", "--descending")) == ["a", "b", "c"]
    assert names(list_runs(capsys, runs, "--descending")) == ["c", "b", "a"]


def test_columns_are_settings_and_metrics(runs, capsys):
    rows = list_runs(
        capsys, runs / "b", "--columns", "model.objective.temperature,val/knn_top1", "epochs", "data"
    )
    assert rows == [
        {"model.objective.temperature": 0.1, "val/knn_top1": 0.5, "epochs": 2, "data": "Digits"}
    ]  # fmt: skip


def test_unreadable_run_is_listed_and_its_file_is_reported(runs, capsys):
    (runs / "b" / "config.yaml").write_text("a: [")
    assert main(["runs", str(runs)]) == 0
    out, error = capsys.readouterr()
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["stopped", "unreadable", "finished"]
    assert error.startswith(f"ssl-vision runs: {runs / 'b' / 'config.yaml'}, line 1: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--where=objctive=MACL"], "no run has 'objctive' in its config.yaml, did you mean 'objective'?"),
        (["--sort=model.objective.temprature"], "did you mean 'model.objective.temperature'?"),
        (["--columns=val/knn"], "no run has 'val/knn' in its metrics.csv, did you mean 'val/knn_top1'?"),
        (["--where=objective"], "--where objective: expected KEY=VALUE"),
        (["--where==x"], "expected KEY=VALUE"),
        (["absent"], "absent: no such directory"),
    ],
)
def test_invalid_options_are_reported_in_one_line(runs, capsys, args, complaint):
    assert main(["runs", str(runs), *args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ssl-vision runs: ")
    assert complaint in line


@pytest.mark.long
def test_listing_1000_runs_is_faster_than_importing_lightning(tmp_path, tiny_run):
    """Compare the whole command, in a new process, with only the imports of a command that trains."""
    config = (tiny_run / "config.yaml").read_text()
    metrics = (tiny_run / "metrics.csv").read_bytes()
    head, *rows = metrics.splitlines(keepends=True)
    for i in range(1000):
        folder = tmp_path / f"run{i:04}"
        folder.mkdir()
        (folder / "config.yaml").write_text(config.replace("seed_everything: 0", f"seed_everything: {i}"))
        (folder / "metrics.csv").write_bytes(head + b"".join(rows) * 40)
        (folder / "times.csv").write_bytes((tiny_run / "times.csv").read_bytes())

    def seconds(*args):
        start = time.perf_counter()
        result = subprocess.run([sys.executable, *args], capture_output=True, text=True, check=True)
        return time.perf_counter() - start, result.stdout

    command = ["-m", "ssl_vision", "runs", str(tmp_path)]
    duration, printed = min(seconds(*command) for _ in range(2))
    assert len(printed.splitlines()) == 1001
    imports = "import pytorch_lightning, ssl_vision.methods"
    assert duration < seconds("-c", imports)[0]


def test_runs_and_compare_do_not_import_torch(runs):
    code = (
        "import sys; from ssl_vision.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    )
    for args in (["runs", str(runs)], ["compare", str(runs)]):
        result = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, check=False)
        assert result.returncode == 0
