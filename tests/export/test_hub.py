"""Tests of ``ssl-vision export --push`` and ``hf://`` addresses with a server on the loopback interface."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from typing import Any

import hub_server
import pytest
import torch
from hub_server import OWNER, TOKEN
from huggingface_hub import EvalResult, ModelCard
from safetensors import safe_open
from safetensors.torch import load_file, save
from settings import TINY, resnet

import ssl_vision
from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.runs.encoder_weights import start_from

NAME = f"{OWNER}/tiny-resnet"
ADDRESS = f"hf://{NAME}"
X = torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))
ROW = {
    "features": "trained", "layer": "backbone", "metric": "knn_top1", "value": 0.75, "split": "test",
    "k": 5, "temperature": 0.1, "protocol": "macl", "epoch": 2, "data": "Digits", "root": "/home/me/data",
}  # fmt: skip


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with hub_server.serve() as server:
        hub_server.use(server, str(tmp_path / "cache"), monkeypatch)
        yield server


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    file = tmp_path_factory.mktemp("exported") / "it.safetensors"
    assert main(["export", str(tiny_run), "--output", str(file)]) == 0
    return file


def described(file, tensors=None, **changes):
    """Return the bytes of an exported file with other tensors or other metadata."""
    with safe_open(file, framework="pt") as opened:
        header = opened.metadata()
    changes = {key: json.dumps(value) for key, value in changes.items()}
    return save(tensors or load_file(file), header | changes)


def front_matter(files) -> Any:
    """Return the metadata of a repository's model card as huggingface_hub reads it."""
    return ModelCard(files["README.md"].decode(), ignore_metadata_errors=False).data


def one_line_error(capsys):
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("ssl-vision ")]
    assert len(lines) == 1, error
    assert error.rstrip().endswith(lines[0])
    return lines[0]


def test_uploaded_encoder_loads_with_same_features_also_offline(hub, tiny_run, tmp_path, monkeypatch, capsys):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")
    (run / "evaluation.json").write_text(
        json.dumps([ROW, ROW | {"metric": "alignment", "value": 0.5}, ROW | {"features": "untrained"}])
    )
    assert main(["export", str(run), "--push", NAME, "--license", "apache-2.0"]) == 0
    assert f"uploaded to {hub.url}/{NAME}" in capsys.readouterr().out
    files = hub.repositories[NAME]["main"]
    assert files.keys() == {"README.md", "config.json", "model.safetensors"}
    assert files["model.safetensors"] == (run / "backbone.safetensors").read_bytes()
    assert not hub.private[NAME]

    config = json.loads(files["config.json"])
    content = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    assert config == {
        "library_name": "ssl_vision",
        "library_version": ssl_vision.__version__,
        "encoder": {
            "class_path": "ssl_vision.encoders.ResNet",
            "init_args": {"depth": 18, "width": 4, "stem": "small", "in_channels": 3},
        },
        "size": 16,
        "decoded_size": 8,
        "mean": [0.3054] * 3,
        "std": [0.3755] * 3,
        "pixel_range": None,
        "num_features": 32,
        "training_images": content["ssl_vision"]["images"],
    }

    page = files["README.md"].decode()
    data = front_matter(files)
    assert (data.library_name, data.pipeline_tag) == ("ssl_vision", "image-feature-extraction")
    assert data.license == "apache-2.0"
    accuracy, alignment = data.eval_results
    assert accuracy == EvalResult(
        task_type="image-classification",
        dataset_type="digits",
        dataset_name="Digits",
        dataset_split="test",
        metric_type="accuracy",
        metric_name="kNN top-1",
        metric_value=0.75,
        metric_args={"k": 5, "temperature": 0.1, "protocol": "macl", "epoch": 2},
    )
    assert (alignment.metric_type, alignment.task_type) == ("alignment", "image-feature-extraction")
    assert "# ResNet pretrained on Digits with MACL" in page
    assert f"| digest of the training images | {content['ssl_vision']['images']} |" in page
    assert "| untrained |" in page
    assert not re.search(f"/home/me|{re.escape(str(tmp_path))}|{TOKEN}", page)

    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names = {}
    exec(code, names)
    expected = ssl_vision.load_encoder(tiny_run)(X)
    torch.testing.assert_close(names["backbone"](X), expected, atol=1e-5, rtol=0)
    assert hub.downloads == [f"{NAME}@main/model.safetensors"]
    ssl_vision.load_encoder(ADDRESS)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    torch.testing.assert_close(ssl_vision.load_encoder(ADDRESS)(X), expected, atol=1e-5, rtol=0)
    assert len(hub.downloads) == 1


