"""Tests of the representation metrics that each validation logs."""

import math
import warnings
from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
from PIL import Image
from settings import resnet

from ssl_vision.callbacks import RepresentationMetrics
from ssl_vision.data import Digits, ImageFolder, Views, fold
from ssl_vision.data.random import Stream
from ssl_vision.evaluation.features import embed, embed_views
from ssl_vision.methods import Layers, SimCLR
from ssl_vision.metrics import (
    Alignment,
    KNNAccuracy,
    Representation,
    effective_rank,
    lidar,
    rank_correlation,
)
from ssl_vision.objectives import SupCon
from ssl_vision.runs.config import differences

SMALL = {"encoder": resnet(width=4), "hidden_dim": 16, "output_dim": 8, "seed": 0}


def validate(model, data, **options):
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        callbacks=[RepresentationMetrics(k=7, temperature=0.2, **options)],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trainer.validate(model, data, verbose=False)


@pytest.mark.parametrize("val", ["train", "test"])
def test_logged_metrics_match_direct_computation(val):
    data, model = Digits(seed=0, val=val), SimCLR(**SMALL)
    first, second = validate(model, data)
    logged = first | second
    queries, bank = (loader.data for loader in data.val_dataloader())
    assert len(queries) == (144 if val == "train" else 360)
    query_layers, bank_layers = embed(model, queries, data.views), embed(model, bank, data.views)
    knn = KNNAccuracy(num_classes=10, k=7, temperature=0.2)
    knn.update(bank_layers["backbone"], bank.labels, "bank")
    knn.update(query_layers["backbone"], queries.labels, "query")
    assert logged["val/knn_top1"] == pytest.approx(float(knn.compute()))
    view_pairs = embed_views(model, queries, data.views, seed=fold(0, Stream.QUERIES))
    for name, suffix in zip(Layers._fields, ("", "_hidden", "_projector"), strict=True):
        representation, alignment = Representation(), Alignment()
        representation.update(query_layers[name], queries.labels)
        alignment.update(*view_pairs[name])
        expected = representation.compute() | {"alignment": alignment.compute()}
        for key, value in expected.items():
            assert logged[f"val/{key}{suffix}"] == pytest.approx(float(value), rel=1e-4), key


def test_few_labels_are_left_out_one_by_one_unless_the_objective_reads_them(monkeypatch):
    monkeypatch.setattr(Digits, "few_labels", 2000)
    data, model = Digits(seed=0), SimCLR(**SMALL)
    (logged,) = validate(model, data)
    features = embed(model, data.split("train"), data.views)["backbone"]
    knn = KNNAccuracy(num_classes=10, k=7, temperature=0.2, leave_one_out=True)
    knn.update(features, data.split("train").labels, "query")
    assert logged["val/knn_top1"] == pytest.approx(float(knn.compute()))
    assert (logged["time/val_images"], logged["time/leave_one_out"]) == (1437, 1)
    logged, _ = validate(SimCLR(**SMALL, objective=SupCon()), data)
    assert logged["time/val_images"] == 144
    assert "time/leave_one_out" not in logged


def test_extended_option_adds_effective_rank_and_lidar():
    data, model = Digits(seed=0), SimCLR(**SMALL)
    plain, extended = (validate(model, data, extended=extended)[0] for extended in (False, True))
    assert set(extended) - set(plain) == {"val/effective_rank", "val/lidar"}
    queries = data.val_dataloader()[0].data
    features = embed(model, queries, data.views)["backbone"]
    views = embed_views(model, queries, data.views, seed=fold(0, Stream.QUERIES))["backbone"]
    assert extended["val/effective_rank"] == pytest.approx(float(effective_rank(features)), rel=1e-4)
    assert extended["val/lidar"] == pytest.approx(float(lidar(views.transpose(0, 1))), rel=1e-3)


