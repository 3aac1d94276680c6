"""The JSON types that a schema allows, as far as a notation without quotes needs them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from chat_formats.types import Tool

_ANY = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_MAX_DEPTH = 8
_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


def parameter_types(tool: Tool, name: str) -> frozenset[str]:
    """Return the types of a tool's parameter."""
    properties = tool.parameters.get("properties")
    return types_of(properties.get(name) if isinstance(properties, dict) else None, tool.parameters)


def types_of(schema: object, root: object, depth: int = _MAX_DEPTH) -> frozenset[str]:
    """Return the types that a schema inside the document `root` allows; all if it does not say."""
    if not isinstance(schema, dict) or not depth:
        return _ANY
    if "$ref" in schema:
        return types_of(referred(schema["$ref"], root), root, depth - 1)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return frozenset().union(*(types_of(other, root, depth - 1) for other in schema[word]))
    stated = schema.get("type")
    if isinstance(stated, str | list):
        types = {stated} if isinstance(stated, str) else set(map(str, stated))
        return frozenset(types | ({"integer"} if "number" in types else set()))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return frozenset(type_of(json.dumps(value)) for value in values)
    return _ANY


def referred(reference: object, root: object) -> object:
    """Return what a reference such as `#/$defs/City` refers to; None if there is nothing."""
    found = root
    for part in str(reference).removeprefix("#").strip("/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def type_of(value: str) -> str:
    """Return the type of a value in JSON."""
    return _KINDS.get(value[0]) or ("number" if set(value) & set(".eE") else "integer")
