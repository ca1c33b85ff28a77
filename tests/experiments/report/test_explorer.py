"""Tests that what a page computes from embeddings in a browser matches the objectives and autograd."""

import base64
import shutil

import numpy as np
import pytest
import torch
from browser import Browser, one

from ssl_vision import objectives
from ssl_vision.experiments.report.explorer import SAMPLE, described, offered, quantise
from ssl_vision.main import main
from ssl_vision.metrics import pair_statistics
from ssl_vision.objectives import Anchors

PRESETS = (
    "InfoNCE", "DCL", "DCLPlus", "FlatNCE", "DualTemperature", "MACL", "MACLc", "AdaptiveInfoNCE", "MACLb",
    "MACLICML",
)  # fmt: skip
FRAME = ".explorer"
STEP = 0.1
UNIT = torch.tensor([[1, 0], [0, 1], [0.2, 0.96**0.5], [0.8, 0.6]], dtype=torch.float64)
"""Views of two images, whose positive similarities are 0.2 and 0.6."""
LABELS = torch.tensor([0, 1])


@pytest.fixture(scope="module")
def browser(evaluated_run):
    session = Browser()
    session.open(evaluated_run / "report.html")
    session(f"{one(FRAME)}.scrollIntoView({{behavior: 'instant'}})")
    session.until(f"{one(FRAME)}.explorer !== undefined")
    yield session
    session.driver.quit()


@pytest.fixture(scope="module")
def batch(page):
    """Data of the page, with its normalised embeddings in float64."""
    (data,) = page.blocks["temperature"]["batch"]
    integers = np.frombuffer(base64.b64decode(data["embeddings"]), "<i2").reshape(-1, data["width"])
    rows = torch.from_numpy(integers.astype(np.float64))
    return data | {"unit": rows / rows.norm(dim=1, keepdim=True)}


def forces(objective, unit, anchor):
    """Return temperature, margin, shares, gradient weight, pull, push and net force of one anchor.

    The anchor enters its positive and its negative similarities as two leaves, whose gradients are forces.
    """
    count, half = len(unit), len(unit) // 2
    towards, away = unit.clone().requires_grad_(), unit.clone().requires_grad_()
    positive = (towards * unit.roll(half, 0)).sum(dim=1)
    tau = objective.temperature(positive[:half].detach())
    negatives = away @ unit.T
    negatives.retain_grad()
    own = torch.arange(count) % half
    excluded = own == own[:, None]

    def margin(temperature):
        logits = (negatives / temperature).masked_fill(excluded, -torch.inf)
        return logits.logsumexp(dim=1) - positive / temperature

    losses = objective.margin_loss(Anchors(margin(tau), positive, tau, torch.no_grad()(margin)))
    torch.testing.assert_close(losses.mean(), objective(*unit.chunk(2)), rtol=1e-9, atol=1e-9)
    losses[anchor].backward()
    u = unit[anchor]
    out, back = (-leaf.grad[anchor] for leaf in (away, towards))
    out, back = (force - (force @ u) * u for force in (out, back))
    shares = (negatives[anchor].detach() / tau).masked_fill(excluded[anchor], -torch.inf).softmax(dim=0)
    return {
        "tau": tau, "margin": margin(tau)[anchor], "shares": shares,
        "weight": tau * negatives.grad[anchor].sum(), "pull": back.norm(), "push": out.norm(),
        "net": (out + back).norm(),
    }  # fmt: skip


def stepped(objective, unit):
    """Return unit rows after a step of gradient descent whose root mean square length is STEP."""
    u = unit.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(*u.chunk(2)), u)
    square = gradient.square().sum(dim=1).mean()
    return unit if square == 0 else torch.nn.functional.normalize(unit - STEP / square.sqrt() * gradient)


@pytest.mark.parametrize("tau", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("name", PRESETS)
def test_numbers_on_page_match_objective_and_autograd(browser, batch, name, tau):
    unit, labels = batch["unit"], torch.tensor(batch["labels"])
    objective = getattr(objectives, name)()
    positive = (unit[: len(labels)] * unit[len(labels) :]).sum(dim=1)
    assert batch["objectives"][name]["temperature"] == pytest.approx(float(objective.temperature(positive)))
    objective.temperature = objectives.Constant(tau)
    anchor = 17
    shown = browser(f"""(e => {{
        e.change("{name}", {tau}, {anchor});
        const {{ margins, weights, shares, pull, push, net }} = {one(FRAME)}.explorer.result;
        return {{ tau: e.state.tau, margin: margins[{anchor}], shares: [...shares],
            weight: weights[{anchor}], pull, push, net, margins: [...margins] }};
    }})({one(FRAME)}.explorer)""")
    expected = forces(objective, unit, anchor)
    for key, value in expected.items():
        np.testing.assert_allclose(shown[key], value.detach().numpy(), rtol=1e-5, atol=1e-5, err_msg=key)
    objective(*unit.chunk(2))
    difficulty = torch.tensor(shown["margins"], dtype=torch.float64).sigmoid()
    torch.testing.assert_close(difficulty, objective.anchor_weights(), rtol=1e-5, atol=1e-5)

    indices = torch.arange(SAMPLE) * len(labels) // SAMPLE
    sample = unit[torch.cat([indices, indices + len(labels)])]
    place = [round(8 * power) for power in batch["logarithms"]].index(round(8 * np.log10(tau)))
    after = [axis[place] for axis in batch["objectives"][name]["steps"]]
    for key, rows, values in (("here", sample, batch["here"]), ("after", stepped(objective, sample), after)):
        statistics = pair_statistics(rows[:SAMPLE], labels[indices])
        expected = [float(statistics.uniformity), float(statistics.tolerance)]
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5, err_msg=key)
    assert browser.errors() == []


