"""Entries of a door's file: API keys, kept as hashes. The routers read the file again when it changes."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baton.security.secret_files import replace_secret


def new_api_key() -> str:
    """256 random bits."""
    return f"baton_{secrets.token_urlsafe(32)}"


def add_key(
    door_file: Path,
    api_key: str,
    tenant: str,
    *,
    classes: Sequence[str] = (),
    operator: bool = False,
    budget: Mapping[str, float] | None = None,
) -> None:
    """Let a key in as `tenant`; a `budget` replaces the tenant's. Raises `ValueError` naming the file."""
    said = _read(door_file) if door_file.exists() else {}
    entry: dict[str, Any] = {"sha256": hashlib.sha256(api_key.encode()).hexdigest(), "tenant": tenant}
    if classes:
        entry["classes"] = list(classes)
    if operator:
        entry["operator"] = True
    said.setdefault("keys", []).append(entry)
    if budget:
        said.setdefault("tenants", {})[tenant] = dict(budget)
    replace_secret(door_file, json.dumps(said, indent=2).encode() + b"\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from None
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise ValueError(f"{path} is no door file: it must hold one JSON object")  # noqa: TRY004 - told as above
    return said
