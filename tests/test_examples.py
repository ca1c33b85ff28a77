"""Tests of the docstring examples: every public class and function has one, and its output is correct."""

import doctest
import importlib
import pkgutil

import pytest
import torch

PACKAGES = {
    name: importlib.import_module(f"ssl_vision.{name}")
    for name in ("objectives", "metrics", "encoders", "methods", "data")
}

OTHERS = [importlib.import_module(f"ssl_vision.{name}") for name in ("evaluation", "runs")]

MODULES = [
    (package, info.name)
    for package in (*PACKAGES.values(), *OTHERS)
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
] + [(importlib.import_module("ssl_vision"), "ssl_vision.descriptions")]


def is_documented(member):
    """True for classes and functions; constants and type aliases have no docstring of their own."""
    return callable(member) and getattr(member, "__module__", "").startswith("ssl_vision.")


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_class_and_function_has_an_example(name):
    members = {member: getattr(PACKAGES[name], member) for member in PACKAGES[name].__all__}
    missing = [
        member
        for member, value in members.items()
        if is_documented(value) and "Example:" not in (value.__doc__ or "")
    ]
    assert missing == []


@pytest.mark.parametrize(("package", "module"), MODULES, ids=[module for _, module in MODULES])
def test_examples_print_what_their_docstrings_say(package, module, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(module)
    public = PACKAGES.get(package.__name__.rpartition(".")[2])
    names = {name: getattr(public, name) for name in public.__all__} if public else {}
    names["torch"] = torch
    runner, output = doctest.DocTestRunner(), []
    for example in doctest.DocTestFinder().find(module, extraglobs=names):
        runner.run(example, out=output.append)
    assert runner.failures == 0, "".join(output)
