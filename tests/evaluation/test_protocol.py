"""Tests of evaluation protocols: shipped files, user files and invalid files."""

import csv
import dataclasses
import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from scipy import stats
from settings import TINY

from ssl_vision.data import CIFAR10, STL10, Digits
from ssl_vision.errors import InputError
from ssl_vision.evaluation import finetune, measurement, probe
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.features import embed, embed_views
from ssl_vision.evaluation.finetune import FineTune
from ssl_vision.evaluation.logistic import Logistic
from ssl_vision.evaluation.measurement import KNN, Geometry
from ssl_vision.evaluation.probe import Grid, Linear, ProbeRule
from ssl_vision.evaluation.protocol import read_protocol, shipped
from ssl_vision.evaluation.results import Row, described_protocol, table
from ssl_vision.evaluation.splits import Splits
from ssl_vision.main import main
from ssl_vision.metrics import KNNAccuracy, knn_table, rank_correlation
from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.checkpoint import read_checkpoint

FOLDER = Path(probe.__file__).parent / "protocols"


@pytest.fixture(scope="module")
def run(tiny_run, tmp_path_factory):
    return shutil.copytree(tiny_run, tmp_path_factory.mktemp("protocols") / "tiny")


def test_description_names_each_kind_once_with_its_label_shares():
    assert described_protocol(read_protocol("few_labels"), 1437) == (
        "logistic: L-BFGS on standardised features, C = 1, with 1% and 10% of the labels. "
        "linear: 100 epochs of SGD 0.02 on frozen features, with 1% and 10% of the labels."
    )
    assert "with 1%, 5%, 10%, 20%, 30%, 50% and all of the labels." in described_protocol(
        read_protocol("label_shares"), 1437
    )


def test_description_limits_k_to_number_of_training_images():
    assert "k = 50" in described_protocol(read_protocol("macl", k=200), 50)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_fine_tuning_description_names_schedule(schedule):
    assert f"SGD 0.05, {schedule}, on crops" in str(FineTune(schedule=schedule))


INVALID: dict[type, dict[str, object]] = {
    ProbeRule: {
        "optimizer": "lars", "schedule": "step", "epochs": 0, "lr": 0.0, "momentum": 1.0,
        "weight_decay": -1.0, "batch_size": 0,
    },
    Linear: {"augmentation": "all", "labels": "2%", "views": 0, "epochs": 0, "schedule": "step"},
    Grid: {
        "lrs": (0.0,), "weight_decays": (-1.0,), "epochs": 0, "momentum": 1.0, "batch_size": 0,
        "held_out": 1.0, "schedule": "step",
    },
    FineTune: {
        "epochs": 0, "lr": 0.0, "momentum": 1.0, "weight_decay": -1.0, "batch_size": 1, "schedule": "step",
        "augmentation": "all",
    },
    Logistic: {"c": 0.0, "max_iter": 0, "labels": "2%"},
    KNN: {"k": 0, "distance": "dot", "vote": "loud", "temperature": 0.0},
    Geometry: {"lidar_images": 1, "lidar_views": 1},
}  # fmt: skip


@pytest.mark.parametrize("kind", INVALID)
def test_invalid_options_raise_value_error(kind):
    for name, value in INVALID[kind].items():
        with pytest.raises(ValueError, match=rf"^{name} must be .*, got"):
            kind(**{name: value})
    with pytest.raises(ValueError, match="lrs and weight_decays must each have at least one number"):
        Grid(lrs=())


@pytest.fixture
def one_epoch(monkeypatch):
    """Train for one epoch, whatever the protocol says."""

    def one_epoch(train):
        return lambda *args, rule, **options: train(
            *args, rule=dataclasses.replace(rule, epochs=1), **options
        )

    for module, name in (
        (probe, "linear_probe"),
        (probe, "grid_probe"),
        (finetune, "finetuned_correct"),
    ):
        monkeypatch.setattr(module, name, one_epoch(getattr(module, name)))