def test_private_upload_without_license_and_evaluation_states_none(hub, tiny_run, tmp_path):
    file = str(tmp_path / "it.safetensors")
    assert main(["export", str(tiny_run), "--output", file, "--push", NAME, "--private", "true"]) == 0
    data = front_matter(hub.repositories[NAME]["main"])
    assert data.license is None
    assert data.eval_results is None
    assert hub.private[NAME]


def test_second_upload_replaces_only_files_of_the_export(hub, tiny_run, tmp_path):
    hub.add(NAME, {"README.md": b"old", "notes.md": b"mine"})
    assert main(["export", str(tiny_run), "--output", str(tmp_path / "it.safetensors"), "--push", NAME]) == 0
    files = hub.repositories[NAME]["main"]
    assert files["notes.md"] == b"mine"
    assert files["README.md"] != b"old"


def test_load_encoder_loads_revision_of_address(hub, exported):
    tensors = load_file(exported)
    other = {name: tensor + 1 for name, tensor in tensors.items()}
    hub.add(NAME, {"model.safetensors": exported.read_bytes()})
    hub.add(NAME, {"model.safetensors": described(exported, other)}, revision="v2")
    for address, expected in [
        (ADDRESS, tensors),
        (f"{ADDRESS}@v2", other),
        (f"{ADDRESS}@{hub.commit(NAME, 'main')}", tensors),
    ]:
        state = ssl_vision.load_encoder(address).state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())


def test_embed_and_initial_checkpoint_accept_an_address(hub, exported, tmp_path, monkeypatch, capsys):
    from PIL import Image

    hub.add(NAME, {"model.safetensors": exported.read_bytes()})
    (tmp_path / "images").mkdir()
    Image.new("RGB", (20, 20), (200, 90, 30)).save(tmp_path / "images" / "a.png")
    monkeypatch.chdir(tmp_path)
    for path, output in [(ADDRESS, "theirs.npz"), (str(exported), "ours.npz")]:
        assert main(["embed", "images", "--weights", path, "--output", output]) == 0
    assert (tmp_path / "theirs.npz").read_bytes() == (tmp_path / "ours.npz").read_bytes()

    frozen = ["--model.optimizer.lr=0", "--trainer.max_epochs=1"]
    args = ["fit", *TINY, *frozen, "--runs_dir=runs", "--name=further"]
    assert main([*args, f"--initial_checkpoint={ADDRESS}"]) == 0
    backbone = ssl_vision.load_encoder("runs/further")
    assert torch.equal(backbone.conv1.weight, load_file(exported)["conv1.weight"])
    assert f"initial_checkpoint: {ADDRESS}" in (tmp_path / "runs" / "further" / "config.yaml").read_text()
    assert main(["embed", "images", f"--weights={ADDRESS}", "--output=x.npz", "--layer=projector"]) == 2
    assert "--layer projector takes a run" in one_line_error(capsys)


