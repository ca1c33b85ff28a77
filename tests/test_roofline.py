"""Tests of benchmarks/roofline.py: work of a step matches hand counts, and the record is current."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ssl_vision.data import Views
from ssl_vision.methods import OptimizerRule, SimCLR

pytestmark = pytest.mark.docs

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def roofline(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("roofline")


class Tiny(nn.Module):
    """A 3 × 3 convolution from 3 to 4 channels, for 8 × 8 pixels, followed by the mean."""

    num_features = 4

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)

    def forward(self, images):
        return self.conv(images).mean((2, 3))


def test_step_flops_match_hand_count(roofline):
    n = 6
    model = SimCLR(encoder=Tiny, hidden_dim=5, output_dim=7, optimizer=OptimizerRule(name="sgd"))
    before = [parameter.clone() for parameter in model.parameters()]
    step = roofline.counted(model, Views(size=8), n)
    conv = 2 * n * 2 * 8 * 8 * 4 * 3 * 9  # both views; two FLOPs a multiplication and addition
    head = 2 * n * 2 * (4 * 5 + 5 * 7)
    embeddings = [torch.randn(n, 7).bfloat16().requires_grad_() for _ in range(2)]
    with FlopCounterMode(display=False) as objective:
        model.objective(*embeddings).backward()
    # The backward pass computes the gradients of inputs and weights, but not that of the images.
    assert step["flops"] == 2 * conv + 3 * head + objective.get_total_flops()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert step["flops"] == roofline.counted(model, Views(size=8), n, "compiled views and encoder")["flops"]


def test_traffic_counts_bytes_read_and_written_by_each_operation(roofline):
    x, weight = torch.ones(4, 8), torch.ones(8, 2)
    with roofline.Traffic() as traffic:
        product = x @ weight  # (32 + 16) read, 8 written
        product.view(8).add_(1)  # 8 read, 8 written; a view moves nothing
        torch.empty(100)
    counts = [(each.bytes, each.flops) for each in traffic.operations]
    assert counts == [(4 * 56, 2 * 4 * 8 * 2), (4 * 16, 0)]
    with roofline.Traffic() as traffic:
        torch.ones(1).expand(50) * torch.ones(50)  # 1 and 50 written; 1 and 50 read, 50 written
    assert traffic.bytes == 4 * (51 + 101)
    image, kernel = torch.ones(1, 2, 5, 5, requires_grad=True), torch.ones(3, 2, 3, 3, requires_grad=True)
    out = torch.nn.functional.conv2d(image, kernel)  # 27 numbers
    with roofline.Traffic() as traffic:
        torch.autograd.grad(out, (image, kernel), torch.ones_like(out))
    gradients_of = traffic.operations[
        -1
    ]  # two kernels, which read the gradient of the output and another input
    assert gradients_of.bytes == 4 * (2 * 27 + 2 * (50 + 54))
    assert gradients_of.flops == 2 * (2 * 27 * 18)
    weights, gradients, first, second = ([torch.zeros(3)] for _ in range(4))
    steps: list = [torch.ones(())]
    rates: dict = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "eps": 1e-8, "weight_decay": 0.0}
    with roofline.Traffic() as traffic:
        torch._fused_adam_(
            weights, gradients, first, second, [], steps, **rates, amsgrad=False, maximize=False
        )
    assert traffic.bytes == 4 * (13 + 12)  # four lists and a step number read, four lists written


@pytest.mark.parametrize(
    ("name", "device"), [("arithmetic", (1, 9, 1)), ("memory", (9, 1, 1)), ("launches", (9, 9, 5_000_000))]
)
def test_the_bound_is_the_longest_time(roofline, name, device):
    work = {"flops": 4e12, "bytes": 3e12, "launches": 1}
    expected = {"arithmetic": 4.0, "memory": 3.0, "launches": 5.0}[name]
    assert roofline.bound(work, roofline.Device(*device)) == (name, pytest.approx(expected))


def test_recorded_launches_match_fake_device_counts():
    rows = json.loads((BENCHMARKS / "results" / "roofline.json").read_text())["epochs"]
    counted = json.loads((BENCHMARKS.parent / "tests/device/launches.json").read_text())["launches"]
    eager, graph = counted["infonce"], counted["graph, adam, bf16-mixed"] + 1
    expected = {"eager": eager, "`cuda_graph`": graph} | counted
    steps = {256: 195, 512: 97, 1024: 48}
    for row in rows:
        launches = expected[row["case"]] * steps[row["batch"]]
        assert row["launches"] == launches, (
            "run python benchmarks/roofline.py, and copy its tables to docs/speed.md"
        )


@pytest.mark.parametrize("options", ["--peak=0", "--launch=5", "--gpu=unknown"])
def test_invalid_device_options_exit_with_error(roofline, options, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["roofline.py", options])
    with pytest.raises(SystemExit):
        roofline.main()
    assert "error: " in capsys.readouterr().err
