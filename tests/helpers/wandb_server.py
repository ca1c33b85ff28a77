"""A stand-in for the W&B server on the loopback interface: online runs, grid sweeps and artifacts.

It answers the operations that the W&B client sends while a run is logged and resumed, a sweep is created and
worked on by agents, and an artifact is uploaded and downloaded. Every operation is recorded, and one that is
not supported gets a GraphQL error. The server is also the client's proxy, so that a request to any other host
is recorded and refused.
"""

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from loopback import Handler, serving
from wandb_artifacts import ArtifactStore
from wandb_runs import ENTITY, EVENTS, HISTORY, JSON, SUMMARY, MirroredRun, project_node
from wandb_sweeps import SweepStore

JSON_TYPE = {"Content-Type": "application/json"}
KEY = "0123456789abcdef" * 2 + "01234567"


class WandbServer:
    """The server's data and its answers; `serve` starts one.

    Args:
        url: its address.
        crash_after: seconds without a heartbeat after which a run is lost; five minutes at W&B.
    """

    def __init__(self, url: str, crash_after: float) -> None:
        self.url = url
        self.runs: dict[str, MirroredRun] = {}
        self.sweep_store = SweepStore(self.runs, crash_after)
        self.artifact_store = ArtifactStore(f"{url}/storage")
        self.operations: list[tuple[str, JSON]] = []
        """Name and variables of every GraphQL operation."""
        self.unsupported: list[tuple[str, JSON]] = []
        """Requests that got an error."""
        self.refused: list[str] = []
        """Requests to other hosts, and those without the key."""
        self.lock = threading.Lock()
        self._crash_after = crash_after

    def environment(self, folder: Path) -> dict[str, str]:
        """Return variables with which a client talks only to this server and writes only to a folder."""
        folders = {
            f"WANDB_{name}_DIR": str(folder / name.lower())
            for name in ("CACHE", "CONFIG", "DATA", "ARTIFACT")
        }
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), self.url)
        return {
            **folders,
            **proxies,
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": KEY,
            "WANDB_MODE": "online",
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_DISABLE_GIT": "true",
            "NETRC": str(folder / "netrc"),
        }

    def on_viewer(self, variables: JSON) -> JSON:
        teams = {"edges": [{"node": {"name": ENTITY}}]}
        viewer = {
            "id": "viewer",
            "entity": ENTITY,
            "username": ENTITY,
            "name": ENTITY,
            "email": "",
            "flags": "{}",
        }
        return {"viewer": {**viewer, "admin": False, "teams": teams, "apiKeys": {"edges": []}}}

    on_get_viewer = on_get_default_entity = on_viewer

    def on_server_features_query(self, variables: JSON) -> JSON:
        return {"serverInfo": {"features": []}}

    def on_organization_core_weave_organization_id(self, variables: JSON) -> JSON:
        return {"entity": {"organization": None}}

    def on_run_resume_status(self, variables: JSON) -> JSON:
        run = self.runs.get(variables["name"])
        bucket = None
        if run is not None:
            history, events = (run.streams.get(name, []) for name in (HISTORY, EVENTS))
            client_entry = run.raw_config.get("_wandb", {}).get("value", {})
            bucket = {
                "id": run.id,
                "name": run.id,
                "displayName": run.name,
                "summaryMetrics": json.dumps(run.summary),
                "logLineCount": len(run.streams.get("output.log", ())),
                "historyLineCount": len(history),
                "eventsLineCount": len(events),
                "historyTail": json.dumps(history[-1:]),
                "eventsTail": json.dumps(events[-1:]),
                "config": json.dumps(run.raw_config),
                "tags": run.tags,
                "notes": None,
                "wandbConfig": json.dumps({"t": client_entry["t"]} if "t" in client_entry else {}),
            }
        return {"model": {**project_node(variables["project"]), "bucket": bucket}}

    def on_upsert_bucket(self, variables: JSON) -> JSON:
        run_id = variables.get("name") or variables["id"]
        project = variables.get("project") or "uncategorized"
        run = self.runs.get(run_id) or MirroredRun(
            run_id, project, crash_after=self._crash_after, pending=True
        )
        self.runs[run_id] = run
        inserted = run.starts == 0
        run.start()
        run.name = variables.get("displayName") or run.name or run.id
        run.group = variables.get("groupName") or run.group
        run.sweep = variables.get("sweep") or run.sweep
        run.tags = variables.get("tags") or run.tags
        run.raw_config = json.loads(variables.get("config") or "null") or run.raw_config
        if variables.get("summaryMetrics"):
            run.streams[SUMMARY] = [variables["summaryMetrics"]]
        bucket = {
            "id": run.id,
            "name": run.id,
            "displayName": run.name,
            "description": None,
            "config": json.dumps(run.raw_config),
            "sweepName": run.sweep,
            "project": project_node(run.project),
            "historyLineCount": len(run.streams.get(HISTORY, ())),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def file_stream(self, run_id: str, body: JSON) -> None:
        """Store lines of history, events, summary and output, and the final state of the run."""
        run = self.runs[run_id]
        run.last_heartbeat = time.monotonic()
        for name, chunk in (body.get("files") or {}).items():
            lines = run.streams.setdefault(name, [])
            offset = chunk.get("offset", 0)
            lines[offset : offset + len(chunk["content"])] = chunk["content"]
        run.preempting = run.preempting or bool(body.get("preempting"))
        if body.get("complete"):
            run.exit_code = body.get("exitcode") or 0

    def on_create_run_files(self, variables: JSON) -> JSON:
        folder = f"{self.url}/run_files/{variables['run']}"
        files = [{"name": name, "uploadUrl": f"{folder}/{quote(name)}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}

    def on_notify_scriptable_run_alert(self, variables: JSON) -> JSON:
        self.runs[variables["runName"]].alerts.append(
            {key: variables.get(key) for key in ("title", "text", "severity")}
        )
        return {"notifyScriptableRunAlert": {"success": True}}

    def graphql(self, body: JSON) -> JSON:
        """Answer an operation, such as UpsertBucket by the method ``on_upsert_bucket``."""
        match = re.search(r"(?:query|mutation)\s+(\w+)", body["query"])
        name = body.get("operationName") or (match[1] if match else "")
        variables = body.get("variables") or {}
        self.operations.append((name, variables))
        method = "on_" + re.sub(r"(?<=[a-z])(?=[A-Z])|(?<!^)(?=[A-Z][a-z])", "_", name).lower()
        stores = (self, self.sweep_store, self.artifact_store)
        handlers = [getattr(store, method) for store in stores if hasattr(store, method)]
        try:
            return {"data": handlers[0](variables)}
        except Exception as error:
            self.unsupported.append((name, {**variables, "error": repr(error)}))
            return {"data": None, "errors": [{"message": f"{name}: {error!r}"}]}


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
            if route in ("storage", "run_files"):
                return self.file(route, rest, body)
            expected = "Basic " + base64.b64encode(f"api:{KEY}".encode()).decode()
            if self.headers.get("Authorization") != expected:
                self.wandb.refused.append(f"{self.command} {self.path} without the key")
                return self.send(401)
            if route == "graphql":
                return self.send(200, json.dumps(self.wandb.graphql(json.loads(body))).encode(), JSON_TYPE)
            if route == "files" and rest.endswith("/file_stream"):
                self.wandb.file_stream(rest.split("/")[2], json.loads(body))
                return self.send(200, b"{}", JSON_TYPE)
            self.wandb.unsupported.append((f"{self.command} {self.path}", {}))
            return self.send(404)

    do_GET = do_POST = do_PUT = do_CONNECT = answer

    def file(self, route: str, path: str, body: bytes) -> None:
        """Store or return a file of a run or of an artifact; as at W&B, the address is enough."""
        store = self.wandb.artifact_store.blobs
        if route == "run_files":
            run, _, path = path.partition("/")
            store = self.wandb.runs[run].files
        if self.command == "PUT":
            store[path] = body
        elif path not in store:
            return self.send(404)
        return self.send(200, b"" if self.command == "PUT" else store[path])


@contextmanager
def serve(*, crash_after: float = 300) -> Iterator[WandbServer]:
    """A server on a free port of the loopback interface, for as long as the context is open."""
    handler: type[_Handler] = type("Handler", (_Handler,), {})
    with serving(handler) as url:
        handler.wandb = WandbServer(url, crash_after)
        yield handler.wandb
