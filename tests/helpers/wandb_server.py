"""A stand-in for the W&B server on the loopback interface: online runs, a grid sweep and uploads.

It answers the operations that the W&B client sends while a run is logged and resumed, an agent works on a
sweep, and an artifact is uploaded. An operation that is not supported gets a GraphQL error and is recorded.
The server is also the client's proxy, so that a request to any other host is recorded and refused.
"""

import base64
import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import yaml
from loopback import Handler, serving

ENTITY = "tester"
PROJECT = "ssl_vision"
KEY = "0123456789abcdef" * 2 + "01234567"

JSON = dict[str, Any]


@dataclass
class OnlineRun:
    """A run as the server stores it."""

    id: str
    project: str
    name: str | None = None
    group: str | None = None
    raw_config: JSON = field(default_factory=dict)
    streams: dict[str, list[str]] = field(default_factory=dict)
    alerts: list[JSON] = field(default_factory=list)
    cell: JSON | None = None
    """Options that a sweep chose for the run."""
    starts: int = 0
    """Number of times that a client started or resumed the run."""
    state: str = "pending"
    """State by W&B's rules; ``"pending"`` until an agent's process has started the run."""
    preempting: bool = False

    @property
    def config(self) -> JSON:
        """The config without the client's own entry, ``_wandb``."""
        return {key: item["value"] for key, item in self.raw_config.items() if key != "_wandb"}

    @property
    def history(self) -> list[JSON]:
        """The logged rows."""
        return [json.loads(line) for line in self.streams.get("wandb-history.jsonl", ())]

    @property
    def summary(self) -> JSON:
        """The last values, or what was set in their place."""
        return dict(json.loads((self.streams.get("wandb-summary.json") or ["{}"])[-1]))


