"""Tests of the numbers on the page against independent computations."""

import base64
import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from settings import TINY
from sklearn.neighbors import NearestNeighbors

from ssl_vision.data import Digits, Images
from ssl_vision.data.loading.loader import Order
from ssl_vision.data.module import ImageData
from ssl_vision.experiments.report import feature_charts, gallery
from ssl_vision.experiments.report.accuracies import protocols
from ssl_vision.experiments.report.context import FeatureView
from ssl_vision.experiments.report.curves import line
from ssl_vision.experiments.report.page import COLOURS, Missing
from ssl_vision.experiments.report.sprite_sheet import COLUMNS, SpriteSheet
from ssl_vision.main import main
from ssl_vision.metrics import knn_table
from ssl_vision.metrics.rows import unit_rows
from ssl_vision.runs.registry import Run


def images(count, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, 3, 5, 7), generator=generator, dtype=torch.uint8)
    labels = torch.randint(classes, (count,), generator=generator)
    return Images(pixels, labels, tuple(f"class {i}" for i in range(classes)))


def feature_view(*, bank=True, count=40, k=7, classes="abcd"):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(count, 6, generator=generator)
    others = torch.randn(90, 6, generator=generator)
    return FeatureView(
        images(count, len(classes)), "test", {"backbone": features},
        images(90, len(classes), seed=2) if bank else None,
        others if bank else features, k=k, temperature=0.2, classes=tuple(classes),
    )  # fmt: skip


def test_accuracy_of_votes_matches_knn_table():
    view = feature_view()
    (score,) = knn_table(
        view.features["backbone"], view.images.labels, view.bank_features, view.bank.labels,
        num_classes=4, ks=(7,), temperatures=(0.2,),
    )  # fmt: skip
    assert (view.predicted == view.images.labels).double().mean().item() == score.top1


def test_neighbours_in_bank_match_brute_force_search():
    view = feature_view()
    search = NearestNeighbors(n_neighbors=7, metric="cosine", algorithm="brute").fit(view.bank_features)
    distance, index = search.kneighbors(view.features["backbone"])
    np.testing.assert_array_equal(view.neighbours.index, index)
    np.testing.assert_allclose(1 - view.neighbours.similarity, distance, atol=1e-5)


@pytest.mark.parametrize("copies", [0, 12])
def test_without_a_bank_an_image_is_not_its_own_neighbour(copies):
    view = feature_view(bank=False)
    features = view.features["backbone"]
    features[: copies + 1] = features[0]  # more duplicates than there are neighbours
    assert view.neighbours.index.shape == (40, 7)
    assert not (view.neighbours.index == torch.arange(40)[:, None]).any()
    unit = (features / features.norm(dim=1, keepdim=True)).double()
    cosine = (unit @ unit.T).fill_diagonal_(-2)
    expected = cosine.sort(dim=1, descending=True).values[:, :7]
    np.testing.assert_allclose(view.neighbours.similarity, expected, atol=1e-6)


def test_confused_classes_match_sorted_counts():
    counts = torch.randint(30, (5, 5), generator=torch.Generator().manual_seed(0))
    off = {(i, j): int(counts[i, j]) for i in range(5) for j in range(5) if i != j}
    worst = sorted(off, key=lambda pair: (-off[pair], pair))[:8]
    assert feature_charts.confused(counts) == worst


def test_confusion_matrix_needs_two_classes():
    context = SimpleNamespace(feature_view=lambda: feature_view(classes="a"))
    with pytest.raises(Missing, match="two classes"):
        feature_charts.confusion_matrix(context)


def test_only_confusions_that_occur_are_named():
    counts = torch.tensor([[5, 2, 0], [0, 4, 0], [0, 1, 3]])
    assert feature_charts.confused(counts) == [(0, 1), (2, 1)]


def test_closest_negatives_match_double_loop(monkeypatch):
    monkeypatch.setattr(gallery, "_TILE", 16)
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(50, 4, generator=generator)
    labels = torch.randint(3, (50,), generator=generator)
    labels[::9] = -1
    proposals = set()
    for i in range(50):
        others = [j for j in range(50) if labels[i] >= 0 and labels[j] >= 0 and labels[j] != labels[i]]
        if others:
            cosine = {j: torch.cosine_similarity(features[i], features[j], dim=0).item() for j in others}
            best = max(cosine, key=cosine.get)
            proposals.add((round(cosine[best], 5), min(i, best), max(i, best)))
    taken, expected = set(), []
    for _, i, j in sorted(proposals, reverse=True):
        if not {i, j} & taken and len(expected) < 12:
            taken |= {i, j}
            expected.append((i, j))
    pairs = gallery.closest(features, labels)
    assert [(i, j) for i, j, _ in pairs] == expected
    for i, j, cosine in pairs:
        assert cosine == pytest.approx(torch.cosine_similarity(features[i], features[j], dim=0).item())
    assert gallery.closest(features, torch.zeros(50, dtype=torch.int64)) == []


