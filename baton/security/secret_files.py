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
    """Readable by this user only, from its first byte on. Raises `ValueError`, also where a file is."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise ValueError(f"{path} is there already; name a new file, or move it away first") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from None


def replace_secret(path: Path, content: bytes) -> None:
    """The same in place of what is there, as a whole: nobody reads half of it. Raises `ValueError`."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)  # of somebody who was killed in between
    write_secret(fresh, content)
    fresh.replace(path)
