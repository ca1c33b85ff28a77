"""config.yaml read fast and as PyYAML reads it."""

import datetime
import time

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from settings import CONFIGS

from ssl_vision.runs import block
from ssl_vision.runs.block import from_yaml
from ssl_vision.runs.folder import as_yaml

WORDS = [
    "null",
    "Null",
    "~",
    "",
    "yes",
    "No",
    "true",
    "TRUE",
    "on",
    "off",
    "1",
    "-1",
    "1e-3",
    "1.5e10",
    "0x1F",
    "0o7",
]
WORDS += [
    ".5",
    "1_000",
    "1:30",
    ".inf",
    "-.nan",
    "2001-01-01",
    "<<",
    "=",
    "-",
    "- a",
    "a: b",
    "a:",
    "#a",
    "a #b",
    "?",
]
WORDS += [
    "'",
    '"',
    "it's",
    "{}",
    "[a]",
    "&a",
    "*a",
    "!a",
    "|",
    ">",
    "%",
    "@",
    "`",
    " a",
    "a ",
    "a\nb",
    "a\n",
    "\ta",
]
WORDS += [
    "a" * 200,
    "many words " * 20,
    "some - dashes " * 10,
    "~/data",
    "é",
    "\x85",
    "\u2028",
    "x\x0cy",
    "---",
    "...",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(WORDS)
    | st.just(datetime.date(2001, 1, 1))
)
KEYS = st.text("abcdefgh_./-", min_size=1, max_size=6) | st.sampled_from(WORDS) | st.integers()
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(KEYS, TREES, max_size=4))
def test_whatever_is_written_is_read_as_pyyaml_reads_it(config):
    text = as_yaml(config)
    expected = yaml.safe_load(text)
    assert repr(from_yaml(text)) == repr(expected)


@given(st.text(" -:ab01'\"#\n[]{},.~", max_size=24))
def test_any_text_is_read_as_pyyaml_reads_it_or_refused_as_there(text):
    try:
        expected = yaml.safe_load(text)
    except yaml.YAMLError:
        with pytest.raises(yaml.YAMLError):
            from_yaml(text)
    else:
        assert repr(from_yaml(text)) == repr(expected)


@pytest.mark.parametrize("file", sorted(CONFIGS.rglob("*.yaml")), ids=lambda file: file.name)
def test_shipped_configs(file):
    text = file.read_text(encoding="utf-8")
    assert from_yaml(text) == yaml.safe_load(text)


def test_a_runs_config_is_read_without_pyyaml(tiny_run, monkeypatch):
    text = (tiny_run / "config.yaml").read_text(encoding="utf-8")
    expected = yaml.safe_load(text)
    monkeypatch.setattr(block.yaml, "load", None)
    assert from_yaml(text) == expected


def test_what_is_read_is_ones_own(tiny_run):
    text = "a: []\nb: {}\n"
    from_yaml(text)["a"].append(1)
    assert from_yaml(text) == {"a": [], "b": {}}


def test_it_is_faster_than_pyyaml(tiny_run):
    text = (tiny_run / "config.yaml").read_text(encoding="utf-8")

    def seconds(read):
        taken = []
        for i in range(5):
            start = time.perf_counter()
            for j in range(4):
                read(text.replace("seed_everything: 0", f"seed_everything: {4 * i + j}"))
            taken.append(time.perf_counter() - start)
        return min(taken)

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    assert 3 * seconds(from_yaml) < seconds(lambda text: yaml.load(text, Loader=loader))