def test_mistakes_are_most_similar_wrong_predictions_in_order():
    view = feature_view()
    rows = gallery.mistakes(view)
    first = [view.neighbours.similarity[row, 0].item() for row in rows]
    wrong = (view.predicted != view.images.labels).nonzero().flatten().tolist()
    assert set(rows) <= set(wrong)
    assert first == sorted(first, reverse=True)
    omitted = [view.neighbours.similarity[row, 0].item() for row in wrong if row not in rows]
    assert max(omitted, default=-1) <= first[-1]


def test_vote_is_explained_if_it_differs_from_label_or_shown_neighbours():
    """Five near neighbours are of class 1, seven farther ones of class 0, which win the vote at k = 12."""
    angles = torch.cat((torch.linspace(0.01, 0.02, 5), torch.linspace(0.03, 0.05, 7)))
    bank = torch.stack((angles.cos(), angles.sin()), dim=1)
    labels = torch.tensor([1] * 5 + [0] * 7)
    pixels = torch.zeros(12, 3, 4, 4, dtype=torch.uint8)
    query, names = torch.tensor([[1.0, 0.0]]), ("four", "nine")

    def explanation(label, k):
        image = Images(pixels[:1], torch.tensor([label]), names)
        view = FeatureView(
            image, "test", {"backbone": query}, Images(pixels, labels, names), bank, k=k, temperature=0.1,
            classes=names,
        )  # fmt: skip
        return gallery.vote_details(view, 0), gallery._vote_note(view)

    lines, note = explanation(1, 12)
    assert lines == [
        "kNN: four, 7 of 12 neighbours, 58 % of the vote",
        "label: nine, 5 of 12 neighbours, 42 % of the vote",
    ]
    assert "a vote of the 12 nearest" in note
    assert explanation(0, 12)[0] == lines[:1]
    assert explanation(1, 5)[0] == []


