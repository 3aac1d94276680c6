"""The bounds of some JSON Schema formats that llguidance leaves out."""

from __future__ import annotations

from typing import Any

VALUES = frozenset(("const", "enum", "default", "examples"))
"""Keywords of a schema that contain values and no schemas."""
NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""Keywords that contain schemas by names, which may be those of keywords."""
_NO_LEAP_SECOND = {"pattern": r":[0-5][0-9][.zZ+-]"}
_BOUNDS = {"hostname": {"maxLength": 253}, "time": _NO_LEAP_SECOND, "date-time": _NO_LEAP_SECOND}
"""The bounds by the names of formats."""


def bounded(schema: Any) -> Any:
    """Return a schema with these bounds.

    A host name has at most 253 characters (RFC 1123). A second 60 exists only at the end of a day in UTC (RFC
    3339), so there is none.
    """
    if isinstance(schema, list):
        return [bounded(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _bounded_below(key, value) for key, value in schema.items()}
    format_, others = schema.get("format"), result.get("allOf", [])
    bound = _BOUNDS.get(format_) if isinstance(format_, str) else None
    if bound is not None and isinstance(others, list):  # else it is no schema, which the compiler says
        result["allOf"] = [*others, bound]
    return result


def _bounded_below(keyword: str, value: Any) -> Any:
    if keyword in VALUES:
        return value
    if keyword in NAMED and isinstance(value, dict):
        return {name: bounded(member) for name, member in value.items()}
    return bounded(value)
