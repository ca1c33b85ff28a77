"""Tests of ``ssl-vision report``: the content of the page, and what it says about missing data."""

import csv
import itertools
import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
import yaml
from pages import Page
from PIL import Image
from settings import TINY

from ssl_vision.callbacks.objective_statistics import names, shares
from ssl_vision.data import Digits
from ssl_vision.data.loading.loader import Order
from ssl_vision.experiments.report import accuracies, curves, gallery, report
from ssl_vision.experiments.report.context import ReportContext, distinct
from ssl_vision.experiments.report.page import Missing
from ssl_vision.main import main
from ssl_vision.metrics.accuracy_difference import wilson_interval
from ssl_vision.runs.registry import Run

SECTIONS = [
    "curves", "plane", "weights", "protocols", "map", "temperature", "neighbours", "negatives", "confusion",
    "views", "configuration",
]  # fmt: skip


def report_page(*args, output):
    assert main(["report", *map(str, args), f"--output={output}"]) == 0
    return Page(output.read_text(encoding="utf-8"))


def test_evaluate_writes_a_page_with_every_section(page):
    assert [element["id"] for element in page.all("section")] == SECTIONS
    assert not any("Not available" in text for text in page.text.values())
    assert [element["href"] for element in page.all("a")][1:] == [f"#{name}" for name in SECTIONS]
    headings = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))


def test_page_shows_views_of_images_of_first_batch(evaluated_run):
    html = (evaluated_run / "report.html").read_text(encoding="utf-8")
    order = Order(len(Digits().split("pretrain")), shuffle=True, seed=0).rows()
    assert all(f"image {index} without augmentation" in html for index in order[:12].tolist())


def test_page_is_self_contained(evaluated_run, page):
    (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data: blob:;")
    assert "unsafe" not in policy.split("script-src")[1]
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name == "src" or name.startswith("on")], tag
        assert tag != "link" or attributes["href"] == "data:,"
    html = (evaluated_run / "report.html").read_text(encoding="utf-8")
    assert re.findall(r"url\((?!data:image)", html) == []
    assert "@import" not in html
    assert len(html) < 8_000_000


def test_curves_match_metrics_csv(evaluated_run, page):
    with (evaluated_run / "metrics.csv").open(newline="") as file:
        logged = list(csv.DictReader(file))
    lines = {trace["name"]: trace for figure in page.blocks["curves"]["figure"] for trace in figure["traces"]}
    loss = lines["Loss"]
    assert loss["y"] == pytest.approx([float(row["train/loss"]) for row in logged], rel=1e-4)
    assert loss["x"] == [pytest.approx((int(row["step"]) + 1) / 4) for row in logged]
    knn = [100 * float(row["val/knn_top1"]) for row in logged if row["val/knn_top1"]]
    assert lines["Validation kNN top-1, %"]["y"] == pytest.approx(knn, rel=1e-4)
    assert lines["Validation kNN top-1, %"]["x"] == [1, 2]
    (plane,) = page.blocks["plane"]["figure"]
    hidden = next(trace for trace in plane["traces"] if trace["name"] == "hidden")
    for axis, metric in (("x", "val/uniformity_hidden"), ("y", "val/alignment_hidden")):
        values = [float(row[metric]) for row in logged if row[metric]]
        assert hidden[axis] == pytest.approx(values, rel=1e-4)


