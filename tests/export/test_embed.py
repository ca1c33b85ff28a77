"""Tests of ``ssl-vision embed``: the features of a folder's images in order, and invalid input."""

import shutil

import numpy as np
import pytest
import timm
import torch
import yaml
from PIL import Image

from ssl_vision.data import ImageFolder, Views
from ssl_vision.encoders import ResNet, Timm
from ssl_vision.evaluation.features import embed
from ssl_vision.export.embed import Network, _embedded, embed_files
from ssl_vision.main import main
from ssl_vision.pretrained.backbones import Description, pretrained, read_backbone, write_backbone
from ssl_vision.pretrained.opened_run import open_run

NAMES = ["a/2.png", "a/deep/1.JPG", "b.png", "test/z.png", "ü.png"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number, name in enumerate(reversed(NAMES)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(256, size=(20 + number, 30, 3), dtype=np.uint8)).save(folder / name)
    (folder / "a" / "notes.txt").write_text("no image")
    return folder


def embedded(images, backbone, output, *args):
    assert main(["embed", str(images), f"--weights={backbone}", f"--output={output}", *args]) == 0
    with np.load(output) as file:
        return file["features"], file["names"].tolist()


@pytest.mark.parametrize("layer", ["backbone", "hidden", "projector"])
def test_embed_features_match_evaluation_features(images, tiny_run, tmp_path, layer):
    features, names = embedded(
        images, tiny_run, tmp_path / "new" / "f.npz", f"--layer={layer}", "--batch_size=2"
    )
    assert names == NAMES
    run = open_run(tiny_run)
    model, description = run.trained().eval(), pretrained(run).description
    split = ImageFolder(root=images, train=".", test="none", image_size=8, cache="never").split("train")
    expected = embed(model, split, description.views)[layer]
    assert features.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(features), expected, atol=1e-5, rtol=0)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["f.npz"]


