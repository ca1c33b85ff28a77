"""Tests of ``--initial_checkpoint``, which starts a run from the weights of a file or of another run."""

import json

import pytest
import torch
import torchvision
import yaml
from safetensors.torch import load_file, save_file
from settings import UNVALIDATED, resnet

from ssl_vision.errors import InputError
from ssl_vision.main import main
from ssl_vision.methods import SimCLR
from ssl_vision.runs.checkpoint import read_checkpoint
from ssl_vision.runs.encoder_weights import start_from


def fit(runs, *args):
    return main(["fit", f"--runs_dir={runs}", "--name=run", *UNVALIDATED, *args])


def equal(state, other, prefix=""):
    return all(torch.equal(tensor, other[prefix + name]) for name, tensor in state.items())


def test_run_starts_from_weights_of_another_run(tiny_run, tmp_path):
    without_learning = ["--model.optimizer.lr=0", "--trainer.max_epochs=1", "--model.objective=DCL"]
    assert fit(tmp_path, *without_learning, f"--initial_checkpoint={tiny_run}") == 0
    before, after = (read_checkpoint(run).state for run in (tiny_run, tmp_path / "run"))
    parameters = [name for name in after if "running_" not in name and "num_batches" not in name]
    trained = [name for name in parameters if not name.startswith("objective.")]
    assert len(trained) > 60
    assert all(torch.equal(before[name], after[name]) for name in trained)
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert config["initial_checkpoint"] == str(tiny_run)
    assert read_checkpoint(tmp_path / "run").epoch == 1  # of its own
    assert main(["export", str(tmp_path / "run")]) == 0
    card = (tmp_path / "run/backbone.safetensors.md").read_text()
    assert f"| initial weights | from {tiny_run.name} |" in card
    assert card.splitlines()[0].endswith("with DCL, from weights of another training")


def test_run_resumes_after_initial_checkpoint_was_deleted(tiny_run, tmp_path):
    file = tmp_path / "start.safetensors"
    state = read_checkpoint(tiny_run).state
    names = [name for name in state if name.startswith("backbone.")]
    save_file({name.removeprefix("backbone."): state[name].contiguous() for name in names}, file)
    initial = f"--initial_checkpoint={file}"
    assert fit(tmp_path / "whole", initial) == 0
    assert fit(tmp_path / "parts", initial, "--trainer.max_epochs=1") == 0
    file.unlink()
    assert fit(tmp_path / "parts", initial, "--ckpt_path=last") == 0
    whole, parts = (read_checkpoint(tmp_path / name / "run").state for name in ("whole", "parts"))
    assert equal(whole, parts)


def test_torchvision_resnet_loads_without_its_classifier(tmp_path):
    source = torchvision.models.resnet18(weights=None)
    torch.save(source.state_dict(), tmp_path / "resnet.pth")
    save_file(source.state_dict(), tmp_path / "resnet.safetensors")
    for name in ("resnet.pth", "resnet.safetensors"):
        model = SimCLR(encoder=resnet(stem="imagenet"), seed=0)
        head = {name: tensor.clone() for name, tensor in model.head.state_dict().items()}
        message = start_from(model, tmp_path / name)
        assert "projection head is initialised randomly" in message
        assert equal(model.backbone.state_dict(), source.state_dict())
        assert equal(head, model.head.state_dict())
    source.fc = torch.nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(model.eval().backbone(images), source.eval()(images))


def test_exported_backbone_loads(tiny_run, tmp_path):
    assert main(["export", str(tiny_run), "--format=safetensors", f"--output={tmp_path}/b.safetensors"]) == 0
    model = SimCLR(encoder=resnet(width=4), seed=3)
    start_from(model, tmp_path / "b.safetensors")
    assert equal(load_file(tmp_path / "b.safetensors"), model.backbone.state_dict())


