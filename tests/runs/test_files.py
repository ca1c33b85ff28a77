"""Tests of reading text, YAML and JSON files: damaged ones are refused."""

import os

import pytest
import yaml
from settings import CONFIGS

from ssl_vision.errors import InputError
from ssl_vision.runs.files import parse_yaml, read_json, read_text, read_yaml

DAMAGED = {
    "brackets": ("[" * 100_000, "line 1: .* maximum nesting depth"),
    "digits": ("a: " + "9" * 5000, r"not a YAML file \(ValueError\)"),
    "no date": ("a: 2020-13-45", r"not a YAML file \(ValueError\)"),
    "code": ("a: !!python/name:os.system", "line 1: could not determine a constructor"),
    "an unknown alias": ("a: *b", "line 1: found undefined alias"),
    "an open bracket": ("a: 1\nb: [", "line 2: "),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_yaml_is_refused(name):
    text, reason = DAMAGED[name]
    with pytest.raises(InputError, match=f"^here(: |, ){reason}"):
        parse_yaml(text, where="here")


@pytest.mark.parametrize("file", sorted(CONFIGS.rglob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_configs_are_read_as_by_pyyaml(file):
    assert read_yaml(file) == yaml.safe_load(file.read_text())
    assert read_yaml(file, words=True) == yaml.load(file.read_text(), Loader=yaml.BaseLoader)


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
def test_damaged_json_is_refused(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=r"x\.json is not a JSON file"):
        read_json(tmp_path / "x.json")