def rows_of(run, *args):
    output = run.parent / "rows.json"
    assert main(["evaluate", str(run), "--baselines=false", f"--output={output}", *args]) == 0
    return json.loads(output.read_text())


def test_shipped_protocols_have_published_settings():
    assert {"macl", "lightly", "solo", "dkobak", "dinov2"} <= set(shipped())
    protocols = {name: read_protocol(name).measurements for name in shipped()}
    assert protocols["macl"][:2] == (KNN(k=200), Linear(epochs=100, lr=0.02, momentum=0.9, weight_decay=0.0))
    assert protocols["lightly"] == (KNN(k=200, temperature=0.1),)
    assert protocols["solo"] == (KNN(k=20, temperature=0.07),)
    adam = {"weight_decay": 5e-6, "optimizer": "adam", "schedule": "cosine"}
    assert protocols["dkobak"] == (
        KNN(k=10, vote="majority"),
        KNN(k=10, vote="majority", distance="euclidean"),
        Linear(epochs=500, lr=0.01, batch_size=1000, **adam),
        Linear(epochs=100, lr=0.1, batch_size=512, augmentation="crop", views=10, **adam),
    )
    assert [each.k for each in protocols["dinov2"] if isinstance(each, KNN)] == [10, 20, 100, 200]
    assert [len(each.members) for each in protocols["dinov2"] if isinstance(each, Grid)] == [13]
    rules = [
        (each.labels, each.epochs, each.lr, each.weight_decay)
        for each in protocols["finetune"]
        if isinstance(each, FineTune)
    ]
    assert rules == [("1%", 60, 0.05, 0.0), ("10%", 30, 0.05, 0.0), ("all", 30, 0.05, 0.0)]


def test_shipped_files_are_short_and_start_with_comment():
    for file in FOLDER.glob("*.yaml"):
        lines = file.read_text().splitlines()
        assert lines[0].startswith("# ")
        assert len(lines) <= 20


def test_rows_and_output_state_protocol_settings(run, one_epoch, capsys):
    rows = rows_of(run, "--protocol=solo", "--protocol=dkobak")  # dkobak also has linear probes
    keys = ("protocol", "layer", "k", "temperature", "distance", "vote", "augmentation", "epoch", "seed")
    settings = [tuple(row.get(key) for key in keys) for row in rows if row["metric"] == "knn_top1"]
    assert settings == [
        ("solo", "backbone", 20, 0.07, "cosine", "weighted", "none", 2, 0),
        ("dkobak", "backbone", 10, None, "cosine", "majority", "none", 2, 0),
        ("dkobak", "backbone", 10, None, "euclidean", "majority", "none", 2, 0),
    ]
    printed = capsys.readouterr().out
    assert "solo. kNN: cosine, k = 20, T = 0.07." in printed
    assert "dkobak. kNN: cosine, k = 10, majority vote." in printed


def test_table_has_a_column_for_each_way_of_training():
    def linear(value, features="trained", **fields):
        return Row(features, "backbone", "linear_top1", value, "test", conditions=fields)

    slow, fast = (
        {"lr": 1e-4, "options": "epochs 2, momentum 0.9"},
        {"lr": 1.0, "options": "epochs 50, momentum 0.9"},
    )
    rows = [linear(0.1, **slow), linear(0.2, **fast), linear(0.3, "untrained", **fast)]
    rows += [linear(0.4, **fast, labels="1%")]
    rows += [
        Row(name, "backbone", "grid_top1", 0.5, "test", conditions={"lr": lr})
        for name, lr in (("trained", 1), ("untrained", 2))
    ]
    heading, *lines = table(rows)
    assert heading == [
        "", "linear % lr=0.0001 epochs=2", "linear % lr=1 epochs=50", "linear % 1% labels", "grid %",
    ]  # fmt: skip
    assert lines == [
        ["trained backbone", "10.00", "20.00", "40.00", "50.00"],
        ["untrained backbone", "", "30.00", "", "50.00"],
    ]


