"""Tests of ``ssl-vision evaluate``: the table from a checkpoint alone, and invalid input."""

import json
import math
import pickle
import shutil

import pytest
import torch
from scipy import stats
from settings import resnet
from torch import nn

import ssl_vision.evaluation.feature_extractor
from ssl_vision.data import Digits, Images, Views
from ssl_vision.encoders import ModuleEncoder
from ssl_vision.evaluation import command
from ssl_vision.evaluation.feature_extractor import FeatureExtractor
from ssl_vision.evaluation.features import embed, embed_views
from ssl_vision.evaluation.measurement import Geometry, Source
from ssl_vision.evaluation.probe import linear_probe
from ssl_vision.evaluation.splits import Splits
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.metrics import KNNAccuracy, lidar
from ssl_vision.pretrained.opened_run import open_run


@pytest.fixture(scope="module")
def evaluated(tiny_run, tmp_path_factory):
    """A copy of the tiny run, evaluated."""
    run = shutil.copytree(tiny_run, tmp_path_factory.mktemp("evaluated") / "tiny")
    assert main(["evaluate", str(run)]) == 0
    return run


def find_row(rows, features, layer, metric):
    (row,) = [r for r in rows if (r["features"], r["layer"], r["metric"]) == (features, layer, metric)]
    return row


def test_rows_state_evaluation_settings(evaluated):
    rows = json.loads((evaluated / "evaluation.json").read_text())
    knn = find_row(rows, "trained", "backbone", "knn_top1")
    value = knn.pop("value")
    assert 0 < value < 1
    assert len(knn.pop("weights")) == 12
    expected = stats.binomtest(round(360 * value), 360).proportion_ci(method="wilson")
    assert [knn.pop("low"), knn.pop("high")] == pytest.approx([expected.low, expected.high], rel=1e-6)
    most_frequent = int(Digits().split("test").labels.bincount().max())
    assert knn == {
        "features": "trained", "layer": "backbone", "metric": "knn_top1", "split": "test", "bank": "train",
        "k": 5, "temperature": 0.1, "epoch": 2, "seed": 0, "protocol": "macl", "distance": "cosine",
        "vote": "weighted", "augmentation": "none", "data": "Digits",
        "test_images": 360, "train_images": 1437, "chance": most_frequent / 360,
    }  # fmt: skip
    assert {(r["features"], r["layer"]) for r in rows if r["metric"] == "linear_top1"} == {
        ("trained", "backbone"), ("trained", "hidden"), ("trained", "projector"),
        ("untrained", "backbone"), ("pixels", "raw"),
    }  # fmt: skip
    assert find_row(rows, "untrained", "backbone", "knn_top1")["epoch"] == 0


def test_accuracies_match_rebuilt_network(evaluated):
    rows = json.loads((evaluated / "evaluation.json").read_text())
    run, data = open_run(evaluated), Digits()
    train, test = data.split("train"), data.split("test")
    for name, model in (("trained", run.trained()), ("untrained", run.untrained())):
        bank, queries = (embed(model, split, data.views)["backbone"] for split in (train, test))
        knn = KNNAccuracy(num_classes=10, k=5)
        knn.update(bank, train.labels, "bank")
        knn.update(queries, test.labels, "query")
        assert find_row(rows, name, "backbone", "knn_top1")["value"] == pytest.approx(float(knn.compute()))
        probe = linear_probe(bank, train.labels, queries, test.labels, num_classes=10)
        assert find_row(rows, name, "backbone", "linear_top1")["value"] == pytest.approx(probe.test_top1)


