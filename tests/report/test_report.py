"""``ssl-vision report`` as a person uses it: what is on the page, what is said of what is not."""

import csv
import itertools
import re
import shutil

import pytest
import yaml
from pages import Page
from PIL import Image
from settings import TINY

from ssl_vision.main import main
from ssl_vision.report import report
from ssl_vision.runs.registry import Run

SECTIONS = [
    "curves", "plane", "weights", "protocols", "map", "temperature", "neighbours", "negatives", "confusion",
    "spectrum", "views", "costs", "configuration",
]  # fmt: skip


def page_of(*args, output):
    assert main(["report", *map(str, args), f"--output={output}"]) == 0
    return Page(output.read_text(encoding="utf-8"))


def test_evaluate_writes_a_page_with_every_section(page):
    assert [given["id"] for given in page.all("section")] == SECTIONS
    assert not any("Not available" in text for text in page.text.values())
    assert [given["href"] for given in page.all("a")][1:] == [f"#{name}" for name in SECTIONS]
    headings = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))


def test_the_page_asks_for_nothing(evaluated_run, page):
    (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; img-src data: blob:;")
    assert "unsafe" not in policy.split("script-src")[1]
    for tag, given in page.elements:
        assert not [name for name in given if name == "src" or name.startswith("on")], tag
        assert tag != "link" or given["href"] == "data:,"
    html = (evaluated_run / "report.html").read_text(encoding="utf-8")
    assert re.findall(r"url\((?!data:image)", html) == []
    assert "@import" not in html
    assert len(html) < 8_000_000


def test_curves_are_the_values_of_metrics_csv(evaluated_run, page):
    with (evaluated_run / "metrics.csv").open(newline="") as file:
        logged = list(csv.DictReader(file))
    drawn = {trace["name"]: trace for figure in page.blocks["curves"]["figure"] for trace in figure["traces"]}
    loss = drawn["Loss"]
    assert loss["y"] == pytest.approx([float(row["train/loss"]) for row in logged], rel=1e-4)
    assert loss["x"] == [pytest.approx((int(row["step"]) + 1) / 4) for row in logged]
    knn = [100 * float(row["val/knn_top1"]) for row in logged if row["val/knn_top1"]]
    assert drawn["Validation kNN top-1, %"]["y"] == pytest.approx(knn, rel=1e-4)
    assert drawn["Validation kNN top-1, %"]["x"] == [1, 2]
    (plane,) = page.blocks["plane"]["figure"]
    hidden = next(trace for trace in plane["traces"] if trace["name"] == "hidden")
    for axis, metric in (("x", "val/uniformity_hidden"), ("y", "val/alignment_hidden")):
        values = [float(row[metric]) for row in logged if row[metric]]
        assert hidden[axis] == pytest.approx(values, rel=1e-4)


def test_weights_are_those_of_weights_csv(evaluated_run, page):
    with (evaluated_run / "weights.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (figure,) = page.blocks["weights"]["figure"]
    heat = figure["traces"][0]
    assert [len(heat["z"]), len(heat["z"][0])] == [20, len(rows)]
    for column, row in enumerate(rows):
        shares = [float(value) for name, value in row.items() if name.startswith("weight/")]
        assert [line[column] for line in heat["z"]] == pytest.approx(shares, abs=1e-3)


def test_the_summary_has_the_accuracies_and_their_protocol(evaluated_run, page):
    run = Run(evaluated_run)
    knn = next(row for row in run.evaluation if row["metric"] == "knn_top1")
    assert f"kNN top-1 {100 * knn['value']:.2f} % (test, protocol macl, k = 5, T = 0.1)" in page.text[""]
    validation = 100 * run.last("val/knn_top1")
    assert f"{validation:.2f} % (last validation, held-out train images, k = 5)" in page.text[""]
    assert (
        "MACL on Digits: ResNet (depth 18, width 4, stem small), 2 epochs of batches of 64, seed 0"
        in page.text[""]
    )
    assert f"{100 * knn['value']:.2f}" in page.text["protocols"]


def test_a_run_that_was_only_trained_has_a_page_that_says_what_is_missing(tiny_run, tmp_path):
    page = page_of(tiny_run, "--embed=false", output=tmp_path / "page.html")
    missing = {name for name, text in page.text.items() if "Not available" in text}
    assert missing == {"protocols", "map", "temperature", "neighbours", "negatives", "confusion", "spectrum"}
    assert f"ssl-vision evaluate {tiny_run}" in page.text["protocols"]
    assert f"ssl-vision report {tiny_run}" in page.text["map"]


def test_features_are_made_where_they_are_missing_and_kept(tiny_run, tmp_path, page):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")
    made = page_of(run, output=tmp_path / "page.html")
    assert made.blocks["map"]["points"][0]["near"] == page.blocks["map"]["points"][0]["near"]
    kept = {file.name: file.stat().st_mtime_ns for file in (run / "features").iterdir()}
    assert len(kept) == 3
    page_of(run, output=tmp_path / "page.html")
    assert {file.name: file.stat().st_mtime_ns for file in (run / "features").iterdir()} == kept


def test_broken_and_absent_files_are_named_in_their_sections(evaluated_run, tmp_path):
    run = shutil.copytree(evaluated_run, tmp_path / "tiny")
    (run / "evaluation.json").write_text("{", encoding="utf-8")
    (run / "checkpoints" / "last.ckpt").write_bytes(b"no checkpoint")
    for name in ("metrics.csv", "times.csv", "weights.csv"):
        (run / name).unlink()
    page = page_of(run, output=tmp_path / "page.html")
    assert "evaluation.json" in page.text["protocols"]
    assert "last.ckpt" in page.text["map"]
    assert "metrics.csv has no numbers" in page.text["curves"]
    assert "times.csv" in page.text["costs"]
    assert "Not available" not in page.text["views"]


def test_a_run_of_one_epoch_without_validation(tmp_path):
    args = [*TINY, "--trainer.max_epochs=1", "--trainer.limit_val_batches=0", "--report=true"]
    args += ["--seed_everything=5"]
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=short", *args]) == 0
    page = Page((tmp_path / "short" / "report.html").read_text(encoding="utf-8"))
    assert "no validation" in page.text["plane"]
    assert "epoch 1." in page.text["views"]
    assert page.blocks["curves"]["figure"][0]["traces"][0]["name"] == "Loss"
    later = page_of(tmp_path / "short", "--embed=false", output=tmp_path / "page.html")
    assert later.views == page.views != ""


def test_an_objective_without_w_says_so(tmp_path):
    args = [*TINY, "--trainer.max_epochs=1", "--report=true", "--model.objective=BarlowTwins"]
    assert main(["fit", f"--runs_dir={tmp_path}", "--name=run", *args]) == 0
    page = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert "BarlowTwins has no gradient weight W" in page.text["weights"]


NASTY = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder_run(tmp_path_factory):
    """A run on a folder of images whose classes would like to be markup; no test split."""
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


def test_names_cannot_become_markup_and_a_test_split_is_no_need(folder_run, tmp_path):
    page = page_of(folder_run, output=tmp_path / "page.html")
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
    page = page_of(tmp_path / "run", output=tmp_path / "page.html")
    assert page.blocks["map"]["points"][0]["names"] == ["no label"]
    assert "two classes" in page.text["negatives"]
    assert "Not available" not in page.text["neighbours"] + page.text["spectrum"] + page.text["views"]


def test_several_runs_beside_each_other(tiny_run, tmp_path):
    for seed in (0, 1):
        for objective in ("InfoNCE", "DCL"):
            run = tmp_path / f"{objective}{seed}"
            shutil.copytree(tiny_run, run)
            config = yaml.safe_load((run / "config.yaml").read_text())
            config["seed_everything"] = seed
            config["model"]["init_args"]["objective"]["class_path"] = f"ssl_vision.objectives.{objective}"
            (run / "config.yaml").write_text(yaml.safe_dump(config))
    page = page_of(tmp_path, output=tmp_path / "page.html")
    assert [given["id"] for given in page.all("section")] == ["curves", "comparison", "configuration"]
    names = ["DCL0", "DCL1", "InfoNCE0", "InfoNCE1"]
    assert [trace["name"] for trace in page.blocks["curves"]["figure"][0]["traces"]] == names
    boxes = [given["value"] for given in page.all("input") if given["type"] == "checkbox"]
    assert boxes == names
    assert "model.objective" in page.text["configuration"]
    assert "model.encoder.depth" not in page.text["configuration"]
    last = Run(tiny_run).last("val/knn_top1")
    (figure,) = page.blocks["comparison"]["figure"]
    assert figure["traces"][1]["x"] == [pytest.approx(100 * last, rel=1e-4)] * 4
    assert "DCL and InfoNCE are equal with each of 2 seeds" in page.text["comparison"]


def test_runs_that_cannot_be_paired_say_why(tiny_run, tmp_path):
    for name in ("one", "other"):
        shutil.copytree(tiny_run, tmp_path / name)
    page = page_of(tmp_path / "one", tmp_path / "other", output=tmp_path / "page.html")
    assert "differ only in the seed" in page.text["comparison"]
    assert "the same configuration" in page.text["configuration"]


def test_a_page_that_fails_is_a_line(tiny_run, tmp_path, monkeypatch, capsys):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")

    def fails(*_):
        raise RuntimeError("no\nink")

    monkeypatch.setattr(report, "render", fails)
    report.write(run)
    assert capsys.readouterr().err == f"{run}: no report was written (no ink)\n"
    assert not (run / "report.html").exists()


def test_fit_writes_no_page_where_it_is_told_so(tiny_run):
    assert "--report=false" in TINY
    assert not (tiny_run / "report.html").exists()


@pytest.mark.parametrize(
    ("args", "word"),
    [([], "runs"), (["nowhere"], "no such directory"), (["--outptu=x"], "output")],
)
def test_wrong_use_is_one_line(args, word, capsys):
    assert main(["report", *args]) == 2
    error = capsys.readouterr().err
    assert word in error
    assert error.count("\n") == 1
