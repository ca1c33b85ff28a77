"""Tests of the tables and the plot of a sweep against numbers computed by hand."""

import csv
import itertools
import json
import re

import pytest
from pages import Page
from scipy import stats

from ssl_vision.sweeps.plot import write_plot
from ssl_vision.sweeps.results_table import ranked, write_tables
from ssl_vision.sweeps.sweep_file import SweepMetric
from ssl_vision.sweeps.sweep_plan import Record
from ssl_vision.sweeps.trials import Trial, label

BEST = SweepMetric("val/top1", "maximize", None)
ACCURACY = SweepMetric("val/knn_top1", "maximize", None)
LEAST = SweepMetric("loss", "minimize", None)


def record(state, value=None, note="", **varied):
    name = ",".join(f"{key}={each}" for key, each in varied.items())
    return Record(Trial(name, varied, varied), state, value, note)


def make_run_directory(folder, name, *, epochs=2, metric="val/top1", values=(0.1, 0.2)):
    run = folder / name
    run.mkdir()
    lines = [f"{i},{i},{value}" for i, value in enumerate(values)]
    (run / "metrics.csv").write_text("\n".join([f"step,epoch,{metric}", *lines]) + "\n")
    times = [f"{i},{i},1.5,0.25" for i in range(epochs)]
    (run / "times.csv").write_text(
        "\n".join(["step,epoch,time/train_seconds,time/val_seconds", *times]) + "\n"
    )


def test_ranked_lists_best_first_and_failed_last():
    records = [record("failed", x=1), record("finished", 0.2, x=2), record("pruned", 0.9, x=3)]
    records += [record("finished", 0.7, x=4), record("waiting", x=5)]
    assert [r.trial.varied["x"] for r in ranked(records, BEST)] == [4, 2, 3, 5, 1]
    assert [r.trial.varied["x"] for r in ranked(records, LEAST)] == [2, 4, 3, 5, 1]


def test_tables_show_state_metric_and_note_of_every_trial(tmp_path):
    make_run_directory(tmp_path, "x=1", epochs=3)
    records = [record("finished", 0.25, x=1), record("failed", None, "exit code 1: a|b", x=2)]
    text = write_tables(tmp_path, records, BEST)
    lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines()[:4]]
    assert lines[0] == ["x", "state", "val/top1", "epochs", "seconds", "note"]
    assert lines[2] == ["1", "finished", "0.25", "3", "5.2", ""]
    assert lines[3] == ["2", "failed", "", "", "", "exit code 1: a\\|b"]
    assert text.endswith("best: x=1, val/top1 0.25")
    assert (tmp_path / "sweep.md").read_text() == f"{text}\n"
    with (tmp_path / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["state"], row["val/top1"], row["note"]) for row in rows] == [
        ("x=1", "finished", "0.25", ""),
        ("x=2", "failed", "", "exit code 1: a|b"),
    ]


def test_parameter_named_like_a_column_gets_its_own_column(tmp_path):
    records = [
        record("finished", 0.5, name="sgd", epochs=10, seed_everything=seed, **{"val/top1": 3})
        for seed in (0, 1)
    ]
    text = write_tables(tmp_path, records, BEST)
    (row, _) = csv.DictReader((tmp_path / "sweep.csv").open())
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
    text = write_tables(tmp_path, records, BEST)
    half = stats.sem(values["a"]) * stats.t.ppf(0.975, 2)
    table = text.split("by Student's t:\n\n")[1].splitlines()
    assert re.match(r"\| b +\| 3 +\| 0\.8 ± ", table[2])
    assert re.match(rf"\| a +\| 3 +\| 0\.6667 ± {half:.2g} +\|", table[3])
    assert len(table[: table.index("")]) == 4  # c has a single value and therefore no interval


