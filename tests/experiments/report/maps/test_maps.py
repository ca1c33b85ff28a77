"""Tests of the maps against the closed forms of the papers."""

import json
import math
import re

import numpy as np
import pytest
import torch

from ssl_vision.errors import InputError
from ssl_vision.experiments.report.gradient_factors import gradient_factors, scaling
from ssl_vision.experiments.report.maps import angles, run, simulated
from ssl_vision.objectives import (
    DCL,
    DCLW,
    MACL,
    MAT,
    MET,
    MPT,
    ArcCon,
    DCLPlus,
    DualTemperature,
    FlatNCE,
    InfoNCE,
    MACLc,
)

TAU = 0.1
OBJECTIVES = [
    InfoNCE(), DCL(), DCLPlus(), FlatNCE(), MACLc(), DualTemperature(), MPT(), MET(), MAT(), ArcCon(),
]  # fmt: skip


def closed_form(objective, near, far):
    """Return gate, largest share of the weight and ratio of an anchor with these angles, in plain Python."""
    s, hardest = math.cos(near), min(far)
    if isinstance(objective, (MPT, MET, MAT)):
        if isinstance(objective, MPT):
            is_open, ratio = s - math.cos(hardest) < 0.23, 1
        elif isinstance(objective, MET):
            close, away = (math.sqrt(2 - 2 * math.cos(x)) for x in (near, hardest))
            is_open, ratio = away - close < 0.45, away / close
        else:
            is_open, ratio = hardest - near < 0.15 * math.pi, math.sin(hardest) / math.sin(near)
        return float(is_open), 1, ratio
    tau, turn = (TAU * 2**s if isinstance(objective, MACLc) else TAU), math.radians(10)
    turned = math.cos(near + turn) if isinstance(objective, ArcCon) else s

    def w(tau):
        total = sum(math.exp(math.cos(x) / tau) for x in far)
        return total / (total + math.exp(turned / tau))

    gate = {InfoNCE: w(tau), ArcCon: w(tau), MACLc: 2 - s, DualTemperature: w(1.0)}.get(type(objective), 1)
    if isinstance(objective, DCLPlus):
        gate = float(w(tau) > 0.5)
    weights = [math.exp(math.cos(x) / tau) for x in far]
    ratio = math.sin(near + turn) / math.sin(near) if isinstance(objective, ArcCon) else 1
    return gate, max(weights) / sum(weights), ratio


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: type(objective).__name__)
def test_terms_match_closed_forms(objective):
    g = torch.Generator().manual_seed(0)
    gates = []
    for _ in range(40):
        near = 0.1 + 0.9 * torch.rand(1, generator=g, dtype=torch.float64)
        far = 0.6 + 2.4 * torch.rand(1, 6, generator=g, dtype=torch.float64)
        gate, share, ratio = closed_form(objective, float(near), far[0].tolist())
        result = gradient_factors(objective, near, far)
        gates.append(gate)
        assert float(result.gate) == pytest.approx(gate, rel=1e-9, abs=1e-15)
        if gate:
            assert float(result.share) == pytest.approx(share, rel=1e-9)
            assert float(result.ratio) == pytest.approx(ratio, rel=1e-9)
    if isinstance(objective, (MPT, MET, MAT, DCLPlus)):
        assert 0 < sum(gates) < 40


def test_weight_of_positive_is_ratio_of_dclw():
    near, far = torch.tensor([0.3, 0.9], dtype=torch.float64), torch.ones(2, 5, dtype=torch.float64)
    result = gradient_factors(DCLW(), near, far)
    pulls = [math.exp(math.cos(x) / 0.5) for x in (0.3, 0.9)]
    weight = [2 - 2 * pull / sum(pulls) for pull in pulls]
    assert result.gate.tolist() == pytest.approx([1, 1])
    assert result.ratio.tolist() == pytest.approx(weight)