def test_timm_loads_an_uploaded_timm_encoder(hub, tmp_path, monkeypatch):
    timm: Any = pytest.importorskip("timm")
    encoder = ["Timm", "name=vit_tiny_patch16_224", "img_size=16", "dict_kwargs.depth=1"]
    options = [f"--model.encoder{'.' if '=' in each else '='}{each}" for each in encoder]
    small = [option for option in TINY if "width" not in option]
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *small, *options, "--trainer.max_epochs=1", "--runs_dir=.", "--name=vit"]) == 0
    assert main(["export", "vit", "--push", NAME]) == 0
    expected = ssl_vision.load_encoder("vit")(X)
    torch.testing.assert_close(ssl_vision.load_encoder(ADDRESS)(X), expected, atol=1e-5, rtol=0)
    files = hub.repositories[NAME]["main"]
    assert "timm" in front_matter(files).tags
    page = files["README.md"].decode()
    assert "# vit_tiny_patch16_224 pretrained on Digits with InfoNCE" in page
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names = {}
    exec(code, names)  # the code ends with timm's loader
    backbone = names["backbone"]
    assert isinstance(backbone, timm.models.VisionTransformer)
    torch.testing.assert_close(backbone(X), expected, atol=1e-5, rtol=0)
    config = timm.data.resolve_model_data_config(backbone)
    assert tuple(config["input_size"]) == (3, 16, 16)
    assert tuple(config["mean"]) == (0.3054,) * 3


def test_initial_checkpoint_accepts_timm_repository(hub):
    timm: Any = pytest.importorskip("timm")
    state = timm.create_model("resnet18").state_dict()
    hub.add("timm/resnet18", {"config.json": b"{}", "model.safetensors": save(state)})
    model = SimCLR(encoder=resnet(stem="imagenet"))
    message = start_from(model, "hf://timm/resnet18")
    used = "backbone from hf://timm/resnet18 (120 tensors; fc left out)"
    assert message == f"{used}; the projection head is initialised randomly"
    assert torch.equal(model.backbone.state_dict()["layer4.1.conv2.weight"], state["layer4.1.conv2.weight"])
    with pytest.raises(InputError, match="must match the file"):
        start_from(SimCLR(encoder=resnet(depth=34)), "hf://timm/resnet18")


class Payload:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


OUTSIDE = {"class_path": "os.path.Outside", "init_args": {}}
SMALLER = {"class_path": "ssl_vision.encoders.ResNet", "init_args": {"depth": 18, "width": 8}}
A_FILE = {"class_path": "ssl_vision.encoders.ResNet", "init_args": {"stem": __file__}}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (lambda file, ran: {"model.safetensors": pickle.dumps(Payload(ran))}, "not a readable safetensors"),
        (lambda file, ran: {"pytorch_model.bin": pickle.dumps(Payload(ran))}, "Entry Not Found"),
        (lambda file, ran: {"model.safetensors": described(file, encoder=OUTSIDE)}, "add --allow_class os."),
        (lambda file, ran: {"model.safetensors": described(file, encoder=SMALLER)}, "size mismatch"),
        (lambda file, ran: {"model.safetensors": described(file, encoder=A_FILE)}, "is the path of a file"),
        (lambda file, ran: {"model.safetensors": described(file, prefix="network.")}, "Missing key"),
        (lambda file, ran: {"model.safetensors": described(file, prefix=["x"])}, "Missing key"),
        (lambda file, ran: {"model.safetensors": save(load_file(file))}, "was not written by ssl-vision"),
        (lambda file, ran: {"model.safetensors": b"version https://git-lfs"}, "not a readable safetensors"),
        (lambda file, ran: {}, "Entry Not Found"),
    ],
)
def test_invalid_repository_is_reported_in_one_line(hub, exported, tmp_path, capsys, files, words):
    ran = tmp_path / "ran"
    hub.add(NAME, files(exported, ran))
    with pytest.raises(InputError, match=re.escape(words)) as error:
        ssl_vision.load_encoder(ADDRESS)
    assert "\n" not in str(error.value)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"")
    args = ["embed", str(tmp_path / "images"), "--weights", ADDRESS, "--output", str(tmp_path / "x.npz")]
    assert main(args) == 2
    assert words in one_line_error(capsys)
    assert not ran.exists()


