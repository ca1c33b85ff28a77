"""Artifacts of the stand-in for the W&B server."""

import base64
import json
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import quote

from wandb_runs import JSON, project_node


@dataclass
class StoredArtifact:
    """One version of an artifact; ``blob`` is the path of its manifest in the storage."""

    id: str
    project: str
    collection: str
    type: str
    digest: str
    version: int
    metadata: str | None
    aliases: list[str]
    state: str = "PENDING"

    @property
    def blob(self) -> str:
        return f"manifests/{self.id}"


class ArtifactStore:
    """The artifacts with their files, and the answers to requests about them.

    Args:
        url: address below which files are uploaded and downloaded.
    """

    def __init__(self, url: str) -> None:
        self.artifacts: list[StoredArtifact] = []
        self.blobs: dict[str, bytes] = {}
        """Contents of files, by the path below the address."""
        self._url = url

    def on_create_artifact(self, variables: JSON) -> JSON:
        request = variables["input"]
        names = request.get("artifactCollectionNames") or [request["artifactCollectionName"]]
        aliases = [item["alias"] for item in request.get("aliases") or ()]
        versions = [
            a for a in self.artifacts if (a.project, a.collection) == (request["projectName"], names[0])
        ]
        same = [a for a in versions if a.digest == request["digest"] and a.state == "COMMITTED"]
        if same:
            artifact = same[-1]
        else:
            artifact = StoredArtifact(
                base64.b64encode(f"Artifact:{len(self.artifacts)}".encode()).decode(),
                request["projectName"],
                names[0],
                request["artifactTypeName"],
                request["digest"],
                len(versions),
                request.get("metadata"),
                [],
            )
            self.artifacts.append(artifact)
        for other in versions:
            other.aliases = [alias for alias in other.aliases if alias not in aliases]
        artifact.aliases = [*artifact.aliases, *(alias for alias in aliases if alias not in artifact.aliases)]
        latest = next(({"id": a.id} for a in reversed(versions) if a.state == "COMMITTED"), None)
        answer = {"id": artifact.id, "state": artifact.state, "artifactSequence": {"latestArtifact": latest}}
        return {"createArtifact": {"artifact": answer}}

    def on_create_artifact_manifest(self, variables: JSON) -> JSON:
        blob = self._artifact(variables["artifactID"]).blob
        file = {"id": blob, "uploadUrl": self._blob_url(blob), "uploadHeaders": []}
        return {"createArtifactManifest": {"artifactManifest": {"id": variables["artifactID"], "file": file}}}

    def on_update_artifact_manifest(self, variables: JSON) -> JSON:
        created = self.on_create_artifact_manifest({"artifactID": variables["artifactManifestID"]})
        return {"updateArtifactManifest": created["createArtifactManifest"]}

    def on_create_artifact_files(self, variables: JSON) -> JSON:
        edges = []
        for item in variables["input"]["artifactFiles"]:
            path = _entry_blob(item["artifactID"], item["name"])
            node = {"storagePath": path, "uploadUrl": self._blob_url(path), "uploadHeaders": []}
            edges.append(
                {"node": {**node, "uploadMultipartUrls": None, "artifact": {"id": item["artifactID"]}}}
            )
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def on_commit_artifact(self, variables: JSON) -> JSON:
        artifact = self._artifact(variables["artifactID"])
        artifact.state = "COMMITTED"
        return {"commitArtifact": {"artifact": {"id": artifact.id, "digest": artifact.digest}}}

    def on_client_id_mapping(self, variables: JSON) -> JSON:
        return {"clientIDMapping": None}

    def on_use_artifact(self, variables: JSON) -> JSON:
        artifact = self._artifact(variables.get("input", variables)["artifactID"])
        return {"useArtifact": {"artifact": self._node(artifact)}}

    def on_artifact_type(self, variables: JSON) -> JSON:
        artifact = self._named(variables["project"], variables["name"])
        return {"project": {"artifact": artifact and {"artifactType": {"name": artifact.type}}}}

    def on_artifact_by_id(self, variables: JSON) -> JSON:
        return {"artifact": self._node(self._artifact(variables["id"]))}

    def on_artifact_membership_by_name(self, variables: JSON) -> JSON:
        artifact = self._named(variables["project"], variables["name"])
        if artifact is None:
            return {"project": {"artifactCollectionMembership": None}}
        node = self._node(artifact)
        membership = {
            **{key: node[key] for key in ("id", "versionIndex", "createdAt", "aliases")},
            "__typename": "ArtifactCollectionMembership",
            "artifactCollection": node["artifactSequence"],
            "artifact": node,
        }
        return {"project": {"artifactCollectionMembership": membership}}

    def _node(self, artifact: StoredArtifact) -> JSON:
        """Return the fields of an artifact that the client requests."""
        sequence = {
            "__typename": "ArtifactSequence",
            "name": artifact.collection,
            "project": project_node(artifact.project),
        }
        alias = {"__typename": "ArtifactAlias", "artifactCollection": sequence}
        names = [*artifact.aliases, f"v{artifact.version}"]
        entries = self._entries(artifact)
        return {
            **dict.fromkeys(("description", "historyStep", "digestAlgorithm", "commitHash", "updatedAt")),
            "__typename": "Artifact",
            "id": artifact.id,
            "versionIndex": artifact.version,
            "createdAt": "2026-01-01T00:00:00Z",
            "aliases": [{**alias, "id": name, "alias": name} for name in names],
            "artifactSequence": sequence,
            "artifactType": {"name": artifact.type},
            "metadata": artifact.metadata,
            "ttlDurationSeconds": -2,
            "ttlIsInherited": True,
            "tags": [],
            "state": artifact.state,
            "size": sum(entry["size"] for entry in entries.values()),
            "digest": artifact.digest,
            "fileCount": len(entries),
        }

    def on_fetch_artifact_manifest(self, variables: JSON) -> JSON:
        file = {
            "directUrl": self._blob_url(self._artifact(variables.get("id") or variables["artifact_id"]).blob)
        }
        return {"artifact": {"currentManifest": {"file": file}}}

    on_artifact_manifest = on_fetch_artifact_manifest

    def on_get_artifact_membership_file_urls(self, variables: JSON) -> JSON:
        artifact = self._named(variables["project"], f"{variables['collection']}:{variables['alias']}")
        assert artifact is not None
        edges = []
        for name, entry in self._entries(artifact).items():
            url = self._blob_url(_entry_blob(entry.get("birthArtifactID") or artifact.id, name))
            edges.append({"node": {"__typename": "File", "name": name, "directUrl": url}})
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        files = {"pageInfo": page, "edges": edges}
        collection = {"__typename": "ArtifactSequence", "artifactMembership": {"files": files}}
        return {"project": {"artifactCollection": collection}}

    def _artifact(self, artifact_id: str) -> StoredArtifact:
        return next(artifact for artifact in self.artifacts if artifact.id == artifact_id)

    def _named(self, project: str, name: str) -> StoredArtifact | None:
        """Return the committed artifact that ``collection:alias`` names."""
        collection, _, alias = name.partition(":")
        for artifact in self.artifacts:
            if (artifact.project, artifact.collection, artifact.state) != (project, collection, "COMMITTED"):
                continue
            if (alias or "latest") in (*artifact.aliases, f"v{artifact.version}"):
                return artifact
        return None

    def _entries(self, artifact: StoredArtifact) -> dict[str, JSON]:
        return dict(json.loads(self.blobs[artifact.blob])["contents"])

    def _blob_url(self, path: str) -> str:
        return f"{self._url}/{quote(path)}"


def _entry_blob(artifact_id: str, name: str) -> str:
    return f"entries/{artifact_id}/{sha256(name.encode()).hexdigest()}"