@pytest.mark.parametrize(
    ("near", "expected"),
    [
        (0.1, [0.992, 0.975, 0.881, 0.491, 0.082, 0.006, 0.0003, 0]),
        (0.2, [0.9995, 0.9985, 0.9922, 0.943, 0.603, 0.095, 0.006, 0]),
    ],
)
def test_gate_of_equal_negatives_has_its_threshold_at_tau_log_k(near, expected):
    """W = σ((cos θ⁻ − cos θ⁺)/τ + log 127) at τ = 0.05."""
    far = torch.tensor([0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5], dtype=torch.float64) * math.pi
    positive = torch.full((8,), near * math.pi, dtype=torch.float64)
    gate = gradient_factors(InfoNCE(temperature=0.05), positive, far[:, None].expand(8, 127)).gate
    assert gate.tolist() == pytest.approx(expected, abs=1e-3)
    exact = [1 / (1 + math.exp((math.cos(near * math.pi) - math.cos(x)) / 0.05) / 127) for x in far]
    assert gate.tolist() == pytest.approx(exact, rel=1e-9)


def test_scaling_matches_figure_3():
    keys = torch.tensor([10, 1e3, 1e6], dtype=torch.float64)
    result = scaling(keys[:, None], torch.tensor([0.1, 1.0], dtype=torch.float64))
    assert result[:, 0].tolist() == pytest.approx([2.06e-8, 2.06e-6, 2.06e-3], rel=2e-3)
    assert result[:, 1].tolist() == pytest.approx([k / (k + math.exp(2)) for k in keys.tolist()])


@pytest.mark.parametrize("objective", [InfoNCE(), MET(), MAT()])
def test_gate_and_share_average_draws_and_ratio_uses_mean_angles(objective):
    near, far = (torch.tensor(axis, dtype=torch.float64) for axis in ([0.02, 0.5, 1.2], [0.6, 1.0, 3.1]))
    maps = simulated(objective, near, far, batches=7, negatives=5, seed=3)
    g = torch.Generator().manual_seed(3)
    draws = (
        torch.randn(7, generator=g, dtype=torch.float64),
        torch.randn(7, 5, generator=g, dtype=torch.float64),
    )
    for p, mean_near in enumerate(near.tolist()):
        for n, mean_far in enumerate(far.tolist()):
            anchors = []
            for x, others in zip(*(draw.tolist() for draw in draws), strict=True):
                folded = [math.acos(math.cos(mean_far + 0.1 * y)) for y in others]
                anchors.append(closed_form(objective, math.acos(math.cos(mean_near + 0.05 * x)), folded))
            assert float(maps.gate[p, n]) == pytest.approx(sum(gate for gate, *_ in anchors) / 7, abs=1e-9)
            shares = [share for gate, share, _ in anchors if gate >= 0.01]
            mean = sum(shares) / len(shares) if shares else math.nan
            assert float(maps.share[p, n]) == pytest.approx(mean, rel=1e-6, nan_ok=True)
            gate, _, ratio = closed_form(objective, mean_near, [mean_far] * 5)
            expected = ratio if gate >= 0.01 and mean_near <= mean_far else math.nan
            assert float(maps.ratio[p, n]) == pytest.approx(expected, nan_ok=True)
    assert maps.share.isnan().any()
    assert maps.ratio.isnan().any()
    assert not maps.ratio.isnan().all()


def test_temperature_of_macl_depends_on_mean_alignment_of_cell():
    positive = torch.tensor([0.2, 0.6], dtype=torch.float64)
    far = torch.tensor([[1.0, 1.3, 2.0]] * 2, dtype=torch.float64)
    tau = 0.1 * 2 ** ((math.cos(0.2) + math.cos(0.6)) / 2)
    result = gradient_factors(MACL(), positive, far)
    assert result.gate.tolist() == pytest.approx([1, 1])
    weights = [math.exp(math.cos(x) / tau) for x in (1.0, 1.3, 2.0)]
    assert result.share.tolist() == pytest.approx([weights[0] / sum(weights)] * 2)


def without_unstable_parts(picture):
    """Remove the last digits of the layout and the names of clip paths, which hash memory addresses."""
    without_names = re.sub(r"\bp[0-9a-f]{10}\b", "p", picture)
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.3f}", without_names)


