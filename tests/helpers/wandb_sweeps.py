"""Grid sweeps of the stand-in for the W&B server."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml
from wandb_runs import JSON, MirroredRun, project_node


@dataclass
class Sweep:
    """A grid sweep, its runs in the order in which they were handed out."""

    id: str
    project: str
    config: JSON
    cells: list[JSON]
    state: str = "RUNNING"
    handouts: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of agent and run, one for each time that a run was handed out."""
    cells_by_run: dict[str, JSON] = field(default_factory=dict)
    """The cell of each run."""


class SweepStore:
    """The sweeps and agents, and the answers to their requests.

    Args:
        runs: runs by id, to which those of the sweeps are added.
        crash_after: seconds without a heartbeat after which a run is lost.
    """

    def __init__(self, runs: dict[str, MirroredRun], crash_after: float) -> None:
        self.sweeps: dict[str, Sweep] = {}
        self.agents: dict[str, str] = {}
        """Sweeps by agent."""
        self._runs = runs
        self._crash_after = crash_after

    def on_upsert_sweep(self, variables: JSON) -> JSON:
        sweep = self.sweeps.get(variables.get("id") or "")
        if sweep is None:
            config = yaml.safe_load(variables["config"])
            if config["method"] != "grid":
                raise ValueError("only grid sweeps are supported")
            project = variables.get("projectName") or "uncategorized"
            sweep = Sweep(f"sweep{len(self.sweeps)}", project, config, list(_grid(config["parameters"])))
            self.sweeps[sweep.id] = sweep
        sweep.state = variables.get("state") or sweep.state
        answer = {
            "id": sweep.id,
            "name": sweep.id,
            "state": sweep.state,
            "project": project_node(sweep.project),
        }
        return {"upsertSweep": {"sweep": answer, "configValidationWarnings": []}}

    def on_sweep_with_runs(self, variables: JSON) -> JSON:
        sweep = self.sweeps.get(variables["sweep"])
        if sweep is None:
            return {"project": {"sweep": None}}
        answer = {"id": sweep.id, "name": sweep.id, "state": sweep.state, "config": yaml.dump(sweep.config)}
        nodes = [{"node": {"name": run, "state": self._runs[run].state}} for run in sweep.cells_by_run]
        return {"project": {"sweep": {**answer, "method": "grid", "runs": {"edges": nodes}}}}

    def on_create_agent(self, variables: JSON) -> JSON:
        agent = f"agent{len(self.agents)}"
        self.agents[agent] = variables["sweep"]
        return {"createAgent": {"agent": {"id": agent}}}

    def on_heartbeat(self, variables: JSON) -> JSON:
        agent = variables["id"]
        idle = not json.loads(variables["runState"])
        commands = self._commands(agent, self.sweeps[self.agents[agent]]) if idle else []
        return {"agentHeartbeat": {"agent": {"id": agent}, "commands": json.dumps(commands)}}

    def _commands(self, agent: str, sweep: Sweep) -> list[JSON]:
        """Return what an idle agent does next: resume a preempted run, run a new cell, wait, or exit.

        The agent waits while the run of another agent may still be preempted. A run that its process has not
        started when its agent is idle again has crashed.
        """
        for run, holder in {run: holder for holder, run in sweep.handouts}.items():
            if holder == agent and self._runs[run].state == "pending":
                self._runs[run].last_heartbeat = -math.inf
        if sweep.state == "PAUSED":
            return []
        if sweep.state == "RUNNING":
            states = {run: self._runs[run].state for run in sweep.cells_by_run}
            for run, state in states.items():
                if state == "preempted":
                    return [self._hand_out(agent, sweep, run, "resume")]
            if len(states) < len(sweep.cells):
                new = MirroredRun(f"{sweep.id}cell{len(states)}", sweep.project, sweep.id)
                new.crash_after = self._crash_after
                self._runs[new.id] = new
                sweep.cells_by_run[new.id] = sweep.cells[len(states)]
                return [self._hand_out(agent, sweep, new.id, "run")]
            if {"pending", "running", "preempting"} & set(states.values()):
                return []
            sweep.state = "FINISHED"
        return [{"type": "exit"}]

    def _hand_out(self, agent: str, sweep: Sweep, run: str, kind: str) -> JSON:
        sweep.handouts.append((agent, run))
        self._runs[run].hand_out()
        arguments = {name: {"value": value} for name, value in sweep.cells_by_run[run].items()}
        return {"type": kind, "run_id": run, "program": sweep.config.get("program"), "args": arguments}


def _grid(parameters: Mapping[str, JSON]) -> Iterator[JSON]:
    """Yield the cells of a grid of parameters with ``value`` or ``values``."""
    choices = [item.get("values") or [item["value"]] for item in parameters.values()]
    for cell in itertools.product(*choices):
        yield dict(zip(parameters, cell, strict=True))