def test_exported_backbone_gives_same_features_in_parquet(images, tiny_run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "it.safetensors"
    assert main(["export", str(tiny_run), "--output", str(file)]) == 0
    expected, _ = embedded(images, tiny_run, tmp_path / "f.npz")
    args = [f"--weights={file}", f"--output={tmp_path / 'f.parquet'}"]
    assert main(["embed", str(images), *args]) == 0
    table = parquet.read_table(tmp_path / "f.parquet")
    assert table["name"].to_pylist() == NAMES
    features = np.array(table["features"].to_pylist(), dtype=np.float32)
    np.testing.assert_allclose(features, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_nearest_other_images_are_stored(images, tiny_run, tmp_path, suffix):
    folder, output = shutil.copytree(images, tmp_path / "images"), tmp_path / f"f.{suffix}"
    for number in range(3):
        shutil.copy(images / "b.png", folder / f"b_copy{number}.png")
    command = ["embed", str(folder), f"--weights={tiny_run}", f"--output={output}", "--nearest"]
    assert main([*command, "8"]) == 2  # of 8 images, each has 7 others
    assert main([*command, "2"]) == 0
    if suffix == "npz":
        stored = dict(np.load(output))
    else:
        stored = pytest.importorskip("pyarrow.parquet").read_table(output).to_pydict()
    features, neighbours, similarities = (
        torch.tensor(np.stack([*stored[name]])) for name in ("features", "neighbours", "similarities")
    )
    rows = torch.nn.functional.normalize(features)
    expected = (rows @ rows.T - 3 * torch.eye(len(rows))).topk(2)
    torch.testing.assert_close(similarities, expected.values, atol=1e-5, rtol=0)
    assert not (neighbours == torch.arange(8)[:, None]).any()
    torch.testing.assert_close((rows[:, None] * rows[neighbours]).sum(dim=2), similarities, atol=1e-5, rtol=0)


def test_an_encoder_with_weights_gives_its_features(images, tmp_path, capsys):
    network = timm.create_model("resnet18", num_classes=3).eval()
    state = {f"module.encoder_q.{name}": value for name, value in network.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "w.pth")
    options = ["--encoder=timm/resnet18", f"--weights={tmp_path / 'w.pth'}", "--views.size=24"]
    assert main(["embed", str(images), *options, f"--output={tmp_path / 'f.npz'}"]) == 0
    used = "resnet18 with weights of w.pth: 120 tensors below state_dict:module.encoder_q.; fc left out\n"
    assert used in capsys.readouterr().out
    assert main(["embed", str(images), options[1], "--output=g.npz"]) == 2
    error = capsys.readouterr().err
    assert "w.pth: was not written by ssl-vision fit; to use weights of other code, name their" in error
    assert error.count("\n") == 1
    split = ImageFolder(root=images, train=".", test="none", image_size=24, cache="never").split("train")
    encoder = Timm("resnet18")
    encoder.network.load_state_dict({k: v for k, v in network.state_dict().items() if "fc" not in k})
    expected = embed(encoder, split, Views(size=24, mean=encoder.mean, std=encoder.std))["backbone"]
    with np.load(tmp_path / "f.npz") as file:
        torch.testing.assert_close(torch.from_numpy(file["features"]), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_large_features_are_mapped_and_written_in_parts(images, tiny_run, tmp_path, monkeypatch, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    outputs = []
    for limit in (2**30, 0):
        monkeypatch.setattr("ssl_vision.evaluation.features.IN_MEMORY", limit)
        monkeypatch.setattr("ssl_vision.export.embed._ROW_GROUP", 2 if limit == 0 else 2**16)
        output = tmp_path / f"{limit}.{suffix}"
        assert main(["embed", str(images), f"--weights={tiny_run}", f"--output={output}"]) == 0
        outputs.append(output)
    assert sorted(tmp_path.iterdir()) == sorted(outputs)
    if suffix == "npz":
        one, other = (dict(np.load(file)) for file in outputs)
        assert one["names"].tolist() == other["names"].tolist() == NAMES
        np.testing.assert_array_equal(one["features"], other["features"])
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        assert parquet.read_table(outputs[0]).equals(parquet.read_table(outputs[1]))
        assert parquet.ParquetFile(outputs[1]).num_row_groups == 3


@pytest.mark.parametrize(
    ("stored", "side", "views", "decoded"), [(24, 24, 16, 24), (None, 96, 16, 96), (None, None, 128, 128)]
)
def test_description_keeps_decoded_size_of_run(tiny_run, stored, side, views, decoded):
    run = open_run(tiny_run)
    config = yaml.safe_load(yaml.safe_dump(run.config))
    config["data"]["init_args"]["image_size"] = stored
    config["data"]["init_args"]["views"]["size"] = views
    checkpoint = run.checkpoint._replace(config=config, side=side)
    _, description = pretrained(run._replace(checkpoint=checkpoint))
    assert (description.decoded_size, description.size) == (decoded, views)


def test_features_that_are_not_finite_are_refused(images, tiny_run, tmp_path, capsys):
    backbone, description = pretrained(open_run(tiny_run))
    with torch.no_grad():
        backbone.layer4[1].bn2.bias += torch.inf
    write_backbone(tmp_path / "x.safetensors", backbone, description)
    args = [f"--weights={tmp_path / 'x.safetensors'}", f"--output={tmp_path / 'f.npz'}"]
    assert main(["embed", str(images), *args]) == 2
    assert capsys.readouterr().err == (
        f"ssl-vision embed: {images / NAMES[0]}: its features are not finite: check the weights\n"
    )
    assert not (tmp_path / "f.npz").exists()


def test_corrupt_files_stop_strict_embed_or_are_skipped_by_name(
    images, tiny_run, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("ssl_vision.export.embed._NAMED", 1)
    for name in NAMES[:3]:
        (tmp_path / "i" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "i" / name).write_bytes((images / name).read_bytes())
    for number in (3, 4):
        (tmp_path / "i" / "a" / f"{number}.png").write_bytes(b"no image")
    args = [str(tmp_path / "i"), f"--weights={tiny_run}", f"--output={tmp_path / 'f.npz'}"]
    assert main(["embed", *args, "--strict=true"]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path / 'i' / 'a' / '3.png'} cannot be decoded" in error
    assert "strict" in error
    assert [path.name for path in tmp_path.iterdir()] == ["i"]
    with pytest.warns(
        UserWarning, match=r"skipped 2 of 5 images that cannot be decoded: [^,]*a/3\.png, \.\.\.$"
    ):
        features, names = embedded(tmp_path / "i", tiny_run, tmp_path / "f.npz")
    assert names == NAMES[:3]
    assert features.shape == (3, 32)
    assert np.isfinite(features).all()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--weights=RUN"], "images"),
        (["IMAGES", "--output=f.npz"], "give --weights"),
        (["IMAGES", "--weights=RUN"], "output"),
        (["absent", "--weights=RUN", "--output=f.npz"], "no folder absent"),
        (["RUN", "--weights=RUN", "--output=f.npz"], "no images in"),
        (["IMAGES", "--weights=absent", "--output=f.npz"], "absent: no such checkpoint"),
        (["IMAGES", "--weights=RUN", "--output=f.csv"], "must end with .npz or .parquet"),
        (["IMAGES", "--weights=RUN", "--output=f.npz", "--batch_size=0"], "batch_size"),
        (["IMAGES", "--weights=RUN", "--output=f.npz", "--layer=conv1"], "layer"),
        (["IMAGES", "--weights=FILE", "--output=f.npz", "--layer=hidden"], "--layer hidden takes a run"),
        (["IMAGES", "--weights=RUN", "--output=RUN/config.yaml/f.npz"], "cannot be written"),
        (["IMAGES", "--encoder=ResNet", "--output=f.npz"], "has random weights: give some with --weights"),
        (
            ["IMAGES", "--encoder=ResNet", "--encoder.width=4", "--weights=RUN", "--output=f.npz"],
            "--encoder requires --views.size, --views.mean, --views.std",
        ),
        (
            ["IMAGES", "--encoder=ResNet", "--output=f.npz", "--layer=hidden"],
            "--encoder has the backbone only",
        ),
    ],
)
def test_embed_reports_invalid_input_in_one_line(images, tiny_run, tmp_path, capsys, args, words):
    file = tmp_path / "x.safetensors"
    file.touch()
    places = {"RUN": str(tiny_run), "IMAGES": str(images), "FILE": str(file)}
    for name, place in places.items():
        args = [arg.replace(name, place) for arg in args]
    assert main(["embed", *args]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_process_without_a_batch_embeds_nothing(tiny_run, tmp_path):
    network = Network(*read_backbone(tiny_run))
    assert list(_embedded(network, tmp_path, [["x.png"]], slice(1, None, 2), strict=True)) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_device_is_reported_in_one_line(images, tiny_run, capsys):
    args = [f"--weights={tiny_run}", "--output=f.npz", "--device=cuda"]
    assert main(["embed", str(images), *args]) == 2
    assert capsys.readouterr().err == "ssl-vision embed: --device cuda: there is no CUDA device\n"


def test_parquet_without_pyarrow_names_the_extra(images, tiny_run, monkeypatch, capsys):
    monkeypatch.setattr("ssl_vision.optional.installed", lambda name: False)
    assert main(["embed", str(images), f"--weights={tiny_run}", "--output=f.parquet"]) == 2
    assert "pip install 'ssl_vision[parquet]'" in capsys.readouterr().err


def test_undecodable_file_name_gets_replacement_character(images, tiny_run, tmp_path):
    (tmp_path / "i").mkdir()
    try:
        (tmp_path / "i" / "\udcff.png").write_bytes((images / NAMES[0]).read_bytes())
    except OSError:
        pytest.skip("the file system takes no such name")
    _, names = embedded(tmp_path / "i", tiny_run, tmp_path / "f.npz")
    assert names == ["\N{REPLACEMENT CHARACTER}.png"]


def test_exported_file_keeps_pixel_range(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (16, 16))
    for name, pixels in (("deep", (values * 16).astype(np.uint16)), ("plain", values.astype(np.uint8))):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels).save(tmp_path / name / "x.png")
    encoder = {
        "class_path": "ssl_vision.encoders.ResNet",
        "init_args": {"depth": 18, "width": 2, "stem": "small"},
    }
    options = {"encoder": encoder, "size": 16, "decoded_size": 16, "mean": (0.5,) * 3, "std": (0.2,) * 3}
    backbone, features = ResNet(depth=18, width=2, stem="small").eval(), {}
    for name, pixel_range in (("deep", (0, 16 * 255)), ("plain", None)):
        file = tmp_path / f"{name}.safetensors"
        write_backbone(file, backbone, Description(**options, pixel_range=pixel_range))
        features[name], _ = embed_files(
            Network(*read_backbone(file)), tmp_path / name, ["x.png"],
            batch_size=1, strict=True,
        )  # fmt: skip
    assert np.array_equal(features["deep"], features["plain"])
