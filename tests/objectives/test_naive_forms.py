"""Tests of objectives against the naive forms in their docstrings, in float64."""

import inspect
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ssl_vision import objectives as o

CLASSES = [cls for cls in vars(o).values() if isinstance(cls, type) and issubclass(cls, o.Objective)]
WITHOUT = {o.Objective, o.TwoViews, o.Contrastive, o.RECLAIM}
"""Base classes, and an objective with a trained critic and a memory of the images."""

OTHERS: dict[type, list[dict[str, Any]]] = {
    o.HardestTriplet: [{"metric": metric, "margin": 0.7} for metric in ("product", "euclidean", "angle")],
    o.MACLICML: [{"threshold": 0.3}],
}
"""Options without a default value, or with 0 as default."""


def naive_form(cls):
    """Return the code below the heading in the class's own docstring, or None without it."""
    block = re.search(r"Naive form:\n    ```python\n(.*?)\n    ```", inspect.cleandoc(cls.__doc__), re.S)
    return block and inspect.cleandoc(block[1])


def options(cls):
    """Yield the default options at temperature 0.1, and others at temperature 0.5."""
    for temperature, factor in ((0.1, 1.0), (0.5, 0.8)):
        defaults = {name: p.default for name, p in inspect.signature(cls).parameters.items()}
        numbers = {name: factor * value for name, value in defaults.items() if isinstance(value, float)}
        for others in OTHERS.get(cls, [{}]):
            yield numbers | ({"temperature": temperature} if "temperature" in numbers else {}) | others


def value_and_gradients(loss, *embeddings):
    return torch.stack([loss.expand_as(embeddings[0]), *torch.autograd.grad(loss, embeddings)])


@pytest.mark.parametrize(
    ("cls", "given"),
    [(cls, given) for cls in CLASSES if cls not in WITHOUT for given in options(cls)],
    ids=lambda value: value.__name__ if isinstance(value, type) else " ".join(map(str, value.values())),
)
def test_objective_equals_its_naive_form(cls, given):
    for seed, (n, width) in enumerate([(7, 5), (9, 12), (2, 3)]):
        random = torch.Generator().manual_seed(seed)
        z1, noise = torch.randn(2, n, width, generator=random, dtype=torch.float64)
        z1.requires_grad_()
        z2 = (3 * z1 + 2 * noise).detach().requires_grad_()
        inputs = {"labels": torch.arange(n) % 3} if "labels" in cls.required_inputs else {}
        names = {"torch": torch, "F": F, "z1": z1, "z2": z2, **given, **inputs}
        exec(naive_form(cls), names)
        torch.testing.assert_close(
            value_and_gradients(cls(**given)(z1, z2, **inputs), z1, z2),
            value_and_gradients(names["loss"], z1, z2),
            rtol=1e-9,
            atol=1e-9,
        )


@pytest.mark.parametrize("cls", CLASSES)
def test_only_listed_objectives_have_no_naive_form(cls):
    form = naive_form(cls)
    assert (form is None) == (cls in WITHOUT)
    assert form is None or len(form.splitlines()) <= 10
