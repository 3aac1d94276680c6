"""The paths of a secured fleet's files, and how to write a secret."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """The paths of the files that `make_certificates` writes."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def ca_key(self) -> Path:
        return self.folder / "ca.key"

    def cert(self, part: str) -> Path:
        return self.folder / f"{part}.pem"

    def key(self, part: str) -> Path:
        return self.folder / f"{part}.key"


def read_file(path: Path) -> bytes:
    """Return a file's content. Raises `ValueError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from None


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only this user can read. Raises `ValueError`, also if the file exists."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise ValueError(f"{path} exists already; name a new file, or move it away first") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from None


def replace_secret(path: Path, content: bytes) -> None:
    """Write or replace such a file atomically. Raises `ValueError`."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)  # left by a process that was killed in between
    write_secret(fresh, content)
    fresh.replace(path)
