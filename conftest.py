"""Names that the examples in docstrings may use without an import."""

import importlib
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def example_names(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """Add torch and the public names of the package that an example belongs to."""
    if isinstance(request.node, pytest.DoctestItem):
        package = importlib.import_module(".".join(request.node.dtest.globs["__name__"].split(".")[:2]))
        doctest_namespace.clear()
        names = vars(package).get("__all__", ())
        doctest_namespace.update({name: getattr(package, name) for name in names}, torch=torch)
