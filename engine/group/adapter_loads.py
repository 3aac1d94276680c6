"""Loads adapters into the parts that the processes of a group have, each from the same files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.errors import AdapterRefused
from engine.model.adapters.attaching import Adapters
from engine.model.adapters.checkpoint import read_adapter


@dataclass(frozen=True, slots=True)
class AdapterToLoad:
    """An adapter, as a leader names it to its followers."""

    slot: int
    name: str
    path: str
    digest: str

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes | bytearray) -> AdapterToLoad:
        return cls(**json.loads(content))

    def into(self, adapters: Adapters) -> str:
        """Load this process's part; return why it cannot be loaded, or nothing."""
        try:
            files = read_adapter(self.name, Path(self.path))
            if files.digest != self.digest:
                return f"its files have the digest {files.digest}"
            adapters.write(self.slot, files)
        except AdapterRefused as error:
            return f"{error.field} {error.found}; accepted: {error.accepted}"
        except Exception as error:  # noqa: BLE001 - it is reported, and the process goes on with steps
            return f"{type(error).__name__}: {error}"
        return ""