def test_outside_class_is_built_only_if_allowed(hub, exported):
    hub.add(NAME, {"model.safetensors": described(exported, encoder={"class_path": "torch.nn.Flatten"})})
    with pytest.raises(InputError, match="names the class torch"):
        ssl_vision.load_encoder(ADDRESS)
    with pytest.raises(InputError, match="Unexpected key"):  # built, but the weights are of another network
        ssl_vision.load_encoder(ADDRESS, allow_class=["torch.nn.Flatten"])


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_commands_that_require_a_checkpoint_refuse_an_address(command, capsys):
    assert main([command, ADDRESS]) == 2
    assert one_line_error(capsys) == (
        f"ssl-vision {command}: {ADDRESS}: a repository on the Hugging Face Hub holds an encoder, "
        "but a checkpoint is required: give a checkpoint or a run directory"
    )


def test_download_errors_name_the_address(hub, exported):
    hub.add(NAME, {"model.safetensors": exported.read_bytes()})
    for address, words in [
        (f"hf://{OWNER}/nothing", "Repository Not Found"),
        (f"{ADDRESS}@v9", "Revision Not Found"),
        ("hf://a/b/c", "Repo id must be in the form"),
        (f"{ADDRESS}@../../x", "Revision Not Found"),
    ]:
        with pytest.raises(InputError, match=f"{re.escape(address)}: .*{words}"):
            ssl_vision.load_encoder(address)
    with pytest.raises(InputError, match=f"{ADDRESS}@v9: .*Revision Not Found"):
        start_from(SimCLR(), f"{ADDRESS}@v9")


def test_download_without_network_raises_one_line_input_error(monkeypatch, tmp_path):
    with hub_server.serve() as server:
        hub_server.use(server, str(tmp_path), monkeypatch)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the library waits between its attempts
    with pytest.raises(InputError, match="check your connection") as error:
        ssl_vision.load_encoder(ADDRESS)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--push=../x"], "--push ../x: Repo id must"),
        (["--push=me/it", "--format=onnx"], "--push uploads the safetensors format only"),
        (["--push=me/it"], "--push me/it: 403 Forbidden"),
        (["--push=others/it"], "--push others/it: 403 Forbidden"),
        ([f"--push={NAME}", "--license=none"], "must be one of [apache-2.0, mit]"),
        (["--license=mit"], "--private and --license require --push"),
        ([f"--push={OWNER}/public", "--private=true"], "exists and is public, so nothing was uploaded"),
    ],
)
def test_upload_errors_name_the_repository(hub, tiny_run, tmp_path, capsys, args, words):
    hub.add("others/it", {})
    hub.add(f"{OWNER}/public", {})
    assert main(["export", str(tiny_run), "--output", str(tmp_path / "it.safetensors"), *args]) == 2
    assert words in one_line_error(capsys)
    assert not any(files for each in hub.repositories.values() for files in each.values())


def test_an_upload_without_token_keeps_the_local_files(hub, tiny_run, tmp_path, monkeypatch, capsys):
    file = tmp_path / "it.safetensors"
    monkeypatch.delenv("HF_TOKEN")
    assert main(["export", str(tiny_run), "--output", str(file), "--push", NAME]) == 2
    assert f"--push {NAME}: " in one_line_error(capsys)
    assert file.is_file()


@pytest.mark.long
def test_environment_variables_of_huggingface_hub_are_respected(hub, exported, tmp_path):
    hub.add(NAME, {"model.safetensors": exported.read_bytes()})
    home = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}

    def load(address, **variables):
        code = f"import ssl_vision; print(ssl_vision.load_encoder({address!r}).num_features)"
        environment = os.environ | home | variables
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    for offline in ("0", "1"):
        done = load(ADDRESS, HF_HUB_OFFLINE=offline)
        assert done.stdout == "32\n", done.stderr
    assert "ssl_vision.errors.InputError: hf://" in load(f"{ADDRESS}@v2", HF_HUB_OFFLINE="1").stderr
    assert len(hub.downloads) == 1
    assert any((tmp_path / "home" / "hub").rglob("model.safetensors"))