def test_projection_head_loads_only_if_shapes_match(tiny_run):
    model, same_head = (
        SimCLR(encoder=resnet(width=4), hidden_dim=16, output_dim=12, seed=3),
        SimCLR(encoder=resnet(width=4), hidden_dim=16, output_dim=8),
    )
    state = read_checkpoint(tiny_run).state
    assert start_from(model, tiny_run).endswith("the projection head is initialised randomly")
    assert equal(
        model.head.state_dict(),
        SimCLR(encoder=resnet(width=4), hidden_dim=16, output_dim=12, seed=3).head.state_dict(),
    )
    assert start_from(same_head, tiny_run).startswith("backbone and projection head from")
    assert equal(same_head.head.state_dict(), state, "head.")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"width": 8}, "--model.encoder and its options must match the file"),
        ({"width": 4, "stem": "imagenet"}, "has shape (4, 3, 3, 3), but the model's has (4, 3, 7, 7)"),
        ({"width": 4, "depth": 34}, "has no layer1.2.conv1.weight"),
    ],
)
def test_another_architecture_is_refused_with_the_difference(model, words, tiny_run):
    with pytest.raises(InputError) as error:
        start_from(SimCLR(encoder=resnet(**model)), tiny_run)
    assert words in str(error.value)


def test_a_deeper_network_is_refused(tmp_path):
    save_file(torchvision.models.resnet34(weights=None).state_dict(), tmp_path / "deep.safetensors")
    with pytest.raises(InputError, match=r"layer1\.2\.bn1\.bias, which the model does not have"):
        start_from(SimCLR(encoder=resnet(stem="imagenet")), tmp_path / "deep.safetensors")


def test_unreadable_weights_are_reported_in_one_line(tmp_path, capsys):
    torch.save({"weights": print}, tmp_path / "code.pth")
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    (tmp_path / "noise.pth").write_bytes(b"\x80noise")
    (tmp_path / "noise.safetensors").write_bytes(b"\xff" * 40)
    for name, words in [
        ("code.pth", "refused, it contains more than tensors"),
        ("list.pth", "not a state dict"),
        ("noise.pth", "noise.pth: "),
        ("noise.safetensors", "not a readable file of weights"),
        ("none.pth", "no such file or run directory"),
    ]:
        assert fit(tmp_path / "runs", f"--initial_checkpoint={tmp_path / name}") == 2
        error = capsys.readouterr().err
        assert words in error
        assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def save_backbone(model, file, **more):
    save_file({name: value.contiguous() for name, value in model.backbone.state_dict().items()} | more, file)


def with_header(content: bytes, change) -> bytes:
    """Return the content of a safetensors file with a changed header."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(change(json.loads(content[8 : 8 + size]))).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def with_huge_shape(header):
    header["conv1.weight"]["shape"] = [2**20, 2**20, 2**20]
    return header


def with_offset_beyond_end(header):
    header["conv1.weight"]["data_offsets"][1] += 2**40
    return header


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + bytes(1),
        lambda content: (2**40).to_bytes(8, "little") + content[8:],
        lambda content: with_header(content, with_huge_shape),
        lambda content: with_header(content, with_offset_beyond_end),
    ],
    ids=["cut", "longer", "header longer than the file", "shape of 2 ** 60", "beyond the end"],
)
def test_safetensors_file_of_inconsistent_size_is_refused(damage, tmp_path):
    model, file = SimCLR(encoder=resnet(width=4)), tmp_path / "x.safetensors"
    save_backbone(model, file)
    start_from(model, file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match=r"x\.safetensors: not a readable file of weights"):
        start_from(model, file)


def test_extra_tensors_except_classifier_are_refused(tmp_path):
    model, file = SimCLR(encoder=resnet(width=4)), tmp_path / "x.safetensors"
    save_backbone(model, file, **{"fc.weight": torch.zeros(1000, 32)})
    start_from(model, file)
    save_backbone(model, file, more=torch.ones(9))
    with pytest.raises(InputError, match="has more, which the model does not have"):
        start_from(model, file)


def test_start_from_requires_a_method_of_ssl_vision():
    with pytest.raises(InputError, match="requires a method of ssl_vision, not Linear"):
        start_from(torch.nn.Linear(1, 1), "anything")
