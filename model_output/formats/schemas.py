"""The JSON types that a schema allows, as far as a notation without quotes needs them."""

from __future__ import annotations

import json
from collections.abc import Mapping

from model_output.formats.types import Tool

_ANY = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_MAX_VISITS = 1000
_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}


def parameter_types(tool: Tool, name: str) -> frozenset[str]:
    """Return the types of a tool's parameter."""
    properties = tool.parameters.get("properties")
    return types_of(properties.get(name) if isinstance(properties, dict) else None, tool.parameters)


def types_of(schema: object, root: object) -> frozenset[str]:
    """Return the types that a schema inside the document `root` allows; all if it does not say.

    All as well if it has more parts than are worth reading: they may refer to each other in any number.
    """
    types: set[str] = set()
    references: set[str] = set()
    waiting = [schema]
    for _ in range(_MAX_VISITS):
        if not waiting:
            return frozenset(types) or _ANY
        part = waiting.pop()
        if isinstance(part, dict) and "$ref" in part:
            reference = str(part["$ref"])
            if reference not in references:
                references.add(reference)
                waiting.append(referred(reference, root))
        elif (others := _alternatives(part)) is not None:
            waiting += others
        else:
            types |= _stated_types(part)
    return _ANY


def _alternatives(schema: object) -> list[object] | None:
    """Return the schemas of which a value follows one; None if there are none."""
    values = [schema.get(word) for word in ("anyOf", "oneOf")] if isinstance(schema, dict) else []
    return next((others for others in values if isinstance(others, list)), None)


def _stated_types(schema: object) -> frozenset[str]:
    if not isinstance(schema, dict):
        return _ANY
    value = schema.get("type")
    if isinstance(value, str | list):
        types = {value} if isinstance(value, str) else set(map(str, value))
        return frozenset(types | ({"integer"} if "number" in types else set()))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return frozenset(type_of(json.dumps(value)) for value in values)
    return _ANY


def referred(reference: object, root: object) -> object:
    """Return what a reference such as `#/$defs/City` refers to; None if there is nothing."""
    node = root
    for part in str(reference).removeprefix("#").strip("/").split("/"):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def type_of(value: str) -> str:
    """Return the type of a value in JSON."""
    return _KINDS.get(value[0]) or ("number" if set(value) & set(".eE") else "integer")
