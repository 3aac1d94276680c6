"""Tell names of the hub's models from folders, as the services do."""

from __future__ import annotations

import re
from pathlib import Path

ACCEPTED = (
    "a folder with a model's config.json, a GGUF file, or a model of the hub as ORG/NAME or "
    "ORG/NAME@REVISION, and :FILE.gguf after it for one of its GGUF files"
)
_PART = r"[A-Za-z0-9](?:[-.]?[A-Za-z0-9_])*"
_NAME = re.compile(rf"(?P<name>{_PART}/{_PART})(?:@[A-Za-z0-9][A-Za-z0-9._/-]*)?(?P<file>:.+)?")
_FILE = re.compile(r":[A-Za-z0-9][\w.+/-]*\.gguf", re.IGNORECASE | re.ASCII)


def model_path(text: str) -> Path:
    """Return the value of a flag that names a model, as a path whose text `hub_name` reads.

    A path loses its `./`, by which a folder is told from a name of the hub.
    """
    path = Path(text)
    return path if str(path) == text or not _NAME.fullmatch(str(path)) else path.absolute()


def hub_name(path: Path) -> str | None:
    """Return the name of the model of the hub that a path is; None for a folder or file.

    Raises `ValueError` for a single file of a model that is no GGUF file.
    """
    named = _NAME.fullmatch(str(path))
    if named is None or ".." in str(path) or named["name"].lower().endswith(".gguf") or path.exists():
        return None
    if named["file"] is not None and not _FILE.fullmatch(named["file"]):
        raise ValueError(f"{path} is a single file of a model: it must be {ACCEPTED}")
    return str(path)


def is_model(path: Path) -> bool:
    """Return whether a path that is no model of the hub may be one."""
    return (path / "config.json").is_file() or (path.suffix.lower() == ".gguf" and path.is_file())


def absolute(path: Path) -> str:
    """Return a folder or file for processes that have another working directory."""
    # A file keeps its name, which may be that of a link into a cache.
    return str(path.parent.resolve() / path.name if path.is_file() else path.resolve())
