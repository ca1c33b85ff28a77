"""Tests that the documentation agrees with the code and with the benchmark records."""

import importlib
import inspect
import json
import re
import shutil
import subprocess
from pathlib import Path

import lightly.loss
import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from scripts import import_script
from settings import TINY

from ssl_vision import __version__
from ssl_vision import objectives as o
from ssl_vision.cli.known_options import option_names
from ssl_vision.data import ImageFolder, Views
from ssl_vision.encoders import ResNet
from ssl_vision.evaluation.protocol import read_protocol, shipped
from ssl_vision.export.formats import FORMATS
from ssl_vision.main import main
from ssl_vision.metrics import Alignment, Uniformity
from ssl_vision.pretrained.backbones import Description, Pretrained, load_encoder, read_backbone
from ssl_vision.pretrained.opened_run import open_run
from ssl_vision.runs.registry import Run

pytestmark = pytest.mark.docs

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "objectives.md").read_text()


def test_custom_objective_of_objectives_page_has_expected_gradient():
    block, queue = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names = {}
    exec(queue, names)
    assert names["loss"].isfinite()
    exec(block, names)
    z = torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
    other = torch.randn(8, 4, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(names["objective"](z, other), z)
    d = o.logit_margin(z, other, 0.1)
    (expected,) = torch.autograd.grad((d.sigmoid().sqrt().detach() * d).mean(), z)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(
    ("heading", "base"),
    [("objective", o.Contrastive), ("loss", o.TwoViews), ("rule", o.TemperatureRule)],
    ids=["objectives", "other losses", "temperature rules"],
)
def test_objectives_page_lists_every_class(heading, base):
    table = re.search(rf"^\| {heading} \|.*?(?=\n\n)", PAGE, flags=re.MULTILINE | re.DOTALL)[0]
    listed = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`?", line.split("|")[1])}
    abstract = {"AlignmentRule", "EpochRule", "HardestTriplet"}
    assert listed == subclasses(base) - abstract


def subclasses(base):
    """Names of the public classes of the package, at any depth."""
    classes = {cls for cls in base.__subclasses__() if cls.__module__.startswith("ssl_vision.")}
    public = {cls.__name__ for cls in classes if not cls.__name__.startswith("_")}
    return public | {name for cls in classes for name in subclasses(cls)}


def test_weights_figure_shows_expected_weights():
    picture = import_script(DOCS / "weights.py")
    d = picture.logit_margins()
    positive = (torch.log(torch.tensor(510.0, dtype=d.dtype)) - d) * 0.1
    outer = torch.sigmoid(torch.log(torch.tensor(510.0, dtype=d.dtype)) - positive)
    for weight, expected in [
        (o.Softmax(), d.sigmoid()),
        (o.Clipped(), (d > 0).to(d.dtype)),
        (o.Reweighted(), torch.ones_like(d)),
        *((same, torch.ones_like(d)) for same in picture.SAME_AS_MACL),
        (o.AtTemperature(1.0), outer),
        (o.ReweightedByAlignment(), 2 - positive),
    ]:
        torch.testing.assert_close(picture.weight_on(weight, d), expected)
    svg = (DOCS / "weights.svg").read_text()
    assert all(name in svg for name in picture.CURVES)


def test_macl_at_fixed_temperature_and_flatnce_train_like_dcl():
    def trained(objective):
        torch.manual_seed(0)
        net = torch.nn.Linear(6, 4).double()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(5):
            x = torch.randn(12, 6, dtype=torch.float64)
            optimizer.zero_grad()
            objective(net(x), net(x + 0.1 * torch.randn_like(x))).backward()
            optimizer.step()
        return net.weight.detach()

    dcl = trained(o.DCL())
    torch.testing.assert_close(trained(o.MACL(alpha=1.0)), dcl, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(trained(o.FlatNCE()), dcl, rtol=1e-10, atol=1e-12)


def test_protocol_of_evaluation_page_has_four_measurements(tmp_path):
    page = (DOCS / "evaluation.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "mine.yaml").write_text(block)
    protocol = read_protocol(str(tmp_path / "mine.yaml"))
    assert len(protocol.measurements) == 4


def test_evaluation_page_code_evaluates_module(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "evaluation.md").read_text(), flags=re.DOTALL)
    exec(block, {})
    table = capsys.readouterr().out
    assert "kNN %" in table
    assert 0 <= float(table.splitlines()[-1]) <= 1


def test_metric_of_contributing_guide_matches_numpy():
    page = (DOCS.parent / "CONTRIBUTING.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names = {}
    exec(block, names)
    features = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    metric = names["LargestShare"]()
    for rows in features.split(7):
        metric.update(rows)
    squares = np.linalg.svd(features.double().numpy(), compute_uv=False) ** 2
    assert metric.compute().item() == pytest.approx(squares.max() / squares.sum(), rel=1e-9)


def test_few_labels_table_matches_benchmark_record(monkeypatch):
    monkeypatch.syspath_prepend(DOCS.parent / "benchmarks")
    record = json.loads((DOCS.parent / "benchmarks" / "results" / "demo.json").read_text())
    assert importlib.import_module("pretrain").table(record["runs"]) in (DOCS / "evaluation.md").read_text()
    assert "dirty" not in record["commit"]


def test_worked_example_of_concepts_page_is_correct():
    page = (DOCS / "concepts.md").read_text()
    for temperature, stated in (
        (0.1, "d = log(e⁵ + 1) − 8 = −2.99, W = 0.048"),
        (1.0, "− 0.8 = 0.17, W = 0.54"),
    ):
        s = torch.tensor([0.5, 0.0], dtype=torch.float64)
        d = (s / temperature).exp().sum().log() - 0.8 / temperature
        values = [
            f"{float(value):.{digits}f}"
            for value, digits in ((d.abs(), 2), (d.sigmoid(), 3 - (temperature == 1)))
        ]
        assert stated in page
        assert all(value in stated for value in values)


def blocks(page, language="python"):
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def working_directory(tmp_path, tiny_run, monkeypatch):
    """Working directory with ``runs/my_run`` and six red and six blue images and a copy in ``my_images``."""
    shutil.copytree(tiny_run, tmp_path / "runs" / "my_run")
    for number in range(12):
        colour = "red" if number % 2 else "blue"
        file = tmp_path / "my_images" / colour / f"{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        intensity = 255 - 20 * (2, 4, 0, 5, 1, 3)[number // 2]
        Image.new("RGB", (12, 12), (intensity, 0, 0) if number % 2 else (0, 90, intensity)).save(file)
    shutil.copy(tmp_path / "my_images" / "red" / "03.png", tmp_path / "my_images" / "red" / "copy.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def images():
    """(40, 3, 12, 12) uint8 noise."""
    noise = torch.randint(256, (40, 3, 12, 12), generator=torch.Generator().manual_seed(0))
    return noise.to(torch.uint8)


def test_backbones_page_code_reproduces_features_of_run(working_directory, images):
    assert main(["export", "runs/my_run"]) == 0
    names = {"images": images}
    for block in blocks("backbones.md")[:2]:
        exec(block, names)
    run = open_run("runs/my_run")
    plain = Views(**run.config["data"]["init_args"]["views"]).plain(images)
    with torch.inference_mode():
        expected = run.trained().eval()(plain).backbone
    torch.testing.assert_close(names["features"], expected)
    backbone, description = read_backbone("runs/my_run/backbone.safetensors")
    with torch.inference_mode():
        torch.testing.assert_close(backbone(description.views.plain(images)), expected)
    assert all(parameter.requires_grad for parameter in names["backbone"].parameters())


def test_backbones_page_shows_export_snippets_of_other_libraries():
    description = Description(encoder={}, size=32, decoded_size=32, mean=(0.5,) * 3, std=(0.2,) * 3)
    pretrained = Pretrained(ResNet(), description)
    files = {"torchvision": "backbone-torchvision.safetensors", "timm": "backbone-timm.safetensors"}
    for form, file in (files | {"onnx": "backbone.onnx"}).items():
        assert FORMATS[form].snippet(file, pretrained) + "\n" in blocks("backbones.md")


def test_backbones_page_call_extracts_feature_maps(tiny_run):
    page = (DOCS / "backbones.md").read_text(encoding="utf-8")
    (call,) = re.findall(r"`(torchvision\.models\.feature_extraction\.[^`]+)`", page)
    module, _, expression = call.partition("(")[0].rpartition(".")
    extract = getattr(importlib.import_module(module), expression)
    assert call.endswith('(backbone, ["layer2", "layer3", "layer4"])')
    backbone, batch = load_encoder(tiny_run), torch.randn(2, 3, 16, 16)
    maps = extract(backbone, ["layer2", "layer3", "layer4"])(batch)
    torch.testing.assert_close(maps["layer4"].mean(dim=(2, 3)), backbone(batch))
    assert [each.shape[-1] for each in maps.values()] == [8, 4, 2]


def test_backbones_page_classifier_separates_colours(working_directory):
    assert main(["embed", "my_images", "--weights=runs/my_run", "--output=features.npz"]) == 0
    names = {}
    exec(next(block for block in blocks("backbones.md") if "LogisticRegression" in block), names)
    assert names["labels"] == ["blue"] * 6 + ["red"] * 7
    assert names["scores"].tolist() == [1.0] * 5


def test_callbacks_page_module_logs_metrics(capsys):
    names = {}
    exec(next(iter(blocks("callbacks.md"))), names)
    logged = names["trainer"].callback_metrics
    assert {"val/knn_top1", "val/rankme", "gradient/norm", "shadow/MACL/cosine"} <= logged.keys()
    assert "shadow/DCL/value" in capsys.readouterr().out


def test_methods_page_code_trains_and_loads_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, own_loader = blocks("methods.md")
    names = {}
    exec(code.replace("max_epochs=2,", "max_epochs=1, limit_train_batches=1, logger=False,"), names)
    assert names["trainer"].callback_metrics["val/knn_top1"] > 0.2
    assert names["features"].shape == (360, 64)
    trained, loaded = (
        names["trainer"].lightning_module.backbone.state_dict(),
        names["model"].backbone.state_dict(),
    )
    assert all(torch.equal(trained[name], loaded[name]) for name in loaded)
    exec(own_loader, names)
    assert names["trainer"].global_step == 2


def test_migration_page_names_existing_losses_and_options():
    names = {}
    (code,) = blocks("migrating.md")
    exec(code, names)
    assert names["loss"].isfinite()
    page = (DOCS / "migrating.md").read_text()
    table = page.partition("## Losses")[2].partition("- **`gather_distributed`")[0]
    rows = [
        re.findall(r"`(\w+)\((.*?)\)`", line)
        for line in table.splitlines()
        if line.startswith("| `") and "(" in line
    ]
    assert len(rows) == 7
    for (theirs, their_options), (ours, our_options), *_ in rows:
        for module, name, options in ((lightly.loss, theirs, their_options), (o, ours, our_options)):
            accepted = inspect.signature(getattr(module, name)).parameters
            assert {
                option.partition("=")[0].strip() for option in re.split(r", (?=\w+=)", options) if option
            } <= set(accepted)
    options = set(re.findall(r"--((?:model|data|metrics)\.[\w.]+\w)", page))
    assert options <= set(option_names()) | {"model.momentum", "data.views"}


def test_backbones_page_loop_trains_with_dcl_loss(working_directory, images):
    names = {"images": images}
    exec(next(block for block in blocks("backbones.md") if "loss.backward()" in block), names)
    z = torch.cat([names["z1"], names["z2"]]).detach().double()
    z /= z.norm(dim=1, keepdim=True)
    terms = []
    for i in range(80):
        similar = z @ z[i] / 0.1
        others = [j for j in range(80) if j not in (i, (i + 40) % 80)]
        terms.append(similar[others].exp().sum().log() - similar[(i + 40) % 80])
    assert names["loss"].item() == pytest.approx(float(sum(terms) / 80), rel=1e-4)
    before = load_encoder("runs/my_run").state_dict()
    after = names["backbone"].state_dict()
    assert not any(torch.equal(before[name], after[name]) for name in before if name.endswith("conv1.weight"))


def test_own_images_page_code_finds_duplicates(working_directory, capsys):
    assert main(["embed", "my_images", "--weights=runs/my_run", "--output=features.npz"]) == 0
    capsys.readouterr()
    (block,) = blocks("own_images.md")
    exec(block, {})
    first, second, *others = capsys.readouterr().out.splitlines()
    pair = ["red/03.png", "red/copy.png"]
    assert {tuple(line.split()) for line in (first, second)} == {("1.0000", *pair), ("1.0000", *pair[::-1])}
    assert len(others) == 8


def test_own_images_page_sweep_has_cells_that_fit_accepts(working_directory, capsys):
    (block,) = blocks("own_images.md", "yaml")
    Path("own_temperature.yaml").write_text(block)
    Path("configs").symlink_to(DOCS.parent / "configs")
    assert main(["sweep", "own_temperature.yaml", "--dry_run"]) == 0
    *_, command, first, second, third, fourth = capsys.readouterr().out.splitlines()
    (common,) = re.findall(r"-m ssl_vision (fit .*), and for each trial:", command)
    assert len({first, second, third, fourth}) == 4
    small = [*TINY, "--runs_dir=cells", "--name=cell", "--data.batch_size=8", "--data.val_share=0.5"]
    assert main([*common.split(), *first.split(), *small]) == 0
    assert Run("cells/cell").last("val/rankme") > 1


def test_recipes_page_code_makes_tiny_imagenet_and_imagenet100_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (sort,) = blocks("recipes.md")
    lines = (DOCS / "recipes.md").read_text().splitlines()
    (link,) = [line.strip() for line in lines if line.strip().startswith("for split in")]
    tiny, classes = Path("data/tiny-imagenet-200"), ("n01443537", "n01629819")
    for folder in (*(f"train/{name}/images" for name in classes), "val/images", "test/images"):
        (tiny / folder).mkdir(parents=True)
    for number, folder in enumerate(
        (*(f"train/{name}/images" for name in classes), "val/images", "val/images")
    ):
        Image.new("RGB", (64, 64)).save(tiny / folder / f"{number}.JPEG")
    (tiny / "val/val_annotations.txt").write_text(
        "".join(f"{number + 2}.JPEG\t{name}\t0\t0\t62\t62\n" for number, name in enumerate(classes))
    )
    exec(sort, {})
    data = ImageFolder(root=tiny, image_size=64)
    data.check("train", "val")
    assert (data.eval_split, data.classes) == ("val", classes)
    assert data.split("val").labels.tolist() == [0, 1]

    Path("configs").symlink_to(DOCS.parent / "configs")
    for split in ("train", "val"):
        for name in ("n02869837", "n00000000"):
            (Path("data/imagenet") / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(Path("data/imagenet") / split / name / "0.JPEG")
    subprocess.run(["bash", "-c", link], check=True)
    assert len(list(Path("data/imagenet100/train").iterdir())) == 100
    assert ImageFolder(root="data/imagenet100").classes == ("n02869837",)


def test_report_page_values_for_equal_cosines_are_correct():
    n = 12
    same, apart = torch.ones(n, 4), torch.eye(n)
    infonce = o.InfoNCE(temperature=0.1)
    assert float(infonce(same, same)) == pytest.approx(np.log(2 * n - 1), rel=1e-6)
    assert float(infonce.statistics()["weight_mean"]) == pytest.approx((2 * n - 2) / (2 * n - 1), rel=1e-6)
    for features, expected in ((same, 0), (apart, -4)):
        uniformity = Uniformity()
        uniformity.update(features)
        assert float(uniformity.compute()) == pytest.approx(expected, abs=1e-6)
    z1, z2 = torch.randn(2, n, 4, generator=torch.Generator().manual_seed(0))
    alignment = Alignment()
    alignment.update(z1, z2)
    cosine = torch.cosine_similarity(z1, z2).mean()
    assert float(alignment.compute()) == pytest.approx(2 - 2 * float(cosine), rel=1e-5)


def test_report_page_lists_sections_of_report():
    page = (DOCS / "report.md").read_text(encoding="utf-8")
    table = page.split("| section |")[1].split("\n\n")[0]
    code = (DOCS.parent / "ssl_vision/experiments/report/report.py").read_text()
    sections = code.split("def run_page")[1]
    listed = re.findall(r"^\| (\w[^|]*?) \|", table, flags=re.MULTILINE)
    assert listed == re.findall(r'\bsection\("\w+", "([^"]+)"', sections)


def test_troubleshooting_messages_exist_in_code():
    page = (DOCS / "troubleshooting.md").read_text()
    tables = page.split("## Installation")[0]
    code = " ".join(file.read_text() for file in (DOCS.parent / "ssl_vision").rglob("*.py"))
    code = re.sub(r'["\']\s+f?["\']', "", code)  # join messages that span two lines
    code = re.sub(r"\{[^{}]*(\{[^{}]*\}[^{}]*)*\}", "…", code)
    others = {
        "unknown option --… of …, did you mean …?",  # assembled from parts
        "unknown option --…, did you mean --…?",
        "unknown option … of …",
        "model: is now --model.encoder.…",
        "limit_train_batches",
        "CUDA out of memory",
        "DataLoader worker (pid …",  # torch's
        "Killed",  # the shell's
    }
    unknown = [
        message
        for cell in re.findall(r"^\| (`[^|]+)\|", tables, flags=re.MULTILINE)
        for message in re.findall(r"`([^`]+)`", cell)
        if message not in others
        and not all(part.strip() in code for part in message.split("…") if part.strip(" (),?'.:"))
    ]
    assert unknown == []


def test_evaluation_page_lists_every_protocol():
    table = (DOCS / "evaluation.md").read_text().split("## Protocols")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)) == set(shipped())


@pytest.mark.parametrize(
    ("name", "written", "page", "rows"),
    [
        ("family", "family", "objectives.md", "objectives"),
        ("family", "family_continued", "objectives.md", "objectives"),
        ("diagnostics", "diagnostics", "objectives.md", "rows"),
        ("knn", "knn", "evaluation.md", None),
        ("protocols", "protocols", "evaluation.md", "rows"),
        ("compare", "compare", "compare.md", None),
        ("reclaim", "reclaim", "objectives.md", "rows"),
        ("methods", "methods_cpu", "speed.md", None),
        ("startup", "startup", "speed.md", "rows"),
        ("folders", "folders", "speed.md", None),
        ("roofline", "roofline", "speed.md", None),
    ],
)
def test_benchmark_table_on_page_matches_record(name, written, page, rows, monkeypatch):
    monkeypatch.syspath_prepend(DOCS.parent / "benchmarks")
    script = importlib.import_module(name)
    record = json.loads((DOCS.parent / "benchmarks" / "results" / f"{written}.json").read_text())
    assert script.table(record[rows] if rows else record) in (DOCS / page).read_text(encoding="utf-8")
    assert "dirty" not in record["commit"]


def test_citation_file_has_required_keys():
    """Version 1.2.0 of the Citation File Format requires these keys of the work and of each reference."""
    citation = yaml.safe_load((DOCS.parent / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", __version__)
    for reference in citation["references"]:
        assert {"type", "title", "authors"} <= set(reference)
        for author in reference["authors"]:
            assert set(author) in ({"name"}, {"family-names", "given-names"})
