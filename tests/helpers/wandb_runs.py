"""Runs as the stand-in for the W&B server stores them."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

ENTITY = "tester"
HISTORY = "wandb-history.jsonl"
EVENTS = "wandb-events.jsonl"
SUMMARY = "wandb-summary.json"

JSON = dict[str, Any]


@dataclass
class MirroredRun:
    """A run as the server stores it."""

    id: str
    project: str
    sweep: str | None = None
    name: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    raw_config: JSON = field(default_factory=dict)
    streams: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    alerts: list[JSON] = field(default_factory=list)
    starts: int = 0
    """Number of times that a client started or resumed the run."""
    pending: bool = False
    """An agent was given the run, and has not started it yet."""
    exit_code: int | None = None
    preempting: bool = False
    last_heartbeat: float = field(default_factory=time.monotonic)
    crash_after: float = 300
    """Seconds without a heartbeat after which the run is lost; five minutes at W&B."""

    def start(self) -> None:
        """Start the run, or resume it after it ended."""
        if self.pending or self.state not in ("running", "preempting"):
            self.starts += 1
            self.pending, self.preempting, self.exit_code = False, False, None
        self.last_heartbeat = time.monotonic()

    def hand_out(self) -> None:
        """Wait for an agent's process to start the run."""
        self.pending, self.preempting, self.exit_code = True, False, None
        self.last_heartbeat = time.monotonic()

    @property
    def state(self) -> str:
        """The state by W&B's rules; ``"pending"`` until an agent's process has started the run."""
        if self.exit_code == 0:
            return "finished"
        if self.exit_code is not None:
            return "preempted" if self.preempting else "failed"
        if time.monotonic() - self.last_heartbeat > self.crash_after:
            return "preempted" if self.preempting else "crashed"
        if self.pending:
            return "pending"
        return "preempting" if self.preempting else "running"

    @property
    def config(self) -> JSON:
        """The config without the client's own entry, ``_wandb``."""
        return {key: item["value"] for key, item in self.raw_config.items() if key != "_wandb"}

    @property
    def metrics(self) -> list[JSON]:
        """The definitions of metrics, as the client encodes them."""
        return list(self.raw_config.get("_wandb", {}).get("value", {}).get("m", []))

    @property
    def history(self) -> list[JSON]:
        """The logged rows."""
        return [json.loads(line) for line in self.streams.get(HISTORY, ())]

    @property
    def summary(self) -> JSON:
        """The last values, or what was set in their place."""
        return dict(json.loads((self.streams.get(SUMMARY) or ["{}"])[-1]))


def project_node(name: str) -> JSON:
    """Return the fields of a project that the client requests."""
    return {"id": name, "internalId": name, "name": name, "entity": {"id": ENTITY, "name": ENTITY}}
