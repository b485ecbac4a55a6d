"""The few endpoints of the Hugging Face Hub that a commit uses, on this machine, with faults on demand.

Large files go by git-lfs's protocol, as with `HF_HUB_DISABLE_XET=1`; a commit that names what was not uploaded, or that
does not follow the head, is refused, as the hub does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any

from tests.support.local_servers import LocalServer, in_thread
from tests.support.waiting import PATIENCE_S

TOKEN = "hf_of_the_test"
LARGE_BYTES = 20_000  # from here on by git-lfs
FIRST = "0" * 40


@dataclass
class Hub:
    """What the server holds; `faults` are taken one by one: an HTTP status, or 0 to cut the connection."""

    url: str = ""
    repositories: dict[str, list[tuple[str, dict[str, bytes]]]] = field(default_factory=dict)  # commits: id, files
    large: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    uploads: list[str] = field(default_factory=list)  # digests of large files, in the order of their arrival
    seen: list[str] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)  # of a request that `hold` holds
    hold: str = ""  # the kind of request that waits until it is released
    released: threading.Event = field(default_factory=threading.Event)

    def files(self, repository: str) -> dict[str, bytes]:
        """What a visitor finds on the main branch."""
        return self.repositories[repository][-1][1]

    def commits(self, repository: str) -> int:
        """How many there are after the first, empty one."""
        return len(self.repositories[repository]) - 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._serve("info", b"")

    def do_PUT(self) -> None:
        self._serve("upload", self._body())

    def do_POST(self) -> None:
        for part, kind in (("/create", "create"), ("yaml", "yaml"), ("preupload", "preupload"), ("batch", "batch")):
            if part in self.path:
                self._serve(kind, self._body())
                return
        self._serve("commit", self._body())

    def _serve(self, kind: str, body: bytes) -> None:
        self.hub.seen.append(kind)
        if self.hub.hold == kind:
            self.hub.arrived.set()
            self.hub.released.wait(PATIENCE_S)
        fault = self.hub.faults[kind].pop(0) if self.hub.faults[kind] else None
        if fault == 0:
            self.close_connection = True
            self.connection.close()
        elif fault is not None:
            self._answer(fault, {"error": "on demand"})
        elif kind != "upload" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            hidden = {"X-Error-Code": "RepoNotFound"} if kind == "info" else {}  # as of one that is not there
            self._answer(401, {"error": "Invalid credentials"}, hidden)
        else:
            self._answer(*getattr(self, f"_{kind}")(body))

    def _create(self, body: bytes) -> tuple[int, Any]:
        wanted = json.loads(body)
        name = f"{wanted['organization']}/{wanted['name']}"
        known = name in self.hub.repositories
        self.hub.repositories.setdefault(name, [(FIRST, {})])
        return 409 if known else 200, {"url": f"{self.hub.url}/{name}", "id": name, "name": name}

    def _info(self, _body: bytes) -> tuple[int, Any]:
        name = "/".join(self.path.split("?")[0].split("/")[3:5])
        return 200, {"id": name, "modelId": name, "sha": self.hub.repositories[name][-1][0], "tags": [], "siblings": []}

    def _yaml(self, _body: bytes) -> tuple[int, Any]:
        return 200, {"errors": [], "warnings": []}

    def _preupload(self, body: bytes) -> tuple[int, Any]:
        name = "/".join(self.path.split("/")[3:5])
        there = self.hub.files(name)
        found = []
        for file in json.loads(body)["files"]:
            large = file["size"] >= LARGE_BYTES
            content = there.get(file["path"])
            oid = None if content is None else (hashlib.sha256(content).hexdigest() if large else _git_hash(content))
            found.append(
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if large else "regular",
                    "shouldIgnore": False,
                    "oid": oid,
                }
            )
        return 200, {"files": found}

    def _batch(self, body: bytes) -> tuple[int, Any]:
        objects = []
        for each in json.loads(body)["objects"]:
            href = f"{self.hub.url}/large/{each['oid']}"
            actions = {} if each["oid"] in self.hub.large else {"actions": {"upload": {"href": href, "header": {}}}}
            objects.append({"oid": each["oid"], "size": each["size"], **actions})
        return 200, {"transfer": "basic", "objects": objects}

    def _upload(self, body: bytes) -> tuple[int, Any]:
        digest = self.path.rpartition("/")[2]
        if hashlib.sha256(body).hexdigest() != digest:
            return 422, {"error": "digest"}
        self.hub.large[digest] = body
        self.hub.uploads.append(digest)
        return 200, {}

    def _commit(self, body: bytes) -> tuple[int, Any]:
        name = "/".join(self.path.split("/")[3:5])
        head, files = self.hub.repositories[name][-1]
        files = dict(files)
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header" and value.get("parentCommit", head) != head:
                return 412, {"error": "the head has moved"}
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            if entry["key"] == "lfsFile":
                if value["oid"] not in self.hub.large:
                    return 400, {"error": "not uploaded"}
                files[value["path"]] = self.hub.large[value["oid"]]
        commit = hashlib.sha1(body, usedforsecurity=False).hexdigest()
        self.hub.repositories[name].append((commit, files))
        return 200, {"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit, "success": True}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            return b"".join(iter(self._chunk, b""))
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _chunk(self) -> bytes:
        content = self.rfile.read(int(self.rfile.readline(), 16))
        self.rfile.readline()
        return content

    def _answer(self, status: int, content: Any, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        raw = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(raw)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def local_hub() -> Iterator[Hub]:
    """The hub, served until the end of the block."""
    hub = Hub()
    with in_thread(LocalServer(_Handler, hub=hub)) as hub.url:
        try:
            yield hub
        finally:
            hub.released.set()