def test_weight_heatmap_matches_weights_csv(evaluated_run, page):
    with (evaluated_run / "weights.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (figure,) = page.blocks["weights"]["figure"]
    heat = figure["traces"][0]
    bins = sorted((name for name in rows[0] if name.startswith("weight/")), key=lambda name: float(name[7:]))
    shares = np.array([[float(row[name]) for row in rows] for name in bins])
    occupied = np.flatnonzero((shares >= 1e-3).any(axis=1))
    np.testing.assert_allclose(heat["z"], shares[occupied[0] : occupied[-1] + 1], atol=1e-3)
    assert len(heat["y"]) == len(heat["z"]) + 1  # the ends of the bins
    inner = np.array([float(name[7:]) for name in bins[1:]])
    ends = np.log(inner / (1 - inner))[max(0, occupied[0] - 1) : occupied[-1] + 1]
    assert set(np.round(ends[1:-1], 3)) <= set(np.round(heat["y"], 3))
    low, high = figure["layout"]["yaxis"]["range"]
    assert low < heat["y"][0] < heat["y"][-1] < high
    median = next(trace for trace in figure["traces"] if trace["name"] == "median")
    for d, w in zip(median["y"], median["customdata"], strict=True):
        assert 1 / (1 + math.exp(-d)) == pytest.approx(w, abs=1e-3)


def weights_figure(folder, shares):
    """Return the figure of W of a run with these bins and shares at every step, all weights about 0.99."""
    (folder / "config.yaml").write_text("model: {class_path: x.SimCLR}\nwandb: false\n")
    steps = range(4)
    (folder / "weights.csv").write_text(
        ",".join(["step", "epoch", *shares])
        + "".join("\n" + ",".join(map(str, [i, i, *shares.values()])) for i in steps)
        + "\n"
    )
    head = "step,epoch,train/weight_q05,train/weight_q50,train/weight_q95\n"
    (folder / "metrics.csv").write_text(head + "".join(f"{i},{i},0.985,0.99,0.995\n" for i in steps))
    _, content = curves.weights(Run(folder))
    return json.loads(re.search(r'class="figure">(.*?)</script>', content).group(1))


def test_weight_heatmap_resolves_narrow_range_and_omits_single_bin(tmp_path):
    (tmp_path / "new").mkdir()
    values = torch.linspace(0.98, 0.997, 64)
    figure = weights_figure(tmp_path / "new", dict(zip(names(), shares(values).tolist(), strict=True)))
    assert figure["traces"][0]["type"] == "heatmap"
    assert len(figure["traces"][0]["z"]) >= 6
    ticks = [float(text) for text in figure["layout"]["yaxis"]["ticktext"]]
    assert {0.98, 0.99, 0.995} <= set(ticks)
    assert min(ticks) > 0.97
    (tmp_path / "old").mkdir()
    figure = weights_figure(tmp_path / "old", {f"weight/{i / 20:.2f}": int(i == 19) for i in range(20)})
    assert [trace["mode"] for trace in figure["traces"]] == ["lines"] * 3


def test_metrics_that_do_not_vary_are_listed_and_not_drawn(tmp_path):
    (tmp_path / "config.yaml").write_text("model: {class_path: x.SimCLR}\nwandb: false\n")
    (tmp_path / "metrics.csv").write_text(
        "step,epoch,train/loss,train/temperature,val/knn_top1,val/uniformity,val/uniformity_hidden\n"
        "0,0,2.5,0.25,,,\n1,1,2.25,0.25,0.5,-1.25,-1.5\n"
    )
    page = Page(f'<section id="curves">{curves.of_layers(Run(tmp_path))[1]}</section>')
    (figure,) = page.blocks["curves"]["figure"]
    assert [trace["name"] for trace in figure["traces"]] == ["Loss"]
    words = page.text["curves"].split("Constant during training, or measured only once")[1].split()
    table = "backbonehidden Validation kNN top-1, %50 Temperature τ0.25 Uniformity-1.25-1.5"
    assert " ".join(words).startswith(table)
    with pytest.raises(Missing, match="two validations"):
        curves.alignment_uniformity(Run(tmp_path))


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("1", "1 epoch of 1 batch"),
        ("1.0", "1 epoch"),
        ("0.5", "1 epoch of 50 % of the batches"),
        ("4.0", "1 epoch of 4 batches"),
    ],
)
def test_summary_states_limit_of_batches_per_epoch(limit, told, tmp_path):
    (tmp_path / "config.yaml").write_text(f"trainer: {{max_epochs: 1, limit_train_batches: {limit}}}\n")
    (tmp_path / "metrics.csv").write_text("step,epoch,train/loss\n0,0,2.5\n1,1,2.25\n")
    assert f" for {told}, with" in accuracies._sentence(ReportContext(Run(tmp_path), embed=False))


