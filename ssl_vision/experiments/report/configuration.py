"""The configuration of a run, and the differences between those of several runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ssl_vision.experiments.report.markup import macros
from ssl_vision.experiments.report.page import Section
from ssl_vision.runs.config import as_yaml, named_settings
from ssl_vision.runs.registry import Run

_PLACES = {"name", "runs_dir"}
"""Keys that differ between all runs."""


def section(run: Run) -> Section:
    """List every key with its value, and show config.yaml."""
    values = flat(run.config)
    lead = "Settings of model, data and trainer can be passed to ssl-vision fit as --KEY VALUE."
    file = macros.details("config.yaml", Markup('<pre tabindex="0">{}</pre>').format(as_yaml(run.config)))
    content = macros.table(["key", "value"], list(values.items()), caption="Configuration")
    return Section("configuration", "Configuration", lead, macros.details("All keys", content) + file)


def differing(runs: Sequence[Run], names: Sequence[str]) -> Section:
    """List the keys whose values are not the same in all runs."""
    configs = [flat(run.config) for run in runs]
    keys = dict.fromkeys(key for values in configs for key in values if key not in _PLACES)
    differing = [key for key in keys if len({values.get(key) for values in configs}) > 1]
    if not differing:
        content = Markup("<p>All runs have the same configuration.</p>")
    else:
        lines = [[key, *(values.get(key, "–") for values in configs)] for key in differing]
        content = macros.table(["key", *names], lines, caption="Values that differ")
    lead = "These settings are not the same in all runs. A dash means that a run does not have the setting."
    return Section("configuration", "Differences in configuration", lead, content)


def flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that are not null, as text."""
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in named_settings(config)
        if value is not None
    }
