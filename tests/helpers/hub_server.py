"""A stand-in for the Hugging Face Hub on the loopback interface: repositories, commits and downloads.

It answers the requests that huggingface_hub sends while a repository is created, a folder is uploaded in one
commit and a file is downloaded.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from loopback import Handler, serving

TOKEN = "hf_" + "a" * 34
OWNER = "somebody"


class HubServer:
    """The repositories of the server.

    Args:
        url: its address.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        """Files by name, by revision, by repository."""
        self.private: dict[str, bool] = {}
        self.downloads: list[str] = []
        """Paths of the files that were downloaded."""

    def add(self, name: str, files: dict[str, bytes], revision: str = "main") -> None:
        """Add a public repository, or a revision of one."""
        self.repositories.setdefault(name, {})[revision] = files
        self.private.setdefault(name, False)

    def post(self, path: str, body: bytes) -> tuple[int, Any]:
        """Answer a request of a user who owns the repositories of `OWNER` alone."""
        if path == "api/repos/create":
            request = json.loads(body)
            name = f"{request['organization']}/{request['name']}"
            answer = {"url": f"{self.url}/{name}"}
            if name in self.repositories:
                return 409, answer | {"error": "You already created this model repo"}
            if request["organization"] != OWNER:
                return 403, {"error": "You don't have the rights to create a model under this namespace"}
            self.add(name, {})
            self.private[name] = request.get("visibility") == "private" or request.get("private") is True
            return 200, answer
        if path == "api/validate-yaml":
            _, front_matter, _ = json.loads(body)["content"].split("---\n", 2)
            if yaml.safe_load(front_matter).get("license", "mit") not in ("apache-2.0", "mit"):
                return 400, {"errors": [{"message": '"license" must be one of [apache-2.0, mit]'}]}
            return 200, {"errors": [], "warnings": []}
        _, _, owner, repository, action, revision = path.split("/")
        name = f"{owner}/{repository}"
        if owner != OWNER:
            return 403, {"error": "Forbidden"}
        if action == "preupload":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return 200, {"files": files}
        assert action == "commit"
        header, *entries = [json.loads(line) for line in body.decode().splitlines()]
        assert header["key"] == "header"
        assert header["value"]["summary"]
        assert {entry["key"] for entry in entries} == {"file"}
        for entry in entries:
            file = entry["value"]
            assert not {"", ".", ".."} & set(file["path"].split("/"))
            self.repositories[name][revision][file["path"]] = base64.b64decode(file["content"], validate=True)
        commit = self.commit(name, revision)
        return 200, {"success": True, "commitOid": commit, "commitUrl": f"{self.url}/{name}/commit/{commit}"}

    def commit(self, name: str, revision: str) -> str:
        """Return the hash of a revision's files."""
        files = sorted(self.repositories[name][revision].items())
        return hashlib.sha1(
            b"".join(part for file, content in files for part in (file.encode(), content))
        ).hexdigest()


class _Handler(Handler):
    hub: HubServer

    def do_POST(self) -> None:
        body = self.body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.send(401, b'{"error": "Invalid username or password."}')
        status, answer = self.hub.post(unquote(urlsplit(self.path).path).lstrip("/"), body)
        return self.send(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).lstrip("/").split("/")
        if parts[:2] == ["api", "models"]:  # of the default branch or, with more parts, of a revision
            name = "/".join(parts[2:4])
            if name not in self.hub.repositories:
                return self.send(404, headers={"X-Error-Code": "RepoNotFound"})
            info = {"id": name, "private": self.hub.private[name], "siblings": [], "tags": []}
            return self.send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        if len(parts) < 5 or parts[2] != "resolve":
            return self.send(404)
        name, revision, file = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        revisions = self.hub.repositories.get(name)
        if revisions is None or self.hub.private[name]:
            return self.send(404, headers={"X-Error-Code": "RepoNotFound"})
        commits = {self.hub.commit(name, each): each for each in revisions}
        revision = commits.get(revision, revision)
        if revision not in revisions:
            return self.send(404, headers={"X-Error-Code": "RevisionNotFound"})
        commit = {"X-Repo-Commit": self.hub.commit(name, revision)}
        if file not in revisions[revision]:
            return self.send(404, headers={"X-Error-Code": "EntryNotFound"} | commit)
        content = revisions[revision][file]
        if self.command == "GET":
            self.hub.downloads.append(f"{name}@{revision}/{file}")
        return self.send(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"'} | commit)

    do_HEAD = do_GET


@contextmanager
def serve() -> Iterator[HubServer]:
    """A server on a free port of the loopback interface, for as long as the context is open."""
    handler: type[_Handler] = type("Handler", (_Handler,), {})
    with serving(handler) as url:
        handler.hub = HubServer(url)
        yield handler.hub


def use(server: HubServer, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub talk to a server and keep its files in a folder, as HF_ENDPOINT and HF_HOME do.

    The library reads these variables when it is imported.
    """
    constants = "huggingface_hub.constants"
    monkeypatch.setattr(f"{constants}.ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    for module in (constants, "huggingface_hub.file_download"):  # the latter in versions below 1
        monkeypatch.setattr(f"{module}.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", cache)
    monkeypatch.setattr(f"{constants}.HF_TOKEN_PATH", f"{cache}/token")
    monkeypatch.setattr(f"{constants}.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