def test_the_command_writes_a_picture_and_its_numbers(tmp_path, capsys):
    cold = "{class_path: InfoNCE, init_args: {temperature: 0.05}}"
    size = ["--grid", "4", "--batches", "6", "--negatives", "8", "--seed", "1"]
    for name in ("a", "b"):
        run([*size, "--objectives", cold, "MET", "--output", str(tmp_path / f"{name}.svg")])
    assert capsys.readouterr().out.count("written to") == 2
    picture = (tmp_path / "a.svg").read_text(encoding="utf-8")
    again = (tmp_path / "b.svg").read_text(encoding="utf-8")
    assert without_unstable_parts(picture) == without_unstable_parts(again)
    for words in ("InfoNCE", "temperature = 0.05", "MET", "gate GD", "ratio R", "π/2", "mean angle θ⁺"):
        assert words in picture
    numbers = np.load(tmp_path / "a.npz")
    assert numbers["objectives"].tolist() == ["InfoNCE\ntemperature = 0.05", "MET"]
    axes = angles(4)
    for row, objective in enumerate((InfoNCE(temperature=0.05), MET())):
        expected = simulated(objective, *axes, batches=6, negatives=8, seed=1)
        for field, values in expected._asdict().items():
            np.testing.assert_array_equal(numbers[field][row], values)
    keys, temperature = numbers["negatives"][:, None], numbers["temperature"]
    np.testing.assert_allclose(numbers["scaling"], keys / (keys + np.exp(2 / temperature)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "a.svg", "b.npz", "b.svg"]


def test_titles_state_options_and_doubled_ratios(tmp_path):
    parts = {
        "gate": {"class_path": "ssl_vision.objectives.HingeGate", "init_args": {"metric": "angle"}},
        "weight": {"class_path": "SoftmaxOverNegatives", "init_args": {"temperature": 0.05}},
        "detach": "negatives",
    }
    unified = json.dumps({"class_path": "UnifiedGradient", "init_args": parts})
    names = ["ModifiedMHS", "MHE", "SphericalVICReg", "AlignmentUniformity", "DCL", "MPT"]
    warm = [f"{{class_path: InfoNCE, init_args: {{temperature: 0.{i}}}}}" for i in range(1, 7)]
    output = ["--output", str(tmp_path / "maps.svg")]
    run(
        ["--grid", "2", "--batches", "2", "--negatives", "3", *output, "--objectives", unified, *names, *warm]
    )
    titles = np.load(tmp_path / "maps.npz")["objectives"].tolist()
    assert titles[:3] == [
        "UnifiedGradient\ngate = HingeGate(metric = angle)\n"
        "weight = SoftmaxOverNegatives(temperature = 0.05)\ndetach = negatives\nR in effect: 2 × its ratio",
        "ModifiedMHS\nR in effect: 2 × its ratio",
        "MHE",
    ]
    picture = (tmp_path / "maps.svg").read_text(encoding="utf-8")
    for words in (*names, *(f"temperature = 0.{i}" for i in range(1, 7)), "gate = HingeGate(metric ="):
        assert words in picture


def test_unsupported_objective_is_refused_before_drawing(tmp_path, monkeypatch):
    monkeypatch.setattr("ssl_vision.experiments.report.maps.simulated", lambda *_, **__: pytest.fail("drew"))
    with pytest.raises(InputError, match=r"^no map of SupCon"):
        run(["--objectives", "InfoNCE", "SupCon", "--output", str(tmp_path / "maps.svg")])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--output", "maps.txt"], r"^--output maps.txt must end with one of .svg, .png, .pdf$"),
        (["--objectives", "Nonesuch"], "Nonesuch"),
        (["--objectives", "VICReg"], "^no map of VICReg"),
        (["--objectives", "{class_path: MPT, init_args: {margin: -1}}"], "^margin must be above 0, got -1"),
        (["--objectives", "{class_path: MPT"], "class_path"),
        (["--grid", "0"], "grid"),
    ],
)
def test_invalid_options_are_refused(args, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        run([*args])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
