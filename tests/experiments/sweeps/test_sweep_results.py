"""Tests of the table and the page of a sweep against numbers computed by hand."""

import csv
import itertools
import json
import re

import pytest
from pages import Page
from scipy import stats

from ssl_vision.evaluation.results import Row
from ssl_vision.experiments.sweeps.study import Record
from ssl_vision.experiments.sweeps.sweep_file import SweepMetric
from ssl_vision.experiments.sweeps.sweep_results import SweepResults, write_results
from ssl_vision.experiments.sweeps.trials import Trial, label

BEST = SweepMetric("val/top1", "maximize")
ACCURACY = SweepMetric("val/knn_top1", "maximize")
LEAST = SweepMetric("loss", "minimize")


def record(state, value=None, note="", **varied):
    name = ",".join(f"{key}={each}" for key, each in varied.items())
    return Record(Trial(name, varied, varied), state, value, note)


def make_run_directory(folder, name, *, epochs=2, values=(0.1, 0.2)):
    run = folder / name
    run.mkdir()
    lines = [f"{i},{i},{value}" for i, value in enumerate(values)]
    (run / "metrics.csv").write_text("\n".join(["step,epoch,val/top1", *lines]) + "\n")
    times = [f"{i},{i},1.5,0.25" for i in range(epochs)]
    (run / "times.csv").write_text(
        "\n".join(["step,epoch,time/train_seconds,time/val_seconds", *times]) + "\n"
    )


def tables(text):
    """Return the tables of a text, each as rows of cells."""
    parts = [part for part in text.split("\n\n") if part.startswith("|")]
    return [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in part.splitlines()]
        for part in parts
    ]


