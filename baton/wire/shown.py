"""Values as people and programs read them: in errors, and in JSON."""

from __future__ import annotations

import json
from typing import Any

_JSON = json.JSONEncoder(ensure_ascii=False, default=repr)


def shown(value: object, longest: int = 60) -> str:
    """Return a value as callers in any language write it: a text in quotes, anything else as JSON."""
    text = repr(value) if isinstance(value, str) else _beginning(value, longest + 1)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _beginning(value: object, longest: int) -> str:
    """Return so many characters of a value's JSON, or all of it, without writing the rest."""
    text = ""
    for piece in _JSON.iterencode(value):
        text += piece
        if len(text) >= longest:
            break
    return text


def rounded(value: Any) -> Any:
    """Return a JSON value whose times, the fields `..._ms`, are rounded to microseconds."""
    if isinstance(value, dict):
        return {
            name: round(part, 3) if name.endswith("_ms") and isinstance(part, float) else rounded(part)
            for name, part in value.items()
        }
    return [rounded(part) for part in value] if isinstance(value, list | tuple) else value
