"""Tell names of the hub's models from folders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from runtime.hub.refusals import HubRefused

ACCEPTED = "the folder of a checkpoint, or a model of the hub as ORG/NAME or ORG/NAME@REVISION"
MAIN = "main"
_PART = r"[A-Za-z0-9](?:[-.]?[A-Za-z0-9_])*"
_NAME = re.compile(
    rf"(?P<name>{_PART}/{_PART})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*))?(?::(?P<file>.+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub, at a branch, a tag or a commit."""

    name: str
    """ORG/NAME, which is also what callers call it."""
    revision: str = MAIN

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}"


def model_path(text: str) -> Path:
    """Return the value of a flag that names a model, as a path whose text `hub_model` reads.

    A path loses its `./`, by which a folder is told from a name of the hub.
    """
    path = Path(text)
    return path if str(path) == text or not _NAME.fullmatch(str(path)) else path.absolute()


def hub_model(path: Path) -> HubModel | None:
    """Return the model of the hub that a flag names; None for a folder, whether it exists or not.

    Raises `HubRefused` for a single file of a model.
    """
    named = _NAME.fullmatch(str(path))
    if named is None or ".." in str(path) or path.exists():
        return None
    if named["file"] is not None:
        kind = "GGUF files are" if named["file"].lower().endswith(".gguf") else "a single file of a model is"
        raise HubRefused(str(path), f"{kind} not served", f"accepted: {ACCEPTED}, with safetensors")
    return HubModel(named["name"], named["revision"] or MAIN)
