"""Fetch one file into the cache: go on where an earlier download stopped, verify, then move into place.

    blobs/<etag>.incomplete  ── complete, and of the hash that its name is ──▶  blobs/<etag>

The library's own downloads begin anew after an interruption and check the size alone. So files are fetched
here, into the cache's own form; the library then finds them there. The lock is the library's too.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import httpx
from filelock import Timeout
from huggingface_hub import constants, get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public by its documentation alone
    WeakFileLock,
    build_hf_headers,
    hf_raise_for_status,
)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_LOOK_AGAIN_S = 0.5
_PIECE = 1 << 20
_ATTEMPTS, _PAUSE_S = 5, 1.0
"""A download is given up after so many attempts in a row without a byte."""
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
"""Status codes of answers that may be others a moment later."""


class Stopped(Exception):
    """Another file could not be fetched, so this one is not wanted any more."""


class WrongContent(Exception):
    """The file differs from what the hub says of it: it has `found` instead of `expected`."""

    def __init__(self, name: str, found: str, expected: str) -> None:
        super().__init__(f"{name} has {found} instead of {expected}")


@dataclass(frozen=True, slots=True)
class Blob:
    """One file of a model."""

    name: str
    url: str
    etag: str
    """By which the cache calls it: a SHA-256 of large files, git's SHA-1 of small ones."""
    size: int
    folder: Path
    """The folder of the model's blobs."""
    lock: Path

    @property
    def path(self) -> Path:
        return self.folder / self.etag

    @property
    def incomplete(self) -> Path:
        return self.folder / f"{self.etag}.incomplete"

    @property
    def is_there(self) -> bool:
        """Whether it is complete. One of another size was left by something that failed."""
        try:
            return self.path.stat().st_size == self.size
        except FileNotFoundError:
            return False

    def num_bytes_there(self) -> int:
        """Return the bytes that have come so far."""
        if self.is_there:
            return self.size
        try:
            return min(self.incomplete.stat().st_size, self.size)
        except FileNotFoundError:
            return 0


def fetch(blob: Blob, stopping: threading.Event) -> None:
    """Fetch a file unless it is there; wait while another process of this host does.

    Raises `WrongContent`, `Stopped` and what a download may raise.
    """
    blob.folder.mkdir(parents=True, exist_ok=True)
    blob.lock.parent.mkdir(parents=True, exist_ok=True)
    with _locked(blob.lock, stopping):
        if blob.is_there:
            return
        was_begun = blob.num_bytes_there() > 0
        try:
            _download(blob, stopping)
        except WrongContent:
            if not was_begun:
                raise
            _download(blob, stopping)  # the part that was there may have been wrong


@contextmanager
def _locked(path: Path, stopping: threading.Event) -> Iterator[None]:
    while not stopping.is_set():
        with ExitStack() as held:
            try:
                held.enter_context(WeakFileLock(path, timeout=_LOOK_AGAIN_S))
            except Timeout:
                continue
            yield
            return
    raise Stopped


def _download(blob: Blob, stopping: threading.Event) -> None:
    with blob.incomplete.open("a+b", buffering=0) as file:
        if os.fstat(file.fileno()).st_size > blob.size:
            file.truncate(0)
        sink = _Sink(file, blob)
        _receive(blob, sink, stopping)
        content = sink.digest()
        if content not in {blob.etag, ""}:
            blob.incomplete.unlink()
            raise WrongContent(blob.name, f"the hash {content}", blob.etag)
        os.fsync(file.fileno())
    blob.incomplete.replace(blob.path)


def _receive(blob: Blob, sink: _Sink, stopping: threading.Event) -> None:
    """Receive what is missing, again and again until nothing comes in several attempts."""
    in_vain = 0
    while sink.size < blob.size:
        before = sink.size
        try:
            _receive_once(blob, sink, stopping)
            if sink.size == before:
                raise WrongContent(blob.name, f"{sink.size} bytes", f"{blob.size}")
        except (httpx.TransportError, HfHubHTTPError) as error:
            in_vain = 0 if sink.size > before else in_vain + 1
            if in_vain == _ATTEMPTS or not _may_pass(error):
                raise
            stopping.wait(_PAUSE_S)


def _may_pass(error: Exception) -> bool:
    return not isinstance(error, HfHubHTTPError) or error.response.status_code in _TRANSIENT


def _receive_once(blob: Blob, sink: _Sink, stopping: threading.Event) -> None:
    """Receive what one answer of the hub has of the missing bytes."""
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if sink.size:
        headers["Range"] = f"bytes={sink.size}-"
    timeout_s = constants.HF_HUB_DOWNLOAD_TIMEOUT
    # The address of a large file is asked for anew each time: it is valid for an hour or so.
    with get_session().stream("GET", blob.url, headers=headers, timeout=timeout_s) as response:
        hf_raise_for_status(response)
        if sink.size and response.status_code != httpx.codes.PARTIAL_CONTENT:
            sink.begin_again()
        for piece in response.iter_bytes():
            if stopping.is_set():
                raise Stopped
            sink.write(piece)
            if sink.size > blob.size:
                blob.incomplete.unlink()
                raise WrongContent(blob.name, f"more than {blob.size} bytes", f"{blob.size}")


class _Sink:
    """The file that a download is written to; it computes the hash by the way."""

    def __init__(self, file: FileIO, blob: Blob) -> None:
        """Begin with what is there of the file."""
        self._file = file
        self._blob = blob
        self._digests = _digests_for(blob)
        self.size = 0
        left = os.fstat(file.fileno()).st_size
        file.seek(0)
        while left and (piece := file.read(min(left, _PIECE))):
            self._take(piece)
            left -= len(piece)

    def write(self, piece: bytes) -> None:
        """Append a piece. Raises OSError if there is no room for it."""
        left = memoryview(piece)
        while left:
            left = left[self._file.write(left) :]
        self._take(piece)

    def begin_again(self) -> None:
        """Forget what is there, since the whole file is sent."""
        self._file.truncate(0)
        self._digests = _digests_for(self._blob)
        self.size = 0

    def _take(self, piece: bytes) -> None:
        for digest in self._digests:
            digest.update(piece)
        self.size += len(piece)

    def digest(self) -> str:
        """Return the file's name if its content is right, else its hash; empty if the name is no hash."""
        hashes = [digest.hexdigest() for digest in self._digests]
        return self._blob.etag if self._blob.etag in hashes else "".join(hashes[:1])


def _digests_for(blob: Blob) -> list[hashlib._Hash]:
    """Return the hashes that a file's name may be. Of small files some mirrors give a plain SHA-1."""
    if _SHA256.fullmatch(blob.etag):
        return [hashlib.sha256()]
    if _SHA1.fullmatch(blob.etag):
        head = f"blob {blob.size}\0".encode()
        return [hashlib.sha1(head, usedforsecurity=False), hashlib.sha1(usedforsecurity=False)]
    return []
