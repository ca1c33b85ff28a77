"""Tests of the ten colours of classes and lines, on light and dark pages and for colour-blind readers."""

import itertools

import numpy as np
import pytest
from pages import css_variables

from ssl_vision.experiments.report import page

SIGHT = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}  # fmt: skip
"""Simulation of colour blindness in linear RGB (Machado, Oliveira & Fernandes 2009)."""


def linear(colours):
    values = np.array([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in colours])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def oklab(rgb):
    """Björn Ottosson's perceptual colour space; 0.02 is about the smallest difference that people see."""
    lms = np.clip(rgb, 0, 1) @ np.transpose([
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ])  # fmt: skip
    return np.cbrt(lms) @ np.transpose([
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ])  # fmt: skip


def contrast(first, second):
    """Return the contrast ratio of two colours, as defined by WCAG."""
    low, high = sorted(float(linear([colour])[0] @ [0.2126, 0.7152, 0.0722]) for colour in (first, second))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_ten_colours_are_distinguishable(theme, sight):
    variables = css_variables()[["light", "dark"].index(theme)]
    colours = [variables[f"c{place}"] for place in range(10)]
    perceived = oklab(linear(colours) @ np.array(SIGHT[sight]).T)
    for i, j in itertools.combinations(range(10), 2):
        distance = float(np.linalg.norm(perceived[i] - perceived[j]))
        assert distance > (0.12 if sight == "normal" else 0.07), (i, j)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_and_text_have_contrast_with_the_page(theme):
    variables = css_variables()[["light", "dark"].index(theme)]
    assert [f"var(--c{place})" for place in range(10)] == list(page.COLOURS)
    for place in range(10):  # WCAG's minimum for graphics; below, for text
        assert contrast(variables[f"c{place}"], variables["paper"]) >= 2.95
    for name in ("ink", "soft", "accent", "good", "bad"):
        assert contrast(variables[name], variables["paper"]) >= 4.5, name
