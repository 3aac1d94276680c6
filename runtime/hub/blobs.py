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
from pathlib import Path
from typing import BinaryIO, cast

from filelock import Timeout
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public by its documentation alone
    WeakFileLock,
    build_hf_headers,
)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_LOOK_AGAIN_S = 0.5
_PIECE = 1 << 20


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
    with blob.incomplete.open("a+b") as file:
        if file.seek(0, os.SEEK_END) > blob.size:
            file.truncate(0)
        sink = _Sink(file, blob, stopping)
        try:
            http_get(
                blob.url,
                cast("BinaryIO", sink),
                resume_size=file.tell(),
                headers=build_hf_headers(),
                expected_size=blob.size,
                displayed_filename=blob.name,
            )
        except OSError as error:
            if type(error) is not OSError or error.errno is not None:
                raise
            # The library's own check of the size.
            raise WrongContent(blob.name, f"{file.tell()} bytes", f"{blob.size}") from error
        file.flush()
        found = sink.digest()
        if found not in {blob.etag, ""}:
            blob.incomplete.unlink()
            raise WrongContent(blob.name, f"the hash {found}", blob.etag)
        os.fsync(file.fileno())
    blob.incomplete.replace(blob.path)


class _Sink:
    """The file that a download is written to; it computes the hash by the way."""

    def __init__(self, file: BinaryIO, blob: Blob, stopping: threading.Event) -> None:
        self._file = file
        self._blob = blob
        self._stopping = stopping
        self._begin()

    def write(self, piece: bytes) -> int:
        if self._stopping.is_set():
            raise Stopped
        for digest in self._digests:
            digest.update(piece)
        return self._file.write(piece)

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int) -> int:
        return self._file.seek(offset)

    def truncate(self) -> int:
        """Cut what follows, since the server sends the file anew."""
        size = self._file.truncate()
        self._begin()
        return size

    def _begin(self) -> None:
        """Begin the hash with what is there of the file."""
        self._digests = _digests_for(self._blob)
        end = self._file.tell()
        self._file.seek(0)
        while (left := end - self._file.tell()) > 0:
            piece = self._file.read(min(left, _PIECE))
            for digest in self._digests:
                digest.update(piece)
        self._file.seek(end)

    def digest(self) -> str:
        """Return the file's name if its content is right, else its hash; empty if the name is no hash."""
        found = [digest.hexdigest() for digest in self._digests]
        return self._blob.etag if self._blob.etag in found else "".join(found[:1])


def _digests_for(blob: Blob) -> list[hashlib._Hash]:
    """Return the hashes that a file's name may be. Of small files some mirrors give a plain SHA-1."""
    if _SHA256.fullmatch(blob.etag):
        return [hashlib.sha256()]
    if _SHA1.fullmatch(blob.etag):
        head = f"blob {blob.size}\0".encode()
        return [hashlib.sha1(head, usedforsecurity=False), hashlib.sha1(usedforsecurity=False)]
    return []
