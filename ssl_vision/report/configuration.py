"""The configuration of a run, and what differs between several."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ssl_vision.report.markup import folded, table, text
from ssl_vision.report.page import Section
from ssl_vision.runs.folder import as_yaml
from ssl_vision.runs.registry import Run

_PLACES = {"name", "runs_dir"}
"""Keys that differ between any two runs."""


def section(run: Run) -> Section:
    """Every value that is set, by its key, and the file as it is."""
    values = flat(run.config)
    lead = "All values that are set; model, data and trainer can be given back to fit as --KEY VALUE."
    file = folded("config.yaml", f"<pre tabindex=0>{text(as_yaml(run.config))}</pre>")
    content = table(["key", "value"], list(values.items()), caption="Configuration")
    return Section("configuration", "Configuration", lead, folded("All keys", content) + file)


def differing(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """The keys whose values are not the same in all runs."""
    every = [flat(run.config) for run in runs]
    keys = dict.fromkeys(key for values in every for key in values if key not in _PLACES)
    other = [key for key in keys if len({values.get(key) for values in every}) > 1]
    if not other:
        content = "<p>All runs have the same configuration.</p>"
    else:
        lines = [[key, *(values.get(key, "–") for values in every)] for key in other]
        content = table(["key", *names], lines, caption="Values that differ")
    lead = "What was not the same in all runs; everything else was. – is no such key."
    return Section("configuration", "Differences in configuration", lead, content)


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Values by dotted key, without levels of ``init_args``; a class is its name; no key is null."""
    return dict(_flat(config, ""))


def _flat(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        inside = {**value}
        if "class_path" in inside:
            yield key, str(inside.pop("class_path")).rpartition(".")[2]
            inside |= inside.pop("init_args", None) or {}
        for name, item in inside.items():
            yield from _flat(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        yield key, ", ".join(map(str, value))
    elif value is not None:
        yield key, str(value)
