"""Add API keys, as hashes, to the file of a router's --door. Routers read the file again when it changes."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baton.security.secret_files import read_file, replace_secret


def new_api_key() -> str:
    """Return a new key of 256 random bits."""
    return f"baton_{secrets.token_urlsafe(32)}"


def add_key(
    auth_file: Path,
    api_key: str,
    tenant: str,
    *,
    classes: Sequence[str] = (),
    operator: bool = False,
    delegate: bool = False,
    budget: Mapping[str, float] | None = None,
) -> None:
    """Add a key of `tenant`. A `budget` replaces the tenant's. Raises `ValueError` naming the file."""
    content = _read(auth_file) if auth_file.exists() else {}
    entry: dict[str, Any] = {"sha256": hashlib.sha256(api_key.encode()).hexdigest(), "tenant": tenant}
    rights = {"classes": list(classes), "operator": operator, "delegate": delegate}
    entry |= {name: right for name, right in rights.items() if right}
    content.setdefault("keys", []).append(entry)
    if budget:
        content.setdefault("tenants", {})[tenant] = dict(budget)
    replace_secret(auth_file, json.dumps(content, indent=2).encode() + b"\n")


def _read(path: Path) -> dict[str, Any]:
    data = read_file(path)
    try:
        content = json.loads(data)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(  # noqa: TRY004 - reported like the error above
            f"{path} is not a file for --door; accepted: one JSON object"
        )
    return content