def test_summary_of_run_limited_by_steps_states_no_planned_epochs(tmp_path):
    (tmp_path / "config.yaml").write_text("trainer: {max_epochs: -1, max_steps: 2}\n")
    (tmp_path / "times.csv").write_text("step,epoch,time/epochs\n1,0,1\n")
    assert " for 1 epoch, with" in accuracies._sentence(ReportContext(Run(tmp_path), embed=False))


def test_summary_states_training_and_accuracy(evaluated_run, page):
    opening = " ".join(page.text[""].split()).partition("This file is self-contained")[0]
    run = Run(evaluated_run)
    accuracy = {row["metric"]: row for row in run.evaluation if row["layer"] == "backbone"}
    sentence = (
        "SimCLR with MACL (temperature 0.1) pretrained the encoder ResNet (depth 18, width 4, stem small, "
        "in_channels 3) on 1,437 images of Digits for 2 epochs of 4 batches, with 64 images per batch and "
        "seed 0."
    )
    assert sentence in opening
    assert "kNN top-1protocol macl, k = 5, T = 0.1" in opening
    assert f"{100 * accuracy['knn_top1']['value']:.2f}" in opening
    validation = 100 * run.last("val/knn_top1")
    low, high = wilson_interval(validation / 100, 144)
    shown = f"{validation:.2f} % ± {50 * (high - low):.1f} (144 images)"
    assert f"{shown}kNN top-1last validation, held-out train images, k = 5" in opening
    assert opening.count("MACL") == opening.count("Digits") == opening.count("ResNet") == 1
    assert page.all("ul")[0]["class"] == "facts"


def test_summary_compares_with_baselines_of_same_conditions(evaluated_run, tmp_path):
    run = shutil.copytree(evaluated_run, tmp_path / "tiny")
    file = run / "evaluation.json"
    rows = json.loads(file.read_text())
    trained_row = next(row for row in rows if row["metric"] == "knn_top1" and row["layer"] == "backbone")
    trained_row["value"] = 0.75
    rows += [
        trained_row | {"features": "untrained", "value": 0.5, "epoch": 0},
        trained_row | {"features": "pixels", "layer": "raw", "value": 0.875, "epoch": 0},
        trained_row | {"features": "untrained", "value": 0.25, "epoch": 0, "k": 77},
    ]
    linear_row = next(row for row in rows if row["metric"] == "linear_top1" and row["layer"] == "backbone")
    rows += [linear_row | {"features": "untrained", "value": 0.25, "epoch": 0, "lr": 1e-6}]
    file.write_text(json.dumps(rows))
    opening = report_page(run, "--embed=false", output=tmp_path / "page.html").text[""]
    claim = "In kNN top-1, it is 25.00 points above the untrained network and 12.50 points below raw pixels."
    assert claim in opening
    cells = " ".join(opening.split())
    assert "this network 75.00" in cells
    assert "untrained network 50.00" in cells
    assert "raw pixels 87.50" in cells
    assert "In linear top-1" not in cells


def test_page_of_unevaluated_run_says_how_to_add_missing_sections(tiny_run, tmp_path):
    page = report_page(tiny_run, "--embed=false", output=tmp_path / "page.html")
    missing = {name for name, text in page.text.items() if "Not available" in text}
    assert missing == {"protocols", "map", "temperature", "neighbours", "negatives", "confusion"}
    assert f"ssl-vision evaluate {tiny_run}" in page.text["protocols"]
    assert f"ssl-vision report {tiny_run}" in page.text["map"]


def test_missing_features_are_computed_once_and_reused(tiny_run, tmp_path, page):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")
    new_page = report_page(run, output=tmp_path / "page.html")
    assert new_page.blocks["map"]["points"][0]["near"] == page.blocks["map"]["points"][0]["near"]
    modified = {file.name: file.stat().st_mtime_ns for file in (run / "features").iterdir()}
    assert len(modified) == 3
    report_page(run, output=tmp_path / "page.html")
    assert {file.name: file.stat().st_mtime_ns for file in (run / "features").iterdir()} == modified


