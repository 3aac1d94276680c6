"""The folder in which services keep what they could make again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return a user's cache folder by the XDG base directory specification, which ignores relative paths."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "baton"
    try:
        return Path.home() / ".cache" / "baton"
    except RuntimeError:  # a container's user may have no home
        return Path(tempfile.gettempdir()) / "baton"