def test_table_has_intervals_and_chance_of_accuracies():
    counted = {"k": 5, "test_images": 400, "train_images": 900, "chance": 0.25}
    rows = [Row("trained", "backbone", "knn_top1", 0.5, "test", conditions=counted)]
    rows.append(Row("trained", "backbone", "rankme", 12.5, "test"))
    interval = stats.binomtest(200, 400).proportion_ci(method="wilson")
    half = 50 * (interval.high - interval.low)
    assert table(rows) == [
        ["", "kNN %", "RankMe"],
        ["trained backbone", f"50.00 ± {half:.2f}", "12.500"],
        ["chance", "25.00", ""],
    ]
    assert Row.read(rows[0].as_dict()) == rows[0]


def test_user_protocol_file_is_evaluated(run, tmp_path, capsys, monkeypatch):
    searches, search = [], knn_table
    monkeypatch.setattr(
        measurement, "knn_table", lambda *args, **options: searches.append(args) or search(*args, **options)
    )
    file = tmp_path / "mine.yaml"
    file.write_text(
        "layers: [projector]\nmeasurements:\n- knn: {k: 3, vote: majority}\n- knn: {k: 7, temperature: 0.5}\n"
        "- grid: {lrs: [1e-2, 1], epochs: 2}\n- logistic:\n"
    )
    rows = rows_of(run, f"--protocol={file}")
    assert {(row["protocol"], row["layer"]) for row in rows} == {("mine", "projector")}
    assert [row["metric"] for row in rows] == ["knn_top1", "knn_top1", "grid_top1", "logistic_top1"]
    assert len(searches) == 1
    assert rows[2]["lr"] in (0.01, 1.0)
    assert rows[2]["weight_decay"] == 0
    printed = capsys.readouterr()
    assert f"grid of trained projector: the best rate, {rows[2]['lr']:g}, is at the grid's end" in printed.err
    heading = next(line for line in printed.out.splitlines() if "kNN %" in line)
    assert [cell.strip() for cell in heading.split("  ") if cell] == [
        "kNN % k=3 majority",
        "kNN % k=7 weighted T=0.5",
        "grid %",
        "logistic %",
    ]
    model, data = open_run(run).trained(), Digits()
    for row, k, temperature in ((rows[0], 3, None), (rows[1], 7, 0.5)):
        knn = KNNAccuracy(num_classes=10, k=k, temperature=temperature)
        for split, role in (("train", "bank"), ("test", "query")):
            images = data.split(split)
            knn.update(embed(model, images, data.views)["projector"], images.labels, role)
        assert row["value"] == pytest.approx(float(knn.compute()))


def test_protocol_all_measures_every_shipped_protocol(run, one_epoch, capsys):
    rows = rows_of(run, "--protocol=all")
    assert sorted({row["protocol"] for row in rows} | {"online"}) == shipped()
    assert "online of trained backbone is left out: the run has no --online_probe" in capsys.readouterr().err


def test_rows_state_augmentation_and_label_share(run, tmp_path, one_epoch):
    (tmp_path / "mine.yaml").write_text(
        "measurements: [linear: {augmentation: crop, views: 3}, "
        "linear: {augmentation: pretraining, views: 2}, linear: {}, linear: {labels: 1%}, "
        "logistic: {labels: 10%}, grid: {labels: 10%, lrs: [0.1]}]"
    )
    rows = rows_of(run, f"--protocol={tmp_path / 'mine.yaml'}", "--baselines=true")
    trained, pixels = ([row for row in rows if row["features"] == name] for name in ("trained", "pixels"))
    assert [(row["metric"], row["augmentation"], row.get("labels")) for row in trained] == [
        ("linear_top1", "crop, 3 views", None),
        ("linear_top1", "pretraining, 2 views", None),
        ("linear_top1", "none", None),
        ("linear_top1", "none", "1%"),
        ("logistic_top1", "none", "10%"),
        ("grid_top1", "none", "10%"),
    ]
    assert len(pixels) == 4  # pixels have no augmented views
    assert len({row["value"] for row in trained}) > 3