def test_broken_and_absent_files_are_named_in_their_sections(evaluated_run, tmp_path):
    run = shutil.copytree(evaluated_run, tmp_path / "tiny")
    (run / "evaluation.json").write_text("{", encoding="utf-8")
    (run / "checkpoints" / "last.ckpt").write_bytes(b"no checkpoint")
    for name in ("metrics.csv", "times.csv", "weights.csv"):
        (run / name).unlink()
    page = report_page(run, output=tmp_path / "page.html")
    assert "evaluation.json" in page.text["protocols"]
    assert "last.ckpt" in page.text["map"]
    assert "metrics.csv has no numbers" in page.text["curves"]
    assert "Not available" not in page.text["views"]


def test_page_of_one_epoch_without_validation_has_loss_and_views(tmp_path):
    args = [*TINY, "--trainer.max_epochs=1", "--trainer.limit_val_batches=0", "--report=true"]
    args += ["--seed_everything=5"]
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=short", *args]) == 0
    page = Page((tmp_path / "short" / "report.html").read_text(encoding="utf-8"))
    assert "requires two validations" in page.text["plane"]
    assert "epoch 1." in page.text["views"]
    assert page.blocks["curves"]["figure"][0]["traces"][0]["name"] == "Loss"
    later = report_page(tmp_path / "short", "--embed=false", output=tmp_path / "page.html")
    assert later.views == page.views != ""


def test_views_of_a_run_that_grew_its_images_are_shown(tiny_run):
    data = Digits(progressive_resizing={1: 8})
    assert [views.shape[-1] for views in both_epochs(data)] == [8, 16]
    lead, content = gallery.views(ReportContext(Run(tiny_run), data=data))
    assert "epoch 1 and epoch 2" in lead
    assert content.count('in epoch 2" title') == 24


def both_epochs(data):
    return [gallery.training_views(data, torch.tensor([0]), epoch)[0] for epoch in (0, 1)]


def test_classes_of_equal_names_are_told_apart():
    assert distinct(("crane", "dog", "crane", "no label")) == (
        "crane (0)",
        "dog",
        "crane (2)",
        "no label (3)",
    )


def test_page_contains_no_home_directory(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a", "b"):
        shutil.copytree(tiny_run, tmp_path / name / "run")
    (tmp_path / "a" / "run" / "times.csv").unlink()
    for paths in ([tmp_path / "a"], [tmp_path / "a", tmp_path / "b"]):
        report_page(*paths, "--embed=false", output=tmp_path / "page.html")
        text = (tmp_path / "page.html").read_text(encoding="utf-8")
        assert str(tmp_path) not in text
        assert "~/a/run" in text


def test_summary_states_epoch_and_data_of_results_that_are_not_of_the_run(evaluated_run, tmp_path):
    file = shutil.copytree(evaluated_run, tmp_path / "tiny") / "evaluation.json"
    page = report_page(file.parent, "--embed=false", output=tmp_path / "page.html")
    assert "Accuracy on the test split, in percent" in page.text[""]
    rows = [row for row in json.loads(file.read_text()) if row["layer"] == "backbone"]
    for row in rows:
        if row["metric"] == "linear_top1":
            row["data"] = "CIFAR100"
        row["epoch"] = 1
    file.write_text(json.dumps(rows))
    text = report_page(file.parent, "--embed=false", output=tmp_path / "page.html").text[""]
    assert "k = 5, T = 0.1, epoch 1, test split" in text
    assert "epoch 1, CIFAR100 test split" in text
    assert "Accuracy, in percent" in text
    table = report_page(file.parent, evaluated_run, "--embed=false", output=tmp_path / "page.html").text[""]
    assert table.count("(epoch 1)") == 2


def test_summary_shows_intervals_of_accuracies_and_chance(evaluated_run, tmp_path):
    rows = json.loads((evaluated_run / "evaluation.json").read_text())
    row = next(row for row in rows if (row["metric"], row["layer"]) == ("knn_top1", "backbone"))
    interval = f"{100 * row['value']:.2f} ± {50 * (row['high'] - row['low']):.2f}"
    one = report_page(evaluated_run, "--embed=false", output=tmp_path / "page.html").text[""]
    assert interval in one
    assert re.search(rf"chance\s*{100 * row['chance']:.2f}", one)
    several = report_page(evaluated_run, evaluated_run, "--embed=false", output=tmp_path / "page.html")
    assert interval in several.text[""]


def test_page_states_that_objective_has_no_weight_w(tmp_path):
    args = [*TINY, "--trainer.max_epochs=1", "--report=true", "--model.objective=BarlowTwins"]
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *args]) == 0
    page = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert "BarlowTwins has no gradient weight W" in page.text["weights"]


NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder_run(tmp_path_factory):
    """Run on a folder of images whose class names are markup; it has no test split."""
    root = tmp_path_factory.mktemp("images")
    for shade, name in enumerate((NASTY, "'\"&</script><script>")):
        place = root / "train" / name.replace("/", "∕")
        place.mkdir(parents=True)
        for number in range(16):
            Image.new("RGB", (20, 16), (40 + 80 * shade, 10 * number, 90)).save(place / f"{number}.png")
    runs = tmp_path_factory.mktemp("runs")
    args = ["--data=ImageFolder", f"--data.root={root}", "--data.image_size=16"]
    args += [*TINY, "--data.views.size=16", "--data.batch_size=8", "--trainer.max_epochs=1"]
    assert main(["fit", f"--runs_dir={runs}", "--name=folder", *args]) == 0
    return runs / "folder"


def test_class_names_are_escaped_and_test_split_is_optional(folder_run, tmp_path):
    page = report_page(folder_run, output=tmp_path / "page.html")
    assert page.all("img") == []
    assert len(page.all("script")) == 2 + sum(
        len(blocks) for kinds in page.blocks.values() for blocks in kinds.values()
    )
    points = page.blocks["map"]["points"][0]
    assert NASTY in points["names"]
    assert len(points["rows"]) == 32
    assert NASTY in page.text["neighbours"]
    assert "32 training images" in page.text["map"]
    assert "labelled train and test splits" in page.text["confusion"]


def test_images_without_labels_have_a_map_and_neighbours(tmp_path):
    root = tmp_path / "images"
    root.mkdir()
    for number in range(24):
        Image.new("RGB", (16, 16), (10 * number, 90, 255 - 10 * number)).save(root / f"{number:02}.png")
    args = ["--data=ImageFolder", f"--data.root={root}", "--data.image_size=16"]
    args += [*TINY, "--data.views.size=16", "--data.batch_size=8", "--trainer.max_epochs=1"]
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *args]) == 0
    page = report_page(tmp_path / "run", output=tmp_path / "page.html")
    assert page.blocks["map"]["points"][0]["names"] == ["no label"]
    assert "two classes" in page.text["negatives"]
    assert "Not available" not in page.text["neighbours"] + page.text["views"]


def test_results_name_only_measured_baselines(evaluated_run, tmp_path, page):
    text = page.text["protocols"]
    assert "baselines" not in text
    assert "measured by ssl-vision evaluate. The" in text
    assert "same cosThis is the mean cosine of two images of the same class." in text
    run = shutil.copytree(evaluated_run, tmp_path / "run")
    rows = json.loads((run / "evaluation.json").read_text())
    row = next(row for row in rows if (row["metric"], row["layer"]) == ("linear_top1", "backbone"))
    rows.append(row | {"features": "pixels", "layer": "raw"})
    (run / "evaluation.json").write_text(json.dumps(rows))
    other = report_page(run, "--embed=false", output=tmp_path / "page.html")
    assert "evaluate, with raw pixels as baselines." in other.text["protocols"]
    summary = re.sub(r"\s+", " ", other.text[""])
    assert f"raw pixels –{100 * row['value']:.2f}" in summary.replace(" –", " –").replace("– ", "–")


def test_summary_states_number_of_processes(tiny_run, tmp_path):
    folder = shutil.copytree(tiny_run, tmp_path / "tiny")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["trainer"] |= {"devices": 3, "num_nodes": 1}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert "with 3 × 64 images per batch" in accuracies._sentence(ReportContext(Run(folder)))