def test_protocols_have_one_table_per_data_set_protocol_and_epoch(tmp_path):
    common = {"layer": "backbone", "metric": "knn_top1", "split": "test", "k": 5, "temperature": 0.1}
    config = {"data": {"class_path": "ssl_vision.data.Digits", "init_args": {}}, "metrics": {"k": 5}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [
        common | {"features": "untrained", "value": 0.25, "protocol": "macl", "data": "Digits", "epoch": 0},
        *(
            common | {"features": "trained", "value": value, "protocol": protocol, "epoch": epoch} | data
            for value, protocol, epoch, data in (
                (0.5, "macl", 1, {"data": "Digits"}), (0.75, "macl", 2, {"data": "Digits"}),
                (0.375, "macl", 2, {"data": "ImageFolder", "root": "~/x", "folder": "test"}),
                (0.625, "macl", 2, {"data": "ImageFolder", "root": "~/x", "folder": "other"}),
                (0.875, "solo", 2, {"data": "Digits"}),
            )
        ),
    ]  # fmt: skip
    (tmp_path / "evaluation.json").write_text(json.dumps(rows))
    content = protocols(Run(tmp_path))[1]
    tables = re.findall(r"Protocol (\w+): (.*?); kNN(.*?)</table>", content, flags=re.DOTALL)
    assert [(name, heading, re.findall(r"\d\d\.\d\d", cells)) for name, heading, cells in tables] == [
        ("macl", "Digits, test split, epoch 2", ["25.00", "75.00"]),
        ("macl", "Digits, test split, epoch 1", ["25.00", "50.00"]),
        ("macl", "ImageFolder ~/x test, test split, epoch 2", ["37.50"]),
        ("macl", "ImageFolder ~/x other, test split, epoch 2", ["62.50"]),
        ("solo", "Digits, test split, epoch 2", ["87.50"]),
    ]


def test_queries_take_each_class_once():
    data = images(60, 4)
    assert sorted(data.labels[gallery.queries(data)].tolist()) == [0, 1, 2, 3]
    unlabelled = Images(data.store, torch.full((60,), -1), ())
    assert gallery.queries(unlabelled) == list(range(0, 60, 6))


def test_pca_is_the_projection_on_the_singular_vectors():
    features = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    rows = features.double().numpy()
    rows = rows - rows.mean(axis=0)
    _, _, vectors = np.linalg.svd(rows, full_matrices=False)
    expected = rows @ vectors[:2].T
    projection = feature_charts.projections(features, seed=0)["PCA"]
    np.testing.assert_allclose(np.abs(projection), np.abs(expected), atol=1e-10)


def test_t_sne_keeps_groups_together_and_is_the_same_again():
    generator = torch.Generator().manual_seed(0)
    groups = 20 * torch.eye(3)[torch.arange(45) % 3] + torch.randn(45, 3, generator=generator)
    layout = feature_charts.projections(groups, seed=4)["t-SNE"]
    np.testing.assert_array_equal(layout, feature_charts.projections(groups, seed=4)["t-SNE"])
    search = NearestNeighbors(n_neighbors=6).fit(layout)
    near = search.kneighbors(layout, return_distance=False)
    assert (near % 3 == np.arange(45)[:, None] % 3).mean() > 0.95


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("row", [torch.zeros(5), torch.eye(5)[0], unit_rows(torch.arange(1.0, 6.0)[None])[0]])
def test_equal_features_are_mapped_to_one_point(row):
    layouts = feature_charts.projections(row.expand(12, 5), seed=0)
    for layout in layouts.values():
        np.testing.assert_allclose(layout, np.zeros((12, 2)), atol=1e-12)


def test_nearly_equal_features_are_mapped_to_different_points():
    features = 1e-9 * torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    layout = feature_charts.projections(features, seed=0)["t-SNE"]
    assert np.isfinite(layout).all()
    assert len(np.unique(layout, axis=0)) == 12


def test_100_classes_have_distinct_colours_and_symbols():
    shown = [(COLOURS[i % len(COLOURS)], i % feature_charts.SYMBOLS) for i in range(100)]
    assert len(set(shown)) == 100


@pytest.mark.parametrize(("count", "kind"), [(5, "png"), (COLUMNS + 3, "png"), (2000, "webp")])
def test_sprite_sheet_contains_every_image_at_its_place(count, kind):
    sheet = SpriteSheet("image", side=64)
    side = 8 if kind == "png" else 32
    grey = torch.arange(count) * 37 % 256
    added = grey[:, None, None, None].to(torch.uint8).expand(count, 3, side, side)
    assert list(sheet.add(added[:4])) == [0, 1, 2, 3]
    assert sheet.add(added[4:]) == range(4, count)
    image_format, content = re.search(r"data:image/(\w+);base64,([^)]+)\)", sheet.style()).groups()
    assert image_format == kind
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB"))
    assert picture.shape == (sheet.rows * side, COLUMNS * side, 3)
    for number in range(0, count, 7):
        (place,) = re.findall(r"--place:(\d+)", sheet.tile(number, ""))
        row, column = divmod(int(place), COLUMNS)
        part = picture[row * side : (row + 1) * side, column * side : (column + 1) * side]
        np.testing.assert_allclose(part, int(grey[number]), atol=0 if kind == "png" else 3)


def test_sprite_sheet_shrinks_large_images_to_its_side():
    sheet = SpriteSheet("image", side=10)
    sheet.add(torch.zeros(2, 3, 40, 20, dtype=torch.uint8))
    assert "aspect-ratio:5/10" in sheet.style()


def test_training_views_match_views_seen_in_training(tmp_path, monkeypatch):
    trained = {}
    transfer = ImageData.on_after_batch_transfer

    def recording(self, batch, dataloader_idx):
        augmented = transfer(self, batch, dataloader_idx)
        if self.trainer.training:
            trained.setdefault(self.trainer.current_epoch, (batch.indices.clone(), augmented.views.clone()))
        return augmented

    monkeypatch.setattr(ImageData, "on_after_batch_transfer", recording)
    args = ["fit", f"--runs_dir={tmp_path}", "--name=run", "--seed_everything=3", "--report=false", *TINY]
    assert main([*args, "--data.progressive_resizing={1: 8}"]) == 0
    data = Digits(seed=3, progressive_resizing={1: 8})
    for epoch in (0, 1):
        indices, normalised = trained[epoch]
        reported = torch.cat(gallery.training_views(data, indices, epoch)).float()
        mean, std = data.views.mean[0], data.views.std[0]
        expected = ((normalised * std + mean) * 255).clamp(0, 255)
        assert (reported - expected).abs().max() <= 0.5 + 1e-3
    first = Order(len(data.split("pretrain")), shuffle=True, seed=3).rows()[:64]
    assert torch.equal(trained[0][0], first)


def test_long_curves_are_thinned_and_keep_their_end(tmp_path):
    (tmp_path / "metrics.csv").write_text(
        "step,epoch,train/loss\n" + "".join(f"{step},{step // 100},{step}\n" for step in range(4000))
    )
    x, y = line(Run(tmp_path), "train/loss", most=1000)
    assert len(x) == len(y) == 1000
    assert (x[-1], y[-1]) == (40.0, 3999.0)
    assert y == [3 + 4 * i for i in range(1000)]