class WandbServer:
    """The server's data and its answers; `serve` starts one.

    Args:
        url: its address.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.runs: dict[str, OnlineRun] = {}
        self.artifacts: dict[str, JSON] = {}
        """Collection, type and aliases of each artifact by id, and if it is committed."""
        self.files: dict[str, bytes] = {}
        self.sweep: JSON = {}
        """Id, project and config of the sweep, and its cells that no agent has been given."""
        self.unsupported: list[tuple[str, JSON]] = []
        """Requests that got an error."""
        self.refused: list[str] = []
        """Requests to other hosts, and those without the key."""
        self.lock = threading.Lock()

    def environment(self, folder: Path) -> dict[str, str]:
        """Return variables with which a client talks only to this server and writes only to a folder."""
        names = ("CACHE", "CONFIG", "DATA", "ARTIFACT")
        return {
            **{f"WANDB_{name}_DIR": str(folder / name.lower()) for name in names},
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), self.url),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": KEY,
            "WANDB_MODE": "online",
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_DISABLE_GIT": "true",
            "NETRC": str(folder / "netrc"),
        }

    def on_viewer(self, variables: JSON) -> JSON:
        names = dict.fromkeys(("id", "entity", "username", "name"), ENTITY)
        teams = {"edges": [{"node": {"name": ENTITY}}]}
        viewer = {"email": "", "flags": "{}", "admin": False, "teams": teams, "apiKeys": {"edges": []}}
        return {"viewer": names | viewer}

    on_get_viewer = on_get_default_entity = on_viewer

    def on_server_features_query(self, variables: JSON) -> JSON:
        return {"serverInfo": {"features": []}}

    def on_organization_core_weave_organization_id(self, variables: JSON) -> JSON:
        return {"entity": {"organization": None}}

    def on_run_resume_status(self, variables: JSON) -> JSON:
        run, bucket = self.runs.get(variables["name"]), None
        if run is not None:
            history = run.streams.get("wandb-history.jsonl", [])
            events = run.streams.get("wandb-events.jsonl", [])
            client_entry = run.raw_config.get("_wandb", {}).get("value", {})
            bucket = _bucket(run) | {
                "summaryMetrics": json.dumps(run.summary),
                "logLineCount": len(run.streams.get("output.log", ())),
                "eventsLineCount": len(events),
                "historyTail": json.dumps(history[-1:]),
                "eventsTail": json.dumps(events[-1:]),
                "tags": [],
                "notes": None,
                "wandbConfig": json.dumps({"t": client_entry["t"]} if "t" in client_entry else {}),
            }
        return {"model": {**_project(variables["project"]), "bucket": bucket}}

    def on_upsert_bucket(self, variables: JSON) -> JSON:
        run_id = variables.get("name") or variables["id"]
        run = self.runs.setdefault(run_id, OnlineRun(run_id, variables.get("project") or "uncategorized"))
        inserted = run.starts == 0
        if run.state != "running":
            run.starts += 1
            run.state, run.preempting = "running", False
        run.name = variables.get("displayName") or run.name or run.id
        run.group = variables.get("groupName") or run.group
        run.raw_config = json.loads(variables.get("config") or "null") or run.raw_config
        if variables.get("summaryMetrics"):
            run.streams["wandb-summary.json"] = [variables["summaryMetrics"]]
        return {"upsertBucket": {"bucket": _bucket(run), "inserted": inserted}}

    def file_stream(self, run_id: str, body: JSON) -> None:
        """Store lines of history, events, summary and output, and the final state of the run."""
        run = self.runs[run_id]
        for name, chunk in (body.get("files") or {}).items():
            lines = run.streams.setdefault(name, [])
            offset = chunk.get("offset", 0)
            lines[offset : offset + len(chunk["content"])] = chunk["content"]
        run.preempting = run.preempting or bool(body.get("preempting"))
        if body.get("complete"):
            ended = "preempted" if run.preempting else "failed"
            run.state = ended if body.get("exitcode") else "finished"

    def on_create_run_files(self, variables: JSON) -> JSON:
        files = [
            {"name": name, "uploadUrl": self._file_url(f"{variables['run']}/{name}")}
            for name in variables["files"]
        ]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}

    def on_notify_scriptable_run_alert(self, variables: JSON) -> JSON:
        self.runs[variables["runName"]].alerts.append(variables)
        return {"notifyScriptableRunAlert": {"success": True}}

    def on_create_artifact(self, variables: JSON) -> JSON:
        request = variables["input"]
        name = (request.get("artifactCollectionNames") or [request["artifactCollectionName"]])[0]
        aliases = [item["alias"] for item in request.get("aliases") or ()]
        artifact = {"id": f"artifact{len(self.artifacts)}", "name": name, "aliases": aliases}
        artifact |= {"type": request["artifactTypeName"], "digest": request["digest"], "state": "PENDING"}
        self.artifacts[artifact["id"]] = artifact
        answer = {"id": artifact["id"], "state": "PENDING", "artifactSequence": {"latestArtifact": None}}
        return {"createArtifact": {"artifact": answer}}

    def on_create_artifact_manifest(self, variables: JSON) -> JSON:
        artifact = variables["artifactID"]
        file = {"id": artifact, "uploadUrl": self._file_url(f"{artifact}/manifest"), "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": artifact, "file": file}}}

    def on_update_artifact_manifest(self, variables: JSON) -> JSON:
        created = self.on_create_artifact_manifest({"artifactID": variables["artifactManifestID"]})
        return {"updateArtifactManifest": created["createArtifactManifest"]}

    def on_create_artifact_files(self, variables: JSON) -> JSON:
        edges = []
        for item in variables["input"]["artifactFiles"]:
            path = f"{item['artifactID']}/{item['name']}"
            node = {"storagePath": path, "uploadUrl": self._file_url(path), "uploadHeaders": []}
            artifact = {"id": item["artifactID"]}
            edges.append({"node": {**node, "uploadMultipartUrls": None, "artifact": artifact}})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def on_commit_artifact(self, variables: JSON) -> JSON:
        artifact = self.artifacts[variables["artifactID"]]
        artifact["state"] = "COMMITTED"
        return {"commitArtifact": {"artifact": {"id": artifact["id"], "digest": artifact["digest"]}}}

    def on_artifact_type(self, variables: JSON) -> JSON:
        name = variables["name"].partition(":")[0]
        types = [each["type"] for each in self.artifacts.values() if each["name"] == name]
        return {"project": {"artifact": {"artifactType": {"name": types[-1]}} if types else None}}

    def on_artifact_by_id(self, variables: JSON) -> JSON:
        artifact = self.artifacts[variables["id"]]
        sequence = {"__typename": "ArtifactSequence", "name": artifact["name"], "project": _project(PROJECT)}
        node = dict.fromkeys(("description", "historyStep", "commitHash", "updatedAt", "metadata"))
        node |= {"__typename": "Artifact", "versionIndex": 0, "createdAt": "2026-01-01T00:00:00Z"}
        node |= {"aliases": [], "tags": [], "ttlDurationSeconds": -2, "ttlIsInherited": True}
        node |= {"artifactSequence": sequence, "artifactType": {"name": artifact["type"]}, "size": 0}
        node |= {"fileCount": 1} | {key: artifact[key] for key in ("id", "state", "digest")}
        return {"artifact": node}

    def on_artifact_membership_by_name(self, variables: JSON) -> JSON:
        return {"project": {"artifactCollectionMembership": None}}

    def on_client_id_mapping(self, variables: JSON) -> JSON:
        return {"clientIDMapping": None}

    def on_upsert_sweep(self, variables: JSON) -> JSON:
        if not self.sweep:
            config = yaml.safe_load(variables["config"])
            choices = [item.get("values") or [item["value"]] for item in config["parameters"].values()]
            cells = [
                dict(zip(config["parameters"], cell, strict=True)) for cell in itertools.product(*choices)
            ]
            self.sweep = {
                "id": "sweep0",
                "project": variables["projectName"],
                "config": config,
                "cells": cells,
            }
        answer: JSON = {"id": "sweep0", "name": "sweep0", "state": "RUNNING"}
        answer["project"] = _project(self.sweep["project"])
        return {"upsertSweep": {"sweep": answer, "configValidationWarnings": []}}

    def on_sweep_with_runs(self, variables: JSON) -> JSON:
        answer: JSON = {"id": "sweep0", "name": "sweep0", "state": "RUNNING", "method": "grid"}
        runs = [{"node": {"name": run.id, "state": run.state}} for run in self.runs.values()]
        answer |= {"config": yaml.dump(self.sweep["config"]), "runs": {"edges": runs}}
        return {"project": {"sweep": answer}}

    def on_create_agent(self, variables: JSON) -> JSON:
        return {"createAgent": {"agent": {"id": "agent0"}}}

    def on_heartbeat(self, variables: JSON) -> JSON:
        """Have an idle agent resume a preempted run, run a new cell, or exit."""
        commands: list[JSON] = []
        if not json.loads(variables["runState"]):
            kind, run = "resume", next((run for run in self.runs.values() if run.state == "preempted"), None)
            if run is None and self.sweep["cells"]:
                kind, run = "run", OnlineRun(f"cell{len(self.runs)}", self.sweep["project"])
                self.runs[run.id], run.cell = run, self.sweep["cells"].pop(0)
            if run is None:
                commands = [{"type": "exit"}]
            else:
                arguments = {name: {"value": value} for name, value in (run.cell or {}).items()}
                program = self.sweep["config"]["program"]
                commands = [{"type": kind, "run_id": run.id, "program": program, "args": arguments}]
        return {"agentHeartbeat": {"agent": {"id": "agent0"}, "commands": json.dumps(commands)}}

    def graphql(self, body: JSON) -> JSON:
        """Answer an operation, such as UpsertBucket by the method ``on_upsert_bucket``."""
        match = re.search(r"(?:query|mutation)\s+(\w+)", body["query"])
        name = body.get("operationName") or (match[1] if match else "")
        variables = body.get("variables") or {}
        method = "on_" + re.sub(r"(?<=[a-z])(?=[A-Z])|(?<!^)(?=[A-Z][a-z])", "_", name).lower()
        try:
            return {"data": getattr(self, method)(variables)}
        except Exception as error:
            self.unsupported.append((name, {**variables, "error": repr(error)}))
            return {"data": None, "errors": [{"message": f"{name}: {error!r}"}]}

    def _file_url(self, path: str) -> str:
        return f"{self.url}/storage/{quote(path)}"


def _project(name: str) -> JSON:
    return {"id": name, "internalId": name, "name": name, "entity": {"id": ENTITY, "name": ENTITY}}


def _bucket(run: OnlineRun) -> JSON:
    return {
        "id": run.id,
        "name": run.id,
        "displayName": run.name,
        "description": None,
        "config": json.dumps(run.raw_config),
        "sweepName": "sweep0" if run.cell else None,
        "project": _project(run.project),
        "historyLineCount": len(run.streams.get("wandb-history.jsonl", ())),
    }


class _Handler(Handler):
    wandb: WandbServer

    def answer(self) -> None:
        body = self.body()
        address = urlsplit(self.path)
        if self.command == "CONNECT" or address.scheme:
            self.wandb.refused.append(f"{self.command} {self.path}")
            return self.send(403)
        route, _, rest = unquote(address.path).lstrip("/").partition("/")
        with self.wandb.lock:
            if route == "storage":  # as at W&B, the address is enough
                self.wandb.files[rest] = body
                return self.send(200)
            expected = "Basic " + base64.b64encode(f"api:{KEY}".encode()).decode()
            if self.headers.get("Authorization") != expected:
                self.wandb.refused.append(f"{self.command} {self.path} without the key")
                return self.send(401)
            content = {"Content-Type": "application/json"}
            if route == "graphql":
                return self.send(200, json.dumps(self.wandb.graphql(json.loads(body))).encode(), content)
            if route == "files" and rest.endswith("/file_stream"):
                self.wandb.file_stream(rest.split("/")[2], json.loads(body))
                return self.send(200, b"{}", content)
            self.wandb.unsupported.append((f"{self.command} {self.path}", {}))
            return self.send(404)

    do_GET = do_POST = do_PUT = do_CONNECT = answer


@contextmanager
def serve() -> Iterator[WandbServer]:
    """A server on a free port of the loopback interface, for as long as the context is open."""
    handler: type[_Handler] = type("Handler", (_Handler,), {})
    with serving(handler) as url:
        handler.wandb = WandbServer(url)
        yield handler.wandb