def test_page_of_several_runs_compares_them(tiny_run, tmp_path):
    for seed in (0, 1):
        for objective in ("InfoNCE", "DCL"):
            run = tmp_path / f"{objective}{seed}"
            shutil.copytree(tiny_run, run)
            config = yaml.safe_load((run / "config.yaml").read_text())
            config["seed_everything"] = seed
            config["model"]["init_args"]["objective"]["class_path"] = f"ssl_vision.objectives.{objective}"
            (run / "config.yaml").write_text(yaml.safe_dump(config))
    page = report_page(tmp_path, output=tmp_path / "page.html")
    assert [element["id"] for element in page.all("section")] == ["curves", "comparison", "configuration"]
    names = ["DCL0", "DCL1", "InfoNCE0", "InfoNCE1"]
    assert [trace["name"] for trace in page.blocks["curves"]["figure"][0]["traces"]] == names
    boxes = [element["value"] for element in page.all("input") if element["type"] == "checkbox"]
    assert boxes == names
    assert "model.objective" in page.text["configuration"]
    assert "model.encoder.depth" not in page.text["configuration"]
    last = Run(tiny_run).last("val/knn_top1")
    assert f"{100 * last:.2f}" in page.text["comparison"]
    assert "DCL and InfoNCE are equal with each of 2 seeds" in page.text["comparison"]


def test_accuracies_under_different_options_are_marked_as_not_comparable(evaluated_run, tmp_path):
    for name in ("first", "second"):
        shutil.copytree(evaluated_run, tmp_path / name)
    equal = report_page(tmp_path, "--embed=false", output=tmp_path / "equal.html")
    assert "Not comparable" not in equal.text[""]
    file = tmp_path / "second" / "evaluation.json"
    rows = json.loads(file.read_text())
    for row in rows:
        if row["metric"] == "linear_top1":
            row["options"] = "epochs 7"
    file.write_text(json.dumps(rows))
    other = report_page(tmp_path, "--embed=false", output=tmp_path / "other.html")
    assert (
        "* Not comparable: the runs were evaluated on different data or with different options."
        in other.text[""]
    )
    value = next(r["value"] for r in rows if (r["metric"], r["layer"]) == ("linear_top1", "backbone"))
    assert len(re.findall(rf"{100 * value:.2f} ± \d+\.\d+ \*", other.text[""])) == 2


def test_runs_of_one_seed_are_compared_without_tests(evaluated_run, tmp_path):
    for objective in ("InfoNCE", "DCL"):
        run = shutil.copytree(evaluated_run, tmp_path / objective)
        config = yaml.safe_load((run / "config.yaml").read_text())
        config["model"]["init_args"]["objective"]["class_path"] = f"ssl_vision.objectives.{objective}"
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    text = report_page(tmp_path, "--embed=false", output=tmp_path / "page.html").text["comparison"]
    assert "knn_top1 of the backbone" in text
    assert "linear_top1 of the backbone" in text
    assert text.count("chance") == 1
    assert not any(word in text for word in ("Wilcoxon", "% interval", "d_z", "Mean", "Differences"))


def test_page_says_why_runs_cannot_be_paired(tiny_run, tmp_path):
    for name in ("one", "other"):
        shutil.copytree(tiny_run, tmp_path / name)
    page = report_page(tmp_path / "one", tmp_path / "other", "--embed=false", output=tmp_path / "page.html")
    assert "differ only in the seed" in page.text["comparison"]
    assert "the same configuration" in page.text["configuration"]


def test_failed_rendering_is_reported_in_one_line(tiny_run, tmp_path, monkeypatch, capsys):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")

    def fail(*_, **options):
        raise RuntimeError("no\nink")

    monkeypatch.setattr(report, "render", fail)
    report.write(run)
    assert capsys.readouterr().err == f"{run}: no report was written (no ink)\n"
    assert not (run / "report.html").exists()


def test_fit_with_report_false_writes_no_page(tiny_run):
    assert "--report=false" in TINY
    assert not (tiny_run / "report.html").exists()


@pytest.mark.parametrize(
    ("args", "word"),
    [([], "required: runs"), (["nowhere"], "no such directory"), (["--outptu=x"], "output")],
)
def test_invalid_options_are_reported_in_one_line(args, word, capsys):
    assert main(["report", *args]) == 2
    error = capsys.readouterr().err
    assert word in error
    assert error.count("\n") == 1
