"""Tell names of the hub's models from folders, as the services do."""

from __future__ import annotations

import re
from pathlib import Path

ACCEPTED = "a folder with a model's config.json, or a model of the hub as ORG/NAME or ORG/NAME@REVISION"
_PART = r"[A-Za-z0-9](?:[-.]?[A-Za-z0-9_])*"
_NAME = re.compile(rf"(?P<name>{_PART}/{_PART})(?:@[A-Za-z0-9][A-Za-z0-9._/-]*)?(?P<file>:.+)?")


def model_path(text: str) -> Path:
    """Return the value of a flag that names a model, as a path whose text `hub_name` reads.

    A path loses its `./`, by which a folder is told from a name of the hub.
    """
    path = Path(text)
    return path if str(path) == text or not _NAME.fullmatch(str(path)) else path.absolute()


def hub_name(path: Path) -> str | None:
    """Return the name of the model of the hub that a path is; None for a folder.

    Raises `ValueError` for a single file of a model.
    """
    named = _NAME.fullmatch(str(path))
    if named is None or ".." in str(path) or path.exists():
        return None
    if named["file"] is not None:
        raise ValueError(f"{path} is a single file of a model, such as GGUF: it must be {ACCEPTED}")
    return str(path)


def absolute(folder: Path) -> str:
    """Return a folder for processes that have another working directory."""
    return str(folder.resolve())
