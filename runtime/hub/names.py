"""Tell names of the hub's models from folders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from runtime.hub.refusals import HubRefused

ACCEPTED = (
    "the folder of a checkpoint, a GGUF file, or a model of the hub as ORG/NAME or ORG/NAME@REVISION, and "
    ":FILE.gguf after it for one of its GGUF files"
)
MAIN = "main"
_PART = r"[A-Za-z0-9](?:[-.]?[A-Za-z0-9_])*"
_NAME = re.compile(
    rf"(?P<name>{_PART}/{_PART})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*))?(?::(?P<file>.+))?"
)
_FILE = re.compile(r"[A-Za-z0-9][\w.+/-]*\.gguf", re.IGNORECASE | re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub, at a branch, a tag or a commit."""

    name: str
    """ORG/NAME."""
    revision: str = MAIN
    file: str = ""
    """The GGUF file that is served, by its path in the model; empty: the model in transformers' format."""

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def served_name(self) -> str:
        """The name by which callers know it."""
        return f"{self.name}{self._after}"

    @property
    def _after(self) -> str:
        return f":{self.file}" if self.file else ""

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}{self._after}"


def model_path(text: str) -> Path:
    """Return the value of a flag that names a model, as a path whose text `hub_model` reads.

    A path loses its `./`, by which a folder is told from a name of the hub.
    """
    path = Path(text)
    return path if str(path) == text or not _NAME.fullmatch(str(path)) else path.absolute()


def hub_model(path: Path) -> HubModel | None:
    """Return the model of the hub that a flag names; None for a folder or file, whether it exists or not.

    Raises `HubRefused` for a single file of a model that is no GGUF file.
    """
    named = _NAME.fullmatch(str(path))
    if named is None or ".." in str(path) or named["name"].lower().endswith(".gguf") or path.exists():
        return None
    file = named["file"] or ""
    if file and not _FILE.fullmatch(file):
        raise HubRefused(str(path), f"{file!r} is no GGUF file", f"accepted: {ACCEPTED}")
    return HubModel(named["name"], named["revision"] or MAIN, file)
