"""A local HTTP server that speaks the few words of the Hugging Face hub a download needs."""

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

COMMIT = "c0ffee" + "0" * 34


@dataclass
class FakeHub:
    """The repositories it serves, how it misbehaves, and what it was asked."""

    repos: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    lying_sha256: set[str] = field(default_factory=set)
    """Files whose announced sha256 is not that of their content."""
    cut_once: dict[str, int] = field(default_factory=dict)
    """Files whose first transfer breaks off after so many bytes."""
    is_failing: bool = False
    """Answer every request for a file with 503."""
    requests: list[str] = field(default_factory=list)
    """Every request, as `METHOD path [range]`."""
    url: str = ""

    def start(self) -> ThreadingHTTPServer:
        """Serve on a free port of 127.0.0.1 until `shutdown()`."""
        server = _Server(("127.0.0.1", 0), _Handler)
        server.hub = self
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    def describe(self, repo: str) -> dict[str, Any]:
        """Return the JSON the hub gives about a model."""
        return {
            "id": repo,
            "modelId": repo,
            "sha": COMMIT,
            "tags": ["text-generation", "license:apache-2.0"],
            "siblings": [self._sibling(*item) for item in self.repos[repo].items()],
        }

    def _sibling(self, name: str, data: bytes) -> dict[str, Any]:
        sibling: dict[str, Any] = {"rfilename": name, "size": len(data)}
        if name.endswith((".safetensors", ".gguf")):
            announced = b"something else" if name in self.lying_sha256 else data
            sha256 = hashlib.sha256(announced).hexdigest()
            sibling["lfs"] = {"size": len(data), "sha256": sha256, "pointerSize": 134}
        return sibling


class _Server(ThreadingHTTPServer):
    hub: FakeHub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = cast(_Server, self.server).hub
        path = self.path.partition("?")[0].strip("/")
        asked_range = self.headers.get("Range", "")
        hub.requests.append(f"{self.command} {path} {asked_range}".strip())
        words = path.split("/")
        if words[:2] == ["api", "models"]:
            repo, revision = "/".join(words[2:4]), "/".join(words[5:]) or "main"
            self._answer_about(hub, repo, revision)
        elif len(words) >= 5 and words[2] == "resolve":
            self._answer_file(hub, "/".join(words[:2]), "/".join(words[4:]))
        else:
            self._refuse(404, "EntryNotFound")

    def _answer_about(self, hub: FakeHub, repo: str, revision: str) -> None:
        if repo not in hub.repos:
            self._refuse(401, "RepoNotFound")
        elif revision not in ("main", "v1", COMMIT):
            self._refuse(404, "RevisionNotFound")
        else:
            body = json.dumps(hub.describe(repo)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _answer_file(self, hub: FakeHub, repo: str, name: str) -> None:
        if repo in hub.gated:
            self._refuse(403, "GatedRepo")
            return
        if hub.is_failing:
            self._refuse(503, "")
            return
        data = hub.repos.get(repo, {}).get(name)
        if data is None:
            self._refuse(404, "EntryNotFound")
            return
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if asked else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self._send(hub, name, data[start:])

    def _send(self, hub: FakeHub, name: str, data: bytes) -> None:
        cut = hub.cut_once.pop(name, None)
        self.wfile.write(data[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