def test_arrow_ends_at_the_tabulated_step(browser, batch):
    browser(f"{one(FRAME)}.explorer.change('InfoNCE', 0.1, 3)")
    steps = batch["objectives"]["InfoNCE"]["steps"]
    ends = [axis[batch["logarithms"].index(-1)] for axis in steps]
    plane = f"{one('.explorer .plane')}.data"
    browser.until(f"{plane}?.[1].x[1] === {ends[0]}")
    assert browser(f"[{plane}[0].x, {plane}[0].y]") == steps
    assert browser(f"[{plane}[1].x, {plane}[1].y]") == [
        list(pair) for pair in zip(batch["here"], ends, strict=True)
    ]


def test_the_keyboard_moves_the_anchor_and_the_temperature(browser):
    state = f"{one(FRAME)}.explorer.state"
    browser(f"{one(FRAME)}.explorer.change('InfoNCE', 0.1, 3)")
    browser(f"{one('.explorer canvas')}.focus()")
    browser.key("ArrowRight")
    assert browser(f"{state}.anchor") == 4
    assert "image 4," in browser(f"{one('.explorer .who')}.textContent")
    browser(f"{one('.explorer input')}.focus()")
    sentence = browser(f"{one('.explorer .sentence')}.textContent")
    browser.driver.switch_to.active_element.send_keys("\ue012" * 100)  # arrow left
    assert 0.01 < browser(f"{state}.tau") < 0.09
    assert browser(f"{one('.explorer .sentence')}.textContent") != sentence


def test_slider_stays_in_view_while_the_charts_are(browser):
    for part, above in ((".explorer .grid", True), (".explorer .anchor", False)):
        browser(f"{one(part)}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
        assert (browser(f"{one('.explorer .knobs')}.getBoundingClientRect().top") == 0) == above


def test_a_click_on_a_negative_makes_it_the_anchor(browser):
    chosen = browser(f"{one('.explorer .weighed button')}.value")
    browser(f"{one('.explorer .weighed button')}.click()")
    assert browser(f"{one(FRAME)}.explorer.state.anchor") == int(chosen)


def test_quantised_embeddings_have_stated_cosine_error():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, 100, 90, generator=generator) @ torch.randn(90, 300, generator=generator)
    stored, stated = quantise(*z)
    assert stored.shape == (200, 128)
    unit, exact = (torch.nn.functional.normalize(rows.double()) for rows in (stored, z.flatten(0, 1)))
    error = float((unit @ unit.T - exact @ exact.T).abs().max())
    assert stated == pytest.approx(error, abs=1e-7)
    assert error < 1e-3


class Squared(objectives.MarginLoss):
    """A margin loss whose weight, 2 max(0, d), has no upper bound."""

    def forward(self, anchors):
        return anchors.logit_margin.clamp(min=0).square()


def test_weight_without_bound_is_tabulated_for_large_margins():
    table = described(objectives.Contrastive(margin_loss=Squared()), UNIT, LABELS)
    assert np.interp(100.0, table["knots"], table["values"]) == pytest.approx(200.0)
    assert table["says"] == "a function of its logit margin d"


def test_only_objectives_that_the_page_can_compute_are_offered():
    assert offered(None, UNIT, LABELS).keys() == set(PRESETS)
    assert described(objectives.ArcCon(), UNIT, LABELS) is None
    assert described(objectives.DCLW(), UNIT, LABELS) is None  # its pull is not its push
    assert described(objectives.BarlowTwins(), UNIT, LABELS) is None
    assert described(objectives.MACL(), UNIT, LABELS)["temperature"] == pytest.approx(0.1 * 2**0.4)
    own = offered(objectives.InfoNCE(temperature=objectives.LinearInEpoch(base=0.3)), UNIT, LABELS)
    assert [*own][-1] == "InfoNCE of this run"
    assert own["InfoNCE of this run"]["temperature"] == pytest.approx(0.3)
    assert [*offered(objectives.InfoNCE(), UNIT, LABELS)] == [*offered(None, UNIT, LABELS)]
    says = {name: each["says"] for name, each in own.items()}
    assert says["InfoNCE"] == "W"
    assert says["MACL"] == "1"
    assert says["DualTemperature"] == "W at τ = 1"


@pytest.mark.long
def test_explorers_of_two_runs_share_anchor_and_list_differences(browser, evaluated_run, tmp_path):
    other = shutil.copytree(evaluated_run, tmp_path / "other")
    assert main(["report", str(evaluated_run), str(other), f"--output={tmp_path / 'pair.html'}"]) == 0
    browser.open(tmp_path / "pair.html")
    frames = "[...document.querySelectorAll('.explorer')]"
    browser(f"{one(FRAME)}.scrollIntoView({{behavior: 'instant'}})")
    browser.until(f"{frames}.every(e => e.explorer)")
    browser(f"{one(FRAME)}.explorer.choose(9)")
    assert browser(f"{frames}.map(e => e.explorer.state.anchor)") == [9, 9]
    shown = "document.querySelectorAll('.differences button').length"
    assert browser(shown) == 0
    browser(f"{frames}[1].explorer.change('InfoNCE', 0.01)")
    browser(f"{frames}[0].explorer.change('DualTemperature')")  # with a longer sentence
    first, second = browser(f"{frames}.map(e => e.querySelector('canvas').getBoundingClientRect().top)")
    assert first == second
    browser(f"{frames}[0].explorer.change('InfoNCE', 0.1)")
    first, second = browser(f"{frames}.map(e => [...e.explorer.result.byImage])")
    heavier = browser("document.querySelectorAll('.differences .weighed')[1].querySelector('button').value")
    assert int(heavier) == int(np.argmax(np.subtract(second, first)))
    assert browser.errors() == []
