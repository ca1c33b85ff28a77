"""Tests of the example files of docs/extending.md."""

import copy
import csv
import importlib
import json
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity
from ranks import assert_ranks_succeed
from settings import TINY
from torch.nn import functional as F

import ssl_vision
from ssl_vision import load_encoder
from ssl_vision.data import Batch, Digits
from ssl_vision.encoders import ResNet
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.methods.cuda_graph import GraphedTraining
from ssl_vision.metrics import KNNAccuracy
from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.registry import Run

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"```(?:python|yaml)\n# ([\w.]+)\n(.*?)```", PAGE, flags=re.DOTALL))


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    """Working directory with the files of the page."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


def fit(name, *options):
    assert main(["fit", "--runs_dir=runs", f"--name={name}", *TINY, *options]) == 0
    return Run(Path("runs", name))


def column(run, name):
    with run.folder.metrics_file.open(newline="") as file:
        return [row[name] for row in csv.DictReader(file) if row.get(name)]


def test_page_has_file_for_each_extension_point():
    assert list(FILES) == [
        "my_objective.py", "my_encoder.py", "byol.py", "my_callback.py", "my_data.py", "my_measurement.py",
        "my_retrieval.py", "my_protocol.yaml", "my_robustness.py", "my_robustness.yaml",
    ]  # fmt: skip
    assert len(FILES["byol.py"].splitlines()) <= 80


def test_custom_objective_is_spectral_contrastive_loss(capsys):
    objective = importlib.import_module("my_objective").SpectralContrastive()
    z1, z2 = F.normalize(torch.randn(2, 6, 4, dtype=torch.float64), dim=2)
    cosines = [[float(a @ b) for b in z2] for a in z1]
    pull = sum(cosines[i][i] for i in range(6)) / 6
    push = sum(cosines[i][j] ** 2 for i in range(6) for j in range(6) if i != j) / 30
    assert float(objective(3 * z1, z2)) == pytest.approx(push - 2 * pull)
    run = fit("spectral", "--model.objective=my_objective.SpectralContrastive")
    assert len(column(run, "train/repulsion")) == 8
    assert main(["maps", "--objectives=my_objective.SpectralContrastive", "--output=maps.svg"]) == 2
    assert "no map of SpectralContrastive" in capsys.readouterr().err


def test_custom_objective_has_whole_batch_gradient_on_two_processes(tmp_path):
    objective = importlib.import_module("my_objective").SpectralContrastive()
    x = torch.randn(2, 12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = torch.eye(5, dtype=torch.float64).requires_grad_()
    expected_loss = objective(*(x @ weight))
    (expected,) = torch.autograd.grad(expected_loss, weight)

    def process(rank, world):
        loss = objective(*(x[:, [slice(5), slice(5, 12)][rank]] @ weight))
        (gradient,) = torch.autograd.grad(loss, weight)
        torch.distributed.all_reduce(gradient)
        torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient / world, expected, rtol=1e-7, atol=1e-12)

    assert_ranks_succeed(process, 2, tmp_path)


def test_custom_encoder_trains_and_exports_with_feature_maps(working_directory):
    fit(
        "stages", "--model.encoder=my_encoder.Stages", "--model.encoder.width=4", "--model.objective=RECLAIM",
        "--model.objective.pair=depths", "--model.objective.k=5",
    )  # fmt: skip
    allow = "my_encoder.Stages"
    assert main(["export", "runs/stages", f"--allow_class={allow}"]) == 0
    card = (working_directory / "runs" / "stages" / "backbone.safetensors.md").read_text()
    assert 'load_encoder("backbone.safetensors", allow_class=["my_encoder.Stages"])' in card
    backbone = load_encoder(
        working_directory / "runs" / "stages" / "backbone.safetensors", allow_class=[allow]
    )
    features, maps = backbone.forward_intermediates(torch.rand(2, 3, 32, 32))
    assert features.shape == (2, backbone.num_features) == (2, 32)
    assert [each.shape[2] for each in maps] == [16, 8, 4, 2]


def small_byol(**options):
    byol = importlib.import_module("byol")
    small = {"encoder": lambda: ResNet(width=4), "hidden_dim": 16, "output_dim": 8, "seed": 0}
    return byol.BYOL(**(small | options))


def test_byol_matches_plain_training_loop():
    views = torch.randn(2, 16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    byol, reference = small_byol(momentum=0.9), small_byol()
    optimizers = [torch.optim.SGD(method.parameters(), lr=0.1) for method in (byol, reference)]
    criterion = NegativeCosineSimilarity()
    for batch in views:
        loss = byol.loss(Batch(batch[:8], torch.zeros(8), torch.arange(8), batch))
        loss.backward()
        embeddings = reference.head(reference.backbone(batch))
        p1, p2 = (reference.predictor(half) for half in embeddings.chunk(2))
        t1, t2 = reference.target(batch).detach().chunk(2)
        expected = 4 + 2 * criterion(p1, t2) + 2 * criterion(p2, t1)
        expected.backward()
        torch.testing.assert_close(loss, expected)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        byol.after_update()
        for slow, fast in zip(
            reference.target.parameters(),
            [*reference.backbone.parameters(), *reference.head.parameters()],
            strict=True,
        ):
            slow.data = 0.9 * slow.data + 0.1 * fast.data
    for (name, one), other in zip(byol.state_dict().items(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, msg=name)
    assert not any(parameter.requires_grad for parameter in byol.target.parameters())


def test_custom_callback_logs_weight_norm_of_part():
    option = {"class_path": "my_callback.WeightNorm", "init_args": {"part": "head"}}
    options = dict(each.removeprefix("--").split("=") for each in TINY)
    python = ssl_vision.fit(options | {"trainer.callbacks": [option]}, runs_dir="runs", name="python")
    command = fit("norms", "--trainer.callbacks+=my_callback.WeightNorm", "--trainer.callbacks.part=head")
    state = read_checkpoint(command.folder.last).state
    names = [name for name, _ in SimCLR().head.named_parameters()]
    head = torch.cat([state[f"head.{name}"].flatten() for name in names])
    logged = column(command, "train/weight_norm")
    assert float(logged[-1]) == pytest.approx(float(head.norm()), rel=1e-5)
    assert column(python, "train/weight_norm") == logged


def test_byol_target_moves_once_per_optimizer_step(monkeypatch):
    moves = []
    byol = importlib.import_module("byol")
    monkeypatch.setattr(byol.BYOL, "after_update", lambda self: moves.append(self.trainer.global_step))
    fit("accumulated", "--model=byol.BYOL", "--trainer.accumulate_grad_batches=2")
    assert moves == [0, 1, 2, 3]  # number of optimizer steps before each move


def test_byol_run_resumes_and_is_evaluated(capsys):
    model = "--model=byol.BYOL"
    whole = fit("whole", model)
    interrupt = [
        "--trainer.callbacks+=interrupt_once.InterruptOnce",
        "--trainer.callbacks.marker=interrupted",
    ]
    options = [
        model,
        *interrupt,
        "--trainer.callbacks.batch=6",
    ]  # in the second of two epochs of four batches
    assert main(["fit", "--runs_dir=runs", "--name=part", *TINY, *options]) == 128 + signal.SIGTERM
    continued = fit("part", *options, "--ckpt_path=last")
    states = [read_checkpoint(run.folder.path).state for run in (whole, continued)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    fit("frozen", model, "--model.momentum=1.0", "--trainer.max_epochs=1")
    first = read_checkpoint("runs/frozen").state
    assert torch.equal(first["target.0.conv1.weight"], small_byol(hidden_dim=16).backbone.conv1.weight)
    assert not torch.equal(first["backbone.conv1.weight"], first["target.0.conv1.weight"])
    capsys.readouterr()
    args = ["--allow_class=byol.BYOL", "--probe.epochs=1", "--baselines=false"]
    assert main(["evaluate", "runs/whole", *args]) == 0
    assert main(["compare", "runs/whole", "runs/part", "--metric=knn_top1"]) in (0, 2)
    assert main(["runs", "runs"]) == 0
    assert "BYOL" in capsys.readouterr().out


@pytest.mark.parametrize("options", [{"chunk_size": 3}, {"bn": "per_view"}, {"chunk_size": 8}], ids=str)
def test_byol_loss_and_gradients_are_equal_under_every_executor(options):
    """With BatchNorm in evaluation mode, chunks and single views give the same loss and gradients."""
    views = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = Batch(views[:8], torch.zeros(8), torch.arange(8), views)
    losses, gradients = [], []
    for overrides in ({}, options):
        method = small_byol(**overrides).double().eval()
        losses.append(method.loss(batch))
        losses[-1].backward()
        gradients.append([p.grad for p in method.parameters() if p.requires_grad])
    torch.testing.assert_close(*losses)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


def test_byol_with_cuda_graph_matches_eager_run(monkeypatch):
    def record(self, batch):
        static_batch, loss = copy.deepcopy(batch), torch.zeros(())
        return static_batch, lambda: loss.copy_(self._step(static_batch)), loss

    monkeypatch.setattr(GraphedTraining, "_record", record)
    monkeypatch.setattr(GraphedTraining, "_on_side_stream", GraphedTraining._step)
    monkeypatch.setattr(GraphedTraining, "check", lambda method: None)
    for name, graph in (("eager", "false"), ("graph", "true")):
        fit(name, "--model=byol.BYOL", f"--model.cuda_graph={graph}", "--model.optimizer.name=sgd")
    eager, graph = (read_checkpoint(f"runs/{name}").state for name in ("eager", "graph"))
    for name, value in eager.items():
        torch.testing.assert_close(graph[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_custom_data_set_is_learned():
    args = ["--data=my_data.Stripes", "--runs_dir=runs", "--name=run", *TINY, "--data.batch_size=32"]
    assert main(["fit", *args]) == 0
    assert Run(Path("runs", "run")).last("val/knn_top1") == 1


def test_custom_protocol_reports_custom_measurement(tiny_run, capsys):
    args = ["--protocol=my_protocol.yaml", "--baselines=false", "--cache=false", "--output=rows.json"]
    assert main(["evaluate", str(tiny_run), *args]) == 0
    header = next(line for line in capsys.readouterr().out.splitlines() if "kNN %" in line)
    assert "purity %" in header
    assert "mAP %" in header
    assert "recall@1 %" in header


def test_custom_retrieval_matches_loops():
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(30) % 3
    precisions, first = [], []
    for row in range(30):
        cosines = torch.cosine_similarity(features, features[row], dim=1)
        ranked = [other for other in cosines.argsort(descending=True).tolist() if other != row]
        places = [place for place, other in enumerate(ranked, 1) if labels[other] == labels[row]]
        precisions.append(sum(number / place for number, place in enumerate(places, 1)) / len(places))
        first.append(places[0] == 1)
    source = SimpleNamespace(queries=features)
    splits = SimpleNamespace(images={"test": SimpleNamespace(labels=labels)})
    values = importlib.import_module("my_retrieval").Retrieval().measure(source, splits, 0)
    expected = {"map": sum(precisions) / 30, "recall@1": sum(first) / 30}
    assert {each.metric: each.value for each in values} == pytest.approx(expected)


def test_robustness_protocol_classifies_corrupted_images(tiny_run, capsys):
    text = "measurements: [knn: {}, my_robustness.Robustness: {corruptions: [contrast, blur]}]"
    Path("two.yaml").write_text(text)
    options = ["--protocol=my_robustness.yaml", "--protocol=two.yaml", "--cache=false", "--output=rows.json"]
    assert main(["evaluate", str(tiny_run), *options]) == 0
    assert "kNN, pixelate %" in capsys.readouterr().out
    corruptions = sys.modules["my_robustness"].CORRUPTIONS
    rows = json.loads(Path("rows.json").read_text())
    assert [(row["features"], row["metric"]) for row in rows if row["protocol"] == "my_robustness"] == [
        (network, f"{name}_knn_top1")
        for network in ("trained", "untrained")
        for name in ("clean", *corruptions, "corrupted")
    ]
    trained = [row for row in rows if row["protocol"] == "two" and row["features"] == "trained"]
    knn, clean, contrast, blur, mean = (row["value"] for row in trained)
    assert clean == knn
    assert mean == pytest.approx((contrast + blur) / 2)

    model, data = open_run(tiny_run).trained(), Digits()
    train, test = data.split("train"), data.split("test")
    pixels = F.interpolate(test.images.float(), size=(16, 16), mode="bilinear", antialias=True)
    queries = data.views.plain(corruptions["contrast"](pixels.round().to(torch.uint8)))
    metric = KNNAccuracy(num_classes=10, k=20)
    with torch.inference_mode():
        metric.update(model.eval()(data.views.plain(train.images)).backbone, train.labels, "bank")
        metric.update(model(queries).backbone, test.labels, "query")
    assert contrast == pytest.approx(float(metric.compute()), abs=1.1 / 360)