def test_augmented_features_match_features_of_views(run):
    opened, data = open_run(run), Digits()
    model, splits = opened.trained(), Splits.of(data)
    extractor = FeatureExtractor(model, splits, description=None, seed=5)
    features = extractor.augmented(("backbone",), 3, plainer=True)["backbone"]
    assert len(features) == 3
    plainer = dataclasses.replace(data.views, degrees=0.0, jitter=0.0, grayscale=0.0, blur=0.0)
    train = data.split("train")
    rows = torch.arange(100, 120)
    with torch.inference_mode():
        for epoch, views in ((1, features[:2]), (2, features[2:])):
            batches = plainer(train.images[rows], rows, seed=5, epoch=epoch).chunk(2)
            for view_features, image in zip(views, batches, strict=False):
                torch.testing.assert_close(
                    view_features[rows], model.eval()(image).backbone, atol=1e-4, rtol=1e-4
                )
    assert not torch.equal(features[0], features[1])


def test_options_change_the_default_protocol_only(run):
    default = rows_of(run, "--probe.epochs=1")
    assert [row["k"] for row in default if "k" in row] == [5] * 3  # the k of the run
    named = rows_of(run, "--protocol=macl", "--protocol=lightly", "--temperature=0.5", "--probe.epochs=1")
    settings = [(row["protocol"], row["k"], row["temperature"]) for row in named if "k" in row]
    assert settings == [("macl", 20, 0.5)] * 3 + [("lightly", 200, 0.1)]


def test_k_defaults_to_value_of_data_set(run, tmp_path):
    (tmp_path / "mine.yaml").write_text("measurements: [knn: {}]")
    rows = rows_of(run, f"--protocol={tmp_path / 'mine.yaml'}")
    assert {row["k"] for row in rows if "k" in row} == {20}
    assert CIFAR10.knn_k == STL10.knn_k == 200
    assert read_protocol("macl").measurements[0] == KNN(k=200)


def test_k_above_smallest_class_size_warns(run):
    with pytest.warns(UserWarning, match="k = 142, but the smallest class has 141 images"):
        rows_of(run, "--k=142", "--probe.epochs=1")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="kNN")
        rows_of(run, "--k=141", "--probe.epochs=1")


def test_macl_file_matches_linear_probe_defaults():
    (rule,) = [each for each in read_protocol("macl").measurements if isinstance(each, Linear)]
    assert dataclasses.asdict(rule) == dataclasses.asdict(Linear())