def test_untrained_model_has_initial_weights_of_training(tiny_run):
    model = open_run(tiny_run).untrained()
    expected = SimCLR(encoder=resnet(width=4), hidden_dim=16, output_dim=8, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_embedding_and_probing_do_not_change_network(tiny_run):
    """Weights and BatchNorm statistics must stay identical, and the mode must be restored."""
    model, data = open_run(tiny_run).trained().train(), Digits()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    train, test = (embed(model, data.split(name), data.views)["backbone"] for name in ("train", "test"))
    linear_probe(train, data.split("train").labels, test, data.split("test").labels, num_classes=10)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_table_shows_protocol_and_a_line_for_each_layer(evaluated, tmp_path, capsys):
    assert main(["evaluate", str(evaluated), f"--output={tmp_path / 'out.json'}", "--k=9"]) == 0
    printed = capsys.readouterr().out
    assert "test split (360 images) against 1437 labelled train images, epoch 2, seed 0" in printed
    assert "k = 9, T = 0.1" in printed
    for name in (
        "trained backbone",
        "trained hidden",
        "trained projector",
        "untrained backbone",
        "raw pixels",
    ):
        assert name in printed
    assert (
        find_row(json.loads((tmp_path / "out.json").read_text()), "trained", "backbone", "knn_top1")["k"] == 9
    )


def test_options_omit_baselines_and_set_probe_epochs(evaluated, tmp_path, capsys):
    args = ["--baselines=false", "--probe.epochs=3", "--data.views.size=8", f"--output={tmp_path / 'o.json'}"]
    assert main(["evaluate", str(evaluated / "checkpoints" / "last.ckpt"), *args]) == 0
    printed = capsys.readouterr().out
    assert "untrained" not in printed
    assert "3 epochs of SGD" in printed


def test_report_is_written_only_for_images_and_epoch_of_run(evaluated, tmp_path):
    run = shutil.copytree(evaluated, tmp_path / "run")
    (tmp_path / "mine.yaml").write_text("measurements: [knn: {k: 5}]")
    options = ["--baselines=false", f"--protocol={tmp_path / 'mine.yaml'}"]
    last = run / "checkpoints" / "last.ckpt"
    same, earlier = (shutil.copyfile(last, last.with_name(f"{name}.ckpt")) for name in ("same", "earlier"))
    content = torch.load(last, weights_only=True)
    content["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"] -= 1
    torch.save(content, earlier)
    for args in ([run, "--data.eval_batch_size=99"], [same]):
        assert command.evaluated([*map(str, args), *options])[1] is not None
    for args in ([earlier], [run, "--data.views.size=12", "--data.views.blur=0"]):
        assert command.evaluated([*map(str, args), *options])[1] is None


def write_malicious(path):
    class Evil:
        def __reduce__(self):
            return (open, (str(path.parent / "pwned"), "w"))

    torch.save({"state_dict": {}, "ssl_vision": Evil()}, path)


def write_pickle(path):
    path.write_bytes(pickle.dumps(print))


def write_foreign(path):
    torch.save({"state_dict": {}, "epoch": 3}, path)


def write_truncated(path):
    torch.save({"state_dict": {"weight": torch.zeros(1000)}}, path)
    path.write_bytes(path.read_bytes()[:1000])


def write_nothing(path):
    path.touch()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (write_malicious, "refused"),
        (write_pickle, "refused"),
        (write_foreign, "was not written by ssl-vision fit"),
        (write_truncated, "not a readable checkpoint"),
        (write_nothing, "not a readable checkpoint"),
    ],
)
def test_invalid_checkpoint_file_is_reported_in_one_line(tmp_path, capsys, write, words):
    write(tmp_path / "model.ckpt")
    assert main(["evaluate", str(tmp_path / "model.ckpt")]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith(f"ssl-vision evaluate: {tmp_path / 'model.ckpt'}")
    assert error.count("\n") == 1
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "give the checkpoint"),
        (["absent.ckpt"], "absent.ckpt: no such checkpoint"),
        (["RUN", "--kk=3"], "unknown option --kk, did you mean 'k'?"),
        (["RUN", "--data.batchsize=3"], "did you mean 'batch_size'?"),
        (["RUN", "--k=many"], "k: expected int, got many"),
        (["RUN", "--probe.lr=-1"], "lr must be above 0, got -1.0"),
        (["RUN", "--k=0"], "--k must be at least 1, got 0"),
    ],
)
def test_invalid_options_are_reported_in_one_line_with_exit_code_2(evaluated, capsys, args, words):
    assert main(["evaluate", *(str(evaluated) if arg == "RUN" else arg for arg in args)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_checkpoint_of_other_architecture_is_reported_in_one_line(tiny_run, tmp_path, capsys):
    content = torch.load(tiny_run / "checkpoints" / "last.ckpt", weights_only=True)
    content["ssl_vision"]["config"] = content["ssl_vision"]["config"].replace("width: 4", "width: 8")
    torch.save(content, tmp_path / "other.ckpt")
    assert main(["evaluate", str(tmp_path / "other.ckpt")]) == 2
    error = capsys.readouterr().err
    assert "size mismatch" in error
    assert error.count("\n") == 1


def test_extended_geometry_is_in_the_rows(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        ssl_vision.evaluation.feature_extractor, "_IMAGES_OF_MANY_VIEWS", 32
    )  # 90 images in 3 blocks
    protocol, rows = tmp_path / "mine.yaml", tmp_path / "rows.json"
    protocol.write_text("measurements:\n  - geometry: {extended: true, lidar_images: 90, lidar_views: 5}\n")
    options = [f"--protocol={protocol}", "--baselines=false", "--cache=false", f"--output={rows}"]
    assert main(["evaluate", str(tiny_run), *options]) == 0
    rows_by_metric = {row["metric"]: row for row in json.loads(rows.read_text())}
    values = {metric: row["value"] for metric, row in rows_by_metric.items()}
    assert {"alignment", "rankme", "effective_rank", "feature_std", "lidar"} <= set(values)
    model, data = open_run(tiny_run).trained(), Digits()
    test, indices = data.split("test"), torch.arange(0, 360, 4)
    pairs = [
        embed_views(model, test.select(indices), data.views, seed=0, epoch=epoch)["backbone"]
        for epoch in range(3)
    ]
    expected = lidar(torch.cat(pairs)[:5].transpose(0, 1))
    assert values["lidar"] == pytest.approx(float(expected), rel=1e-4)
    assert rows_by_metric["lidar"]["augmentation"] == "pretraining, 5 views of 90 images"


def test_geometry_of_collapsed_encoder_has_only_finite_values():
    encoder = ModuleEncoder(
        nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.Threshold(1e9, 0.0)), image_size=8
    )
    digits = Digits().split("test").select(torch.arange(20))
    splits = Splits({"test": digits}, Views(size=8), data="Digits", superclasses=torch.arange(10) // 2)
    extractor = FeatureExtractor(encoder, splits, description="")
    geometry = Geometry(extended=True, lidar_images=4, lidar_views=2)
    values = {each.metric: each.value for each in geometry.measure(Source(extractor), splits, 0)}
    assert all(map(math.isfinite, values.values()))
    assert [values[name] for name in ("alignment", "uniformity", "feature_std")] == pytest.approx(
        [0, 0, 0], abs=1e-6
    )
    assert not {"lidar", "spearman", "kendall"} & set(values)


def test_pixels_are_not_converted_all_at_once(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr(Images, "images", property(lambda self: pytest.fail("all images at once")))
    for number, text in enumerate(("geometry: {}", "knn: {k: 5}", "logistic: {labels: 10%}")):
        (tmp_path / f"{number}.yaml").write_text(f"measurements: [{text}]")
    names = [f"--protocol={tmp_path / f'{number}.yaml'}" for number in range(3)]
    options = ["--cache=false", f"--output={tmp_path / 'rows.json'}"]
    assert main(["evaluate", str(tiny_run), *names, *options]) == 0
    rows, data = json.loads((tmp_path / "rows.json").read_text()), Digits()
    knn = KNNAccuracy(num_classes=10, k=5)
    for split, role in (("train", "bank"), ("test", "query")):
        knn.update(data.split(split).store.flatten(1) / 255, data.split(split).labels, role)
    assert find_row(rows, "pixels", "raw", "knn_top1")["value"] == pytest.approx(float(knn.compute()))


def test_failing_measurement_is_left_out(tiny_run, tmp_path, capsys):
    protocol, output = tmp_path / "mine.yaml", tmp_path / "rows.json"
    protocol.write_text(
        "measurements: [knn: {k: 3}, linear: {lr: 1e38, epochs: 2}, finetune: {lr: 1e30, epochs: 1}, "
        "logistic: {}]"
    )
    options = ["--baselines=false", f"--output={output}", "--cache=false"]
    assert main(["evaluate", str(tiny_run), f"--protocol={protocol}", *options]) == 0
    printed = capsys.readouterr()
    lines = [line for line in printed.err.replace("\r", "\n").splitlines() if "left out" in line]
    assert lines == [
        "mine: linear of trained backbone is left out: lr: training diverged at 1e+38; lower it, or scale "
        "the features down",
        "mine: finetune of trained backbone is left out: lr: fine-tuning diverged at 1e+30; lower it",
    ]
    rows = json.loads(output.read_text())
    assert [row["metric"] for row in rows] == ["knn_top1", "logistic_top1"]
    heading = next(line for line in printed.out.splitlines() if "kNN %" in line)
    assert "logistic %" in heading
    assert "linear %" not in heading


def test_evaluate_fails_only_if_nothing_was_measured(tiny_run, tmp_path, capsys):
    protocol, output = tmp_path / "mine.yaml", tmp_path / "rows.json"
    protocol.write_text("measurements: [linear: {lr: 1e38, epochs: 2}]")
    options = [f"--output={output}", "--cache=false"]
    assert main(["evaluate", str(tiny_run), f"--protocol={protocol}", *options]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert [line.split(" is left out")[0] for line in lines] == [
        f"mine: linear of {name}" for name in ("trained backbone", "untrained backbone", "pixels raw")
    ]
    assert not output.exists()
    assert main(["evaluate", str(tiny_run), f"--protocol={protocol}", "--protocol=solo", *options]) == 0
    assert "nothing could be measured" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_device_is_reported(tiny_run, capsys):
    assert main(["evaluate", str(tiny_run), "--device=cuda"]) == 2
    assert "there is no CUDA device" in capsys.readouterr().err
