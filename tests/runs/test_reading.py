"""Tests of reading untrusted text files: too large, deeply nested or damaged ones are refused quickly."""

import os
import time

import pytest
import yaml
from settings import CONFIGS

from ssl_vision.errors import InputError
from ssl_vision.runs.reading import parse_yaml, read_json, read_text, read_yaml

ALIASES = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(20))
MERGES = "m0: &m0 {a: 1}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 20)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 60))

HOSTILE = {
    "aliases": (ALIASES, "contains itself, or more than 10000 values"),
    "merge keys": (MERGES, "contains itself, or more than 10000 values"),
    "itself": ("a: &a {b: *a}", "contains itself, or more than 10000 values"),
    "many values": (f"[{'1,' * 20_000}1]", "contains itself, or more than 10000 values"),
    # PyYAML 6.0.4 refuses this itself, while it looks ahead for a key
    "brackets": ("[" * 100_000, "(nested more than 50 deep|line 1: exceeded maximum nesting depth)"),
    "braces": ("{a: " * 100_000, "nested more than 50 deep"),
    "indentation": ("".join(f"{' ' * n}a:\n" for n in range(1000)), "nested more than 50 deep"),
    "aliases of aliases": (CHAIN, "nested more than 50 deep"),
    "a long word": ("a: " + "x" * 2**21, "longer than 1 MiB"),
    "a null byte": ('a: "b\\0"', r"'b\\x00' contains a null byte"),
    "digits": ("a: " + "9" * 5000, r"not a YAML file \(ValueError\)"),
    "no date": ("a: 2020-13-45", r"not a YAML file \(ValueError\)"),
    "code": ("a: !!python/name:os.system", "line 1: could not determine a constructor"),
    "an unknown alias": ("a: *b", "line 1: found undefined alias"),
    "an open bracket": ("a: 1\nb: [", "line 2: "),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_within_a_second(name):
    text, reason = HOSTILE[name]
    begin = time.process_time()
    with pytest.raises(InputError, match=f"^here(: |, ){reason}"):
        parse_yaml(text, where="here")
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("file", sorted(CONFIGS.rglob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_configs_are_read_as_by_pyyaml(file):
    assert read_yaml(file) == yaml.safe_load(file.read_text())
    assert read_yaml(file, words=True) == yaml.load(file.read_text(), Loader=yaml.BaseLoader)


def test_aliases_and_merge_keys_within_the_limits_are_read():
    text = "a: &a {x: 1, y: &y [2, 3]}\nb: {<<: *a, z: *y}\nc: [*a, *a]\n"
    assert parse_yaml(text, where="") == yaml.safe_load(text)


def test_yaml_limits_of_size_and_depth_are_enforced():
    below = f"[{', '.join(['1'] * 9_998)}]"
    assert len(parse_yaml(below, where="")) == 9_998
    with pytest.raises(InputError, match="more than 10000"):
        parse_yaml(f"[{', '.join(['1'] * 10_000)}]", where="")
    assert parse_yaml("[" * 50 + "]" * 50, where="")
    with pytest.raises(InputError, match="50 deep"):
        parse_yaml("[" * 51 + "]" * 51, where="")


@pytest.mark.timeout(10)
def test_read_text_refuses_special_binary_and_large_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    for name, reason in {
        "pipe": "is not a regular file",
        ".": "is not a regular file",
        "absent": r"cannot be read \(No such file or directory\)",
        "loop": r"cannot be read \(Too many levels",
        "x" * 300: r"cannot be read \(File name too long\)",
        "binary": "is not a text file",
        "sparse": "is larger than 4 MiB",
    }.items():
        with pytest.raises(InputError, match=reason):
            read_text(tmp_path / name)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", '{"a":' * 100_000, "9" * 5000])
def test_hostile_json_is_refused(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=r"x\.json is not a JSON file"):
        read_json(tmp_path / "x.json")
