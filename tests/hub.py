"""A server that speaks the API of the Hugging Face Hub, with one model, and fails as hubs do."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "demo_model"
MODEL = "demo/tiny"
TOKEN = "hf_of_an_account_with_access"
LARGE = (".safetensors", "tokenizer.json", ".gguf")
"""Files that are stored apart, by their SHA-256, as the hub stores large ones."""


def commit_of(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def demo_files() -> dict[str, bytes]:
    """Return the demo model as it could be published, with files that nobody needs to serve it."""
    files = {
        path.relative_to(DEMO).as_posix(): path.read_bytes() for path in DEMO.rglob("*") if path.is_file()
    }
    return files | {
        "README.md": b"A model card.\n",
        "pytorch_model.bin": b"\x80" * 4096,
        "consolidated.safetensors": b"\0" * 4096,
        "onnx/model.onnx": b"\0" * 4096,
    }


@dataclass(frozen=True)
class Served:
    """An answer to a request for a file's content."""

    name: str
    start: int
    """The first byte that was asked for."""
    num_bytes: int
    authorization: str | None


@dataclass
class Hub:
    """The files of the server, its misbehaviour, and the requests that it had."""

    files: dict[str, bytes] = field(default_factory=demo_files)
    revisions: dict[str, str] = field(default_factory=lambda: {"main": commit_of("first")})
    cut_after: dict[str, list[int]] = field(default_factory=dict)
    """The connection breaks after so many bytes of a file; each number counts for one request."""
    wrong: set[str] = field(default_factory=set)
    """Files whose content is not what the hub says."""
    bytes_per_s: float | None = None
    ignores_ranges: bool = False
    gated: bool = False
    private: bool = False
    status: int | None = None
    """Answer everything with this status."""
    served: list[Served] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """The method and path of each request."""
    url: str = ""

    def downloads(self, name: str) -> list[Served]:
        return [each for each in self.served if each.name == name]

    def sent(self, name: str) -> int:
        """Return how many bytes of a file were sent, in all answers."""
        return sum(each.num_bytes for each in self.downloads(name))

    def commits(self) -> set[str]:
        return set(self.revisions.values())


def run_fetch(
    hub: Hub, cache: Path, *arguments: str, model: str = MODEL, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the program that fetches a model, with a cache of its own."""
    return subprocess.run(
        fetch_command(model, *arguments),
        env=environment_of(hub.url, cache, **environment),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def fetch_command(model: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "runtime.hub", model, *arguments]


def environment_of(url: str, cache: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process that uses this hub and this cache."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    direct = {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    return kept | direct | {"HF_ENDPOINT": url, "HF_HOME": str(cache)} | more


def snapshot_of(cache: Path, commit: str, model: str = MODEL) -> Path:
    return cache / "hub" / f"models--{model.replace('/', '--')}" / "snapshots" / commit


def blobs_of(cache: Path, model: str = MODEL) -> Path:
    return cache / "hub" / f"models--{model.replace('/', '--')}" / "blobs"


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@contextlib.contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Run the server while the block lasts."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        if path != "/api/agent-harnesses":  # the library asks for it once a day, whatever it does
            self.hub.asked.append((self.command, path))
        if self.hub.status is not None:
            return self._refuse(self.hub.status, "", "")
        with contextlib.suppress(ConnectionError):
            if stored := re.fullmatch(r"/stored/([^/]+)/(.+)", path):
                return self._content(stored[2])
            return self._known(path)
        return None

    def _known(self, path: str) -> None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in {"", TOKEN, "hf_of_another_account"}:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif f"/{MODEL}/" not in f"{path}/" or (self.hub.private and token != TOKEN):
            self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        else:
            self._model(path, token)

    def _model(self, path: str, token: str) -> None:
        asked = re.fullmatch(
            rf"/(?:api/models/)?{MODEL}(?:/(?P<what>revision|tree|resolve)/(?P<revision>[^/]+)(?:/(?P<file>.+))?)?",
            path,
        )
        assert asked is not None, path
        revision = asked["revision"] or "main"
        commit = self.hub.revisions.get(revision, revision if revision in self.hub.commits() else "")
        if not commit:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif asked["what"] == "tree":
            self._json([self._tree_entry(name) for name in self.hub.files])
        elif asked["what"] != "resolve":
            siblings = [self._sibling(name) for name in self.hub.files]
            self._json({"id": MODEL, "modelId": MODEL, "sha": commit, "siblings": siblings})
        elif self.hub.gated and token != TOKEN:
            self._refuse(403 if token else 401, "GatedRepo", "Access to this model is restricted")
        else:
            self._file(commit, asked["file"])

    def _sibling(self, name: str) -> dict[str, Any]:
        content = self.hub.files[name]
        entry: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
        if name.endswith(LARGE):
            entry["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 134}
        return entry

    def _tree_entry(self, name: str) -> dict[str, Any]:
        content = self.hub.files[name]
        entry: dict[str, Any] = {
            "type": "file",
            "path": name,
            "size": len(content),
            "oid": git_sha1(content),
        }
        if name.endswith(LARGE):
            entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
        return entry

    def _file(self, commit: str, name: str) -> None:
        if name not in self.hub.files:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        content = self.hub.files[name]
        if not name.endswith(LARGE):
            return self._content(name, {"X-Repo-Commit": commit, "ETag": f'"{git_sha1(content)}"'})
        # Large files are on another host, to which no token is sent.
        port = urlsplit(self.hub.url).port
        headers = {
            "Location": f"http://localhost:{port}/stored/{sha256(content)}/{name}",
            "X-Repo-Commit": commit,
            "X-Linked-ETag": f'"{sha256(content)}"',
            "X-Linked-Size": str(len(content)),
        }
        return self._send(302, headers, b"")

    def _content(self, name: str, headers: Mapping[str, str] | None = None) -> None:
        content = self.hub.files[name]
        if name in self.hub.wrong:
            content = bytes(255 - byte for byte in content)
        start, status, more = 0, 200, dict(headers or {})
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if wanted and not self.hub.ignores_ranges:
            start, status = int(wanted[1]), 206
            more["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if self.command == "HEAD":
            return self._send(status, more, content[start:])
        end = len(content)
        if self.hub.cut_after.get(name):
            end = min(end, start + self.hub.cut_after[name].pop(0))
        self.send_response(status)
        for field_name, value in (more | {"Content-Length": str(len(content) - start)}).items():
            self.send_header(field_name, value)
        self.end_headers()
        self._send_pieces(name, content, start, end)
        if end < len(content):
            self.close_connection = True
        return None

    def _send_pieces(self, name: str, content: bytes, start: int, end: int) -> None:
        sent, piece = start, 16384
        try:
            while sent < end:
                self.wfile.write(content[sent : min(end, sent + piece)])
                if self.hub.bytes_per_s is not None:
                    time.sleep(piece / self.hub.bytes_per_s)
                sent = min(end, sent + piece)
        finally:
            token = self.headers.get("Authorization")
            self.hub.served.append(Served(name, start, sent - start, token))

    def _json(self, value: Sequence[Any] | Mapping[str, Any]) -> None:
        self._send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._send(status, {name: value for name, value in headers.items() if value}, b"")

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in (dict(headers) | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
