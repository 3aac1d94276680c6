"""Where the files of a secured fleet are, and how a secret is written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where they are; names as `make_certificates` gives them."""

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


def write_secret(path: Path, content: bytes) -> None:
    """Readable by this user only, from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