def csv_rows(folder):
    with (folder / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_trials_are_listed_best_first_and_failed_last(tmp_path):
    records = [record("failed", x=1), record("finished", 0.2, x=2), record("pruned", 0.9, x=3)]
    records += [record("finished", 0.7, x=4), record("waiting", x=5)]
    for metric, order in ((BEST, [4, 2, 3, 5, 1]), (LEAST, [2, 4, 3, 5, 1])):
        results = SweepResults(tmp_path, records, metric)
        assert [each.trial.varied["x"] for each in results.records] == order


def test_table_shows_state_metric_and_note_of_every_trial(tmp_path):
    make_run_directory(tmp_path, "x=1", epochs=3)
    records = [record("finished", 0.25, x=1), record("failed", None, "exit code 1: a|b", x=2)]
    text, files = write_results(tmp_path, records, BEST)
    (table,) = tables(text)
    assert table[0] == ["x", "state", "val/top1", "epochs", "seconds", "note"]
    assert table[2:] == [
        ["1", "finished", "0.25", "3", "5.2", ""],
        ["2", "failed", "", "", "", "exit code 1: a\\|b"],
    ]
    assert "best: x=1, val/top1 0.25" in text
    assert (tmp_path / "sweep.md").read_text() == f"{text}\n"
    assert [(row["name"], row["state"], row["val/top1"], row["note"]) for row in csv_rows(tmp_path)] == [
        ("x=1", "finished", "0.25", ""),
        ("x=2", "failed", "", "exit code 1: a|b"),
    ]
    assert files == ["sweep.csv", "sweep.md", "sweep.html"]


def test_parameter_named_like_a_column_gets_its_own_column(tmp_path):
    records = [
        record("finished", 0.5, name="sgd", epochs=10, seed_everything=seed, **{"val/top1": 3})
        for seed in (0, 1)
    ]
    text, _ = write_results(tmp_path, records, BEST)
    row, _ = csv_rows(tmp_path)
    assert row["name"] == records[0].trial.name
    assert (row["--name"], row["--epochs"], row["--val/top1"], row["val/top1"]) == ("sgd", "10", "3", "0.5")
    assert text.count("| sgd ") == 3  # two trials and their mean


def test_seeds_are_averaged_with_student_t_interval(tmp_path):
    values = {"a": [0.5, 0.6, 0.9], "b": [0.7, 0.8, 0.9], "c": [0.1]}
    records = [
        record("finished", value, objective=objective, seed_everything=seed)
        for objective, scores in values.items()
        for seed, value in enumerate(scores)
    ]
    records.append(record("failed", None, "why", objective="b", seed_everything=3))
    _, means = tables(write_results(tmp_path, records, BEST)[0])
    half = stats.sem(values["a"]) * stats.t.ppf(0.975, 2)
    assert means[2][:2] == ["b", "3"]
    assert means[2][2].startswith("0.8 ± ")
    assert means[3] == ["a", "3", f"0.6667 ± {half:.2g}"]
    assert len(means) == 4  # c has a single value and therefore no interval


def test_accuracies_are_percentages_in_tables_and_fractions_in_csv(tmp_path):
    records = [record("finished", value, seed_everything=i) for i, value in enumerate((0.5, 0.7))]
    records.append(record("failed", None, "why", seed_everything=2))
    text, _ = write_results(tmp_path, records, ACCURACY)
    table, means = tables(text)
    assert dict(zip(table[0], table[2], strict=True))["val/knn_top1, %"] == "70.00"
    assert means[2] == ["all", "2", f"60.00 ± {100 * stats.sem([0.5, 0.7]) * stats.t.ppf(0.975, 1):.2f}"]
    assert "val/knn_top1 70.00 %" in text
    assert [row["val/knn_top1"] for row in csv_rows(tmp_path)] == ["0.7", "0.5", ""]


def test_sweep_without_finished_trials_has_table_but_no_page(tmp_path):
    text, files = write_results(tmp_path, [record("waiting", x=1)], BEST)
    assert "waiting" in text
    assert files == ["sweep.csv", "sweep.md"]


def add_evaluation(folder, name, features="trained", **values):
    """Add rows of ``ssl-vision evaluate`` to a run directory, in which 200 test images have 10 classes."""
    (folder / name / "config.yaml").write_text("data: {class_path: ssl_vision.data.Digits}\nwandb: false\n")
    file = folder / name / "evaluation.json"
    rows = json.loads(file.read_text()) if file.exists() else []
    for layer, each in values.items():
        for metric, value in each.items():
            accuracy = {"test_images": 200, "train_images": 1000, "chance": 0.1}
            conditions = accuracy if metric.endswith("_top1") else {}
            row = Row(features, layer, metric, value, "test", "Digits", "macl", 2, conditions=conditions)
            rows.append(row.as_dict())
    file.write_text(json.dumps(rows))


def evaluated_grid(folder):
    """Return temperature × batch size × two seeds; the worst on validation is the best on the test split."""
    records = []
    for number, (t, size, seed) in enumerate(itertools.product((0.1, 0.5), (64, 128), (0, 1))):
        records.append(record("finished", 0.1 * number, t=t, size=size, seed_everything=seed))
        name = records[-1].trial.name
        make_run_directory(folder, name, values=(0.05 * number, 0.1 * number))
        accuracies = {"knn_top1": 0.9 - 0.1 * number, "uniformity": -2.0}
        add_evaluation(folder, name, backbone=accuracies, projector={"knn_top1": 0.3})
    add_evaluation(folder, name, "untrained", backbone={"knn_top1": 0.25})
    add_evaluation(folder, name, "pixels", raw={"knn_top1": 0.2})
    return records


def test_every_accuracy_has_an_interval_and_the_number_of_test_images(tmp_path):
    text, _ = write_results(tmp_path, evaluated_grid(tmp_path), BEST)
    trials, means = tables(text)
    accuracies = ["test/knn_top1, %", "test/knn_top1_projector, %", "test images"]
    assert trials[0][:3] == ["t", "size", "seed_everything"]
    assert trials[0][-3:] == accuracies
    low, high = stats.binomtest(40, 200).proportion_ci(method="wilson")
    assert trials[2][-3] == f"20.00 ± {50 * (high - low):.2f}"
    assert trials[2][-1] == "200"
    low, high = stats.binomtest(50, 200).proportion_ci(method="wilson")
    for table in (trials, means):
        assert [row[0] for row in table[-3:]] == ["untrained network", "raw pixels", "chance"]
        assert table[-3][-3:] == [f"25.00 ± {50 * (high - low):.2f}", "", "200"]
        assert table[-1][-3:] == ["10.00", "10.00", ""]
    assert means[0] == ["t", "size", "seeds", "val/top1", *accuracies]
    half = stats.t.ppf(0.975, 1) * 0.05  # of 0.2 and 0.3: the standard error of the mean is 0.05
    expected = [f"0.65 ± {half:.2g}", f"25.00 ± {100 * half:.2f}", "30.00 ± 0.00", "200"]
    assert means[2] == ["0.5", "128", "2", *expected]
    assert "best: t=0.5,size=128,seed_everything=1, val/top1 0.7" in text
    rows = csv_rows(tmp_path)
    assert rows[0]["test/knn_top1"] == str(0.9 - 0.1 * 7)
    assert [row["test/uniformity"] for row in rows] == ["-2.0"] * 8 + [""] * 3


def charts(page, section):
    """Return the traces and the layout of each chart in a section of the page."""
    figures = page.blocks.get(section, {}).get("figure", [])
    return [(figure["traces"], figure["layout"]) for figure in figures]


def test_page_has_the_tables_and_optuna_charts(tmp_path):
    text, _ = write_results(tmp_path, evaluated_grid(tmp_path), BEST)
    page = Page((tmp_path / "sweep.html").read_text(encoding="utf-8"))
    assert [section["id"] for section in page.all("section")] == [
        "trials",
        "parameters",
        "contours",
        "epochs",
    ]
    assert all(cell in page.text["trials"] for table in tables(text) for row in table[2:] for cell in row)
    slices = charts(page, "parameters")
    assert len(slices) == 4  # two metrics by two parameters
    traces, layout = slices[2]
    assert sorted(zip(traces[0]["x"], traces[0]["y"], strict=True))[0] == (0.1, pytest.approx(60))
    assert layout["xaxis"]["title"]["text"] == "t"
    lines = [(each["text"], shape["y0"]) for each, shape in zip(
        layout["annotations"], layout["shapes"], strict=True
    )]  # fmt: skip
    assert lines == [("untrained network", 25), ("raw pixels", 20), ("chance", 10)]
    assert len(charts(page, "contours")) == 2
    ((curves, _),) = charts(page, "epochs")
    assert curves[0]["name"] == "t=0.5,size=128,seed_everything=1"
    assert (curves[0]["x"], curves[0]["y"]) == ([1, 2], pytest.approx([0.35, 0.7]))


def test_pruned_trials_and_texts_are_drawn(tmp_path):
    records = [record("finished", 0.1 * i, k=each) for i, each in enumerate([32, "bf16-mixed"])]
    records += [record("pruned", 0.5, k="16"), record("failed", None, "exit code 1: <b>", k="64")]
    for each in records[:3]:
        make_run_directory(tmp_path, each.trial.name)
    write_results(tmp_path, records, BEST)
    page = Page((tmp_path / "sweep.html").read_text(encoding="utf-8"))
    ((traces, layout),) = charts(page, "parameters")
    assert layout["xaxis"]["type"] == "category"
    assert len(traces[0]["x"]) == 2
    ((curves, _),) = charts(page, "epochs")
    assert len(curves) == 3
    assert "exit code 1: <b>" in page.text["trials"]


def test_parameter_with_a_single_value_is_not_drawn(tmp_path, capfd):
    records = [record("finished", 0.1 * k, k=k, size=64, seed_everything=k) for k in (1, 2)]
    for each in records:
        make_run_directory(tmp_path, each.trial.name)
    write_results(tmp_path, records, BEST)
    page = Page((tmp_path / "sweep.html").read_text(encoding="utf-8"))
    assert [layout["xaxis"]["title"]["text"] for _, layout in charts(page, "parameters")] == ["k"]
    assert charts(page, "contours") == []
    assert "unique value length" not in capfd.readouterr().err


def test_settings_of_one_class_are_told_apart(tmp_path):
    objectives = [
        {"class_path": "ssl_vision.objectives.InfoNCE", "init_args": {"temperature": each}}
        for each in (0.1, 0.2)
    ]
    records = [
        Record(Trial(f"{i}{seed}", {}, {"objective": objectives[i], "seed_everything": seed}), "finished", i)
        for i, seed in itertools.product((0, 1), (0, 1))
    ]
    for each in records:
        make_run_directory(tmp_path, each.trial.name)
    text, _ = write_results(tmp_path, records, BEST)
    assert text.count("| InfoNCE (temperature 0.1) |") == text.count("| InfoNCE (temperature 0.2) |") == 3


def test_labels_keep_texts_that_are_no_classes():
    assert [label(each) for each in ("a/base.yaml", "base.yaml", "my.Net", 0.123456, None)] == [
        "a/base.yaml", "base.yaml", "Net", "0.1235", "None",
    ]  # fmt: skip


def test_seconds_of_long_runs_are_whole_numbers(tmp_path):
    make_run_directory(tmp_path, "x=1", epochs=10_000)
    assert "| 17,500  |" in write_results(tmp_path, [record("finished", 0.5, x=1)], BEST)[0]