def test_run_differences_ignore_extended_metrics():
    plain = {"metrics": {"k": 5}}
    assert differences(plain, {"metrics": {"k": 5, "extended": True}}) == []
    assert len(differences(plain, {"metrics": {"k": 6, "extended": False}})) == 1


def test_rank_correlation_is_logged_for_data_with_superclasses(monkeypatch):
    superclasses = torch.arange(10) // 2
    monkeypatch.setattr(Digits, "superclasses", superclasses, raising=False)
    data, model = Digits(seed=0), SimCLR(**SMALL)
    logged, _ = validate(model, data)
    queries = data.val_dataloader()[0].data
    view_pairs = embed_views(model, queries, data.views, seed=fold(0, Stream.QUERIES))
    levels = torch.stack([superclasses[queries.labels], queries.labels, torch.arange(len(queries))], dim=1)
    expected = rank_correlation(view_pairs["backbone"].flatten(0, 1), levels.repeat(2, 1))
    for key, value in expected._asdict().items():
        assert logged[f"val/{key}"] == pytest.approx(float(value), rel=1e-4), key


def test_validation_does_not_change_network_state():
    data, model = Digits(seed=0), SimCLR(**SMALL)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    validate(model, data)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_unlabelled_images_log_only_label_free_metrics(tmp_path):
    generator = torch.Generator().manual_seed(0)
    for number in range(20):
        pixels = torch.randint(0, 256, (12, 12, 3), generator=generator, dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    data = ImageFolder(root=tmp_path, image_size=12, views=Views(size=12), val_share=0.5, seed=0)
    (logged,) = validate(SimCLR(**SMALL), data)
    assert {"val/alignment", "val/uniformity", "val/rankme", "val/uniformity_projector"} <= set(logged)
    assert not [key for key in logged if "knn" in key or "tolerance" in key or "sensitivity" in key]
    assert all(math.isfinite(value) for value in logged.values())


def test_k_defaults_to_value_of_data_set(monkeypatch):
    data, knn_options = Digits(seed=0), []
    monkeypatch.setattr(
        "ssl_vision.callbacks.representation.KNNAccuracy", lambda **options: knn_options.append(options)
    )
    for k in (None, 7):
        trainer = SimpleNamespace(datamodule=data, val_dataloaders=[0, 1])
        with pytest.raises(AttributeError):  # the replaced metric is None, which has no .to
            RepresentationMetrics(k=k).on_validation_epoch_start(trainer, SimCLR(**SMALL))
    assert [options["k"] for options in knn_options] == [20, 7]


@pytest.mark.parametrize("options", [{"k": 0}, {"temperature": 0.0}])
def test_nonpositive_options_raise_value_error(options):
    with pytest.raises(ValueError, match="must be"):
        RepresentationMetrics(**options)


def test_collapsed_representation_warns_and_is_logged():
    data, model = Digits(seed=0), SimCLR(**SMALL)
    assert not any("val/collapsed" in logged for logged in validate(model, data))
    with torch.no_grad():  # embed all images at almost the same point
        model.backbone.layer4[1].bn2.weight.zero_()
        model.backbone.layer4[1].bn2.bias.fill_(1e3)
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        callbacks=[RepresentationMetrics(k=7)],
    )  # fmt: skip
    with pytest.warns(UserWarning, match=r"collapsed: RankMe is 1\.\d\d of the backbone.*, below 1\.5"):
        logged = trainer.validate(model, data, verbose=False)
    assert logged[0]["val/collapsed"] == 1
    assert logged[0]["val/rankme"] < 1.5


def test_nonfinite_features_omit_knn_with_warning():
    model = SimCLR(**SMALL)
    with torch.no_grad():
        model.backbone.bn1.weight.fill_(torch.inf)
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        callbacks=[RepresentationMetrics(k=7)], limit_val_batches=1,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="val/knn_top1 is left out: queries: some of .* are not finite"):
        logged, _ = trainer.validate(model, Digits(seed=0), verbose=False)
    assert not any(key.startswith("val/knn") for key in logged)