def test_accuracies_are_percentages_in_tables_and_fractions_in_csv(tmp_path):
    records = [record("finished", value, x=1, seed_everything=i) for i, value in enumerate((0.5, 0.7))]
    text = write_tables(tmp_path, [*records, record("failed", None, "why", x=1, seed_everything=2)], ACCURACY)
    head, _, best, *_ = ([c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines())
    assert dict(zip(head, best, strict=True))["val/knn_top1, %"] == "70.00"
    assert f"60.00 ± {100 * stats.sem([0.5, 0.7]) * stats.t.ppf(0.975, 1):.2f}" in text
    assert "val/knn_top1 70.00 %" in text
    with (tmp_path / "sweep.csv").open(newline="") as file:
        assert [row["val/knn_top1"] for row in csv.DictReader(file)] == ["0.7", "0.5", ""]


def test_sweep_without_finished_trials_has_table_but_no_plot(tmp_path):
    assert "waiting" in write_tables(tmp_path, [record("waiting", x=1)], BEST)
    assert write_plot(tmp_path, [record("waiting", x=1)], BEST) is None


def charts(page, section):
    """Return the traces and the layout of each chart in a section of the page."""
    figures = Page(page.read_text(encoding="utf-8")).blocks.get(section, {}).get("figure", [])
    return [(figure["traces"], figure["layout"]) for figure in figures]


def add_evaluation(folder, name, **values):
    """Add an evaluation to a run directory."""
    (folder / name / "config.yaml").write_text("data: {class_path: ssl_vision.data.Digits}\nwandb: false\n")
    base = {"features": "trained", "split": "test", "epoch": 2, "data": "Digits", "protocol": "macl"}
    rows = [
        base | {"metric": metric, "layer": layer, "value": value}
        for layer, each in values.items()
        for metric, value in each.items()
    ]
    (folder / name / "evaluation.json").write_text(json.dumps(rows))


def evaluated_grid(folder):
    """Return temperature × batch size × two seeds; the worst on validation is the best on the test split."""
    records = []
    for number, (t, size, seed) in enumerate(itertools.product((0.1, 0.5), (64, 128), (0, 1))):
        records.append(record("finished", 0.1 * number, t=t, size=size, seed_everything=seed))
        name = records[-1].trial.name
        make_run_directory(folder, name)
        accuracies = {"knn_top1": 0.9 - 0.1 * number, "uniformity": -2.0}
        add_evaluation(folder, name, backbone=accuracies, projector={"knn_top1": 0.3})
    return records


def test_evaluations_are_listed_beside_ranking_metric(tmp_path):
    text = write_tables(tmp_path, evaluated_grid(tmp_path), BEST)
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    heads = [[cell.strip() for cell in table.splitlines()[0].split("|")[1:-1]] for table in tables]
    assert heads[0] == ["t", "size", "seed_everything", "state", "val/top1", "epochs", "seconds"]
    accuracies = ["test/knn_top1, %", "test/knn_top1_projector, %"]
    assert heads[1] == ["t", "size", "seed_everything", "val/top1", *accuracies]
    assert heads[2] == ["t", "size", "seeds", "val/top1", *accuracies]
    assert "best: t=0.5,size=128,seed_everything=1, val/top1 0.7" in text
    first = [cell.strip() for cell in tables[2].splitlines()[2].split("|")[1:-1]]
    half = stats.t.ppf(0.975, 1) * 0.05  # of 0.2 and 0.3: the standard error of the mean is 0.05
    expected = [f"0.65 ± {half:.2g}", f"25.00 ± {100 * half:.2f}", "30.00 ± 0.00"]
    assert first == ["0.5", "128", "2", *expected]
    with (tmp_path / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["test/knn_top1"] == str(0.9 - 0.1 * 7)
    assert {row["test/uniformity"] for row in rows} == {"-2.0"}


def test_accuracies_are_plotted_by_layer_and_as_heat_maps(tmp_path):
    file = write_plot(tmp_path, evaluated_grid(tmp_path), BEST)
    page = Page(file.read_text(encoding="utf-8"))
    assert [section["id"] for section in page.all("section")] == [
        "trials",
        "metric",
        "accuracies",
        "heat",
        "epochs",
    ]
    assert "The best val/top1 is 0.7, with t 0.5, size 128 and seed_everything 1." in page.text[""]
    assert "test/knn_top1, %" in page.text["trials"]
    ((traces, _),) = charts(file, "accuracies")
    dashes = {trace["name"]: trace["line"]["dash"] for trace in traces if trace["mode"] == "lines"}
    assert dashes["size 64 backbone"] == "solid"
    assert dashes["size 64 projector"] == "dot"
    maps = [traces[0] for traces, _ in charts(file, "heat")]
    assert [(each["x"], each["y"]) for each in maps] == [(["0.1", "0.5"], ["64", "128"])] * 2
    assert maps[0]["z"] == [pytest.approx([0.05, 0.45]), pytest.approx([0.25, 0.65])]  # means over seeds
    assert maps[1]["z"] == [pytest.approx([85, 45]), pytest.approx([65, 25])]  # in percent


def test_plot_shows_trials_means_and_curves_over_epochs(tmp_path):
    records = []
    for lr in (0.001, 0.1):
        for seed in (0, 1):
            records.append(record("finished", 10 * lr + seed, k="a", lr=lr, seed_everything=seed))
            make_run_directory(tmp_path, records[-1].trial.name, values=(0.3, 10 * lr + seed))
    records.append(record("pruned", 0.5, k="b", lr=0.1, seed_everything=0))
    make_run_directory(tmp_path, records[-1].trial.name)
    records.append(record("failed", None, "exit code 1: <b>", k="b", lr=0.001, seed_everything=0))
    page = write_plot(tmp_path, records, BEST)
    ((traces, layout),) = charts(page, "metric")
    lines = [trace for trace in traces if trace["mode"] == "lines"]
    assert {trace["name"]: (trace["x"], trace["y"]) for trace in lines} == {
        "k a": ([0.001, 0.1], [pytest.approx(0.51), pytest.approx(1.5)]),
        "k b": ([], []),
    }
    points = next(trace for trace in traces if trace["mode"] == "markers")
    assert sorted(zip(points["x"], points["y"], strict=True)) == [
        (0.001, 0.01),
        (0.001, 1.01),
        (0.1, 1.0),
        (0.1, 2.0),
    ]
    assert layout["xaxis"]["type"] == "log"
    assert layout["xaxis"]["ticktext"] == ["0.001", "0.1"]
    assert {trace["meta"] for trace in traces} == {"k a", "k b"}
    ((curves, _),) = charts(page, "epochs")
    assert len(curves) == 5
    assert curves[0]["x"] == [1, 2]
    assert curves[0]["y"] == [0.3, 2.0]
    text = Page(page.read_text(encoding="utf-8")).text
    assert "exit code 1: <b>" in text["trials"]
    assert "4 of 6 trials have finished. They vary k, lr and seed_everything." in text[""]


def test_constant_metric_is_reported_as_sentence(tmp_path):
    records = [record("finished", 0.5, x=x) for x in (1, 2)]
    for each in records:
        make_run_directory(tmp_path, each.trial.name, values=(0.5,))
    page = write_plot(tmp_path, records, BEST)
    assert charts(page, "metric") == []
    assert "val/top1 is 0.5 in every trial." in Page(page.read_text(encoding="utf-8")).text["metric"]
    assert charts(page, "epochs") == []


def test_numbers_and_texts_of_one_parameter_are_plotted_as_categories(tmp_path):
    records = [
        record("finished", 0.1 * place, precision=precision, seed_everything=seed)
        for place, (precision, seed) in enumerate(itertools.product([32, "bf16-mixed"], [0, 1]))
    ]
    for each in records:
        make_run_directory(tmp_path, each.trial.name)
    ((traces, layout),) = charts(write_plot(tmp_path, records, BEST), "metric")
    assert layout["xaxis"]["type"] == "category"
    assert next(trace["x"] for trace in traces if trace["mode"] == "lines") == [32, "bf16-mixed"]


def test_settings_of_one_class_are_told_apart(tmp_path):
    objectives = [
        {"class_path": "ssl_vision.objectives.InfoNCE", "init_args": {"temperature": each}}
        for each in (0.1, 0.2)
    ]
    records = [
        Record(
            Trial(f"{i}{seed}", {}, {"objective": objectives[i], "seed_everything": seed}), "finished", i, ""
        )
        for i, seed in itertools.product((0, 1), (0, 1))
    ]
    for each in records:
        make_run_directory(tmp_path, each.trial.name)
    text = write_tables(tmp_path, records, BEST)
    assert text.count("| InfoNCE (temperature 0.1) |") == text.count("| InfoNCE (temperature 0.2) |") == 3
    ((traces, _),) = charts(write_plot(tmp_path, records, BEST), "metric")
    assert traces[0]["x"] == ["InfoNCE (temperature 0.1)", "InfoNCE (temperature 0.2)"]


def test_labels_keep_texts_that_are_no_classes():
    assert [label(each) for each in ("a/base.yaml", "base.yaml", "my.Net", 0.123456, None)] == [
        "a/base.yaml", "base.yaml", "Net", "0.1235", "None",
    ]  # fmt: skip


def test_seconds_of_long_runs_are_whole_numbers(tmp_path):
    make_run_directory(tmp_path, "x=1", epochs=10_000)
    assert "| 17,500  |" in write_tables(tmp_path, [record("finished", 0.5, x=1)], BEST)