def test_own_protocol_with_name_of_another_one_is_refused(tmp_path):
    (tmp_path / "macl.yaml").write_text("measurements: [knn: {}]")
    with pytest.raises(InputError, match=r"macl\.yaml: rename the file, because"):
        read_protocol(str(tmp_path / "macl.yaml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- 3", "expected the keys layers and measurements"),
        ("measurements: [", "line 1: did not find expected node content"),
        ("measures: []", "expected the keys"),
        ("layers: [head]\nmeasurements: [knn: ]", "layers must be a list out of backbone, hidden, projector"),
        ("measurements: []", "measurements must be a list"),
        ("measurements: [knn]", "measurement 1: expected one of finetune, geometry, grid, knn"),
        ("measurements: [knn: {}, knnn: {}]", "measurement 2: expected one of"),
        ("measurements: [knn: {kk: 3}]", "kk"),
        ("measurements: [knn: {k: 0}]", "k must be at least 1"),
        ("measurements: [knn: {k: many}]", "expected int"),
        ("measurements: [knn: {vote: loud}]", "expected one of 'weighted', 'majority'"),
        ("measurements: [knn: 3]", "measurement 1"),
        ("measurements: [grid: {lrs: []}]", "lrs"),
        ("measurements: [geometry: {lidar_views: 1}]", "lidar_views must be at least 2, got 1"),
        ("measurements: [finetune: {lr: 0}]", "lr must be above 0"),
        ("measurements: [finetune: {labels: 2%}]", "labels"),
        ("layers: [hidden]\nmeasurements: [finetune: {}]", "finetune is of the backbone"),
    ],
)
def test_invalid_protocol_file_is_reported_in_one_line(run, tmp_path, capsys, text, words):
    (tmp_path / "mine.yaml").write_text(text)
    assert main(["evaluate", str(run), f"--protocol={tmp_path / 'mine.yaml'}"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert f"protocol {tmp_path / 'mine.yaml'}" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--protocol=lightli"], "protocol lightli: no such file or recipe, did you mean 'lightly'?"),
        (["--protocol=absent.yaml"], "absent.yaml: no such file or recipe; available: check, dinov2, dkobak"),
        (["--protocol=solo", "--k=3"], "change the protocol macl only"),
        (["--protocol=solo", "--probe.epochs=3"], "change the protocol macl only"),
        (["--temperature=0"], "temperature"),
    ],
)
def test_invalid_options_are_reported_in_one_line(run, capsys, args, words):
    assert main(["evaluate", str(run), *args]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_online_protocol_reproduces_last_logged_accuracy(tmp_path, capsys):
    args = ["fit", f"--runs_dir={tmp_path}", "--name=run", *TINY, "--online_probe=true", "--data.val=test"]
    assert main(args) == 0
    (row,) = rows_of(tmp_path / "run", "--protocol=online")
    assert (row["metric"], row["bank"], row["layer"]) == ("online_top1", "pretrain", "backbone")
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        logged = [row["val/online_top1"] for row in csv.DictReader(file) if row["val/online_top1"]]
    assert row["value"] == pytest.approx(float(logged[-1]))
    assert read_checkpoint(tmp_path / "run").classes == list(Digits().classes)
    assert "online %" in capsys.readouterr().out


def test_online_protocol_requires_online_probe(tiny_run, tmp_path, capsys):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    assert main(["evaluate", str(run), "--protocol=online"]) == 2
    assert "the run has no --online_probe on Digits" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "status"), [({}, 0), ({"classes": [*map(str, range(10))]}, 0), ({"classes": ["0", "1"]}, 2)]
)
def test_online_protocol_requires_classes_of_training(tiny_run, tmp_path, capsys, change, status):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    content["ssl_vision"] |= change
    content["callbacks"]["OnlineProbe"] = {"layer": {"weight": torch.eye(10, 32), "bias": torch.zeros(10)}}
    torch.save(content, run / "checkpoints" / "last.ckpt")
    assert main(["evaluate", str(run), "--protocol=online"]) == status
    assert ("the run has no --online_probe on Digits" in capsys.readouterr().err) == (status == 2)


def test_rank_correlation_is_measured_if_classes_have_superclasses(run, monkeypatch):
    superclasses = torch.arange(10) // 2
    monkeypatch.setattr(Digits, "superclasses", superclasses, raising=False)
    rows = {(row["metric"], row["layer"]): row for row in rows_of(run, "--protocol=macl")}
    data = Digits(seed=0, batch_size=64)
    test = data.split("test")
    pair = embed_views(open_run(run).trained(), test, data.views, seed=0)
    levels = torch.stack([superclasses[test.labels], test.labels, torch.arange(len(test))], dim=1)
    expected = rank_correlation(pair["backbone"].flatten(0, 1), levels.repeat(2, 1))
    for metric, value in expected._asdict().items():
        row = rows[metric, "backbone"]
        assert row["value"] == pytest.approx(float(value))
        assert row["augmentation"] == "pretraining"
