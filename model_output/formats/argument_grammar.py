"""The part of a grammar that stands for the arguments of one tool, in each notation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from model_output.formats.schemas import referred, types_of
from model_output.formats.types import Tool

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_DEFINITIONS = ("$defs", "definitions")
_WITHOUT_MEANING = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment"})
_SEPARABLE = _WITHOUT_MEANING | {"type", "properties", "required", "additionalProperties", *_DEFINITIONS}
_TEXT_KEYWORDS = _WITHOUT_MEANING | {"type"}

AddRule = Callable[..., str]
"""Adds a rule by its kind and body, and returns its name."""


class NotForcible(ValueError):
    """No grammar guarantees such a call; the message names the reason, and the tool at fault."""


def json_arguments(tool: Tool) -> str:
    """Return the arguments as one JSON object."""
    return _json(dict(tool.parameters) | {"type": "object"})


def keyword_arguments(tool: Tool, rule: AddRule) -> str:
    """Return the arguments in Python's notation: `a=1, b="x"`."""

    def item(name: str, schema: Mapping[str, Any]) -> str:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise NotForcible(f"tool {tool.name!r} has a parameter {name!r}, which is not a name in Python")
        return rule("argument", f"{json.dumps(name + '=')} {_json(schema)}")

    return _in_order([(item(name, schema), must) for name, schema, must in _parameters(tool)], '", "', rule)


def tagged_arguments(tool: Tool, rule: AddRule) -> str:
    """Return the arguments as tags: `<parameter=a>`, a line or more, `</parameter>`."""

    def item(name: str, schema: Mapping[str, Any]) -> str:
        if re.search(r"[<>\s]", name):
            raise NotForcible(f"tool {tool.name!r} has a parameter {name!r}, which cannot stand in a tag")
        begin, end = json.dumps(f"<parameter={name}>\n"), '"</parameter>"'
        if types_of(schema, tool.parameters) != {"string"}:
            return rule("argument", f'{begin} {_json(schema)} "\\n" {end} "\\n"')
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None:
            texts = " | ".join(json.dumps(f"{value}\n", ensure_ascii=False) for value in values)
            return rule("argument", f'{begin} ({texts}) {end} "\\n"')
        unkept = [word for word in schema if word not in _TEXT_KEYWORDS]
        if unkept:
            raise NotForcible(
                f"tool {tool.name!r}: parameter {name!r} has {unkept[0]!r}, which tags cannot guarantee"
            )
        text = rule("text", f"/(?s:.*)/ {end}", "[lazy]")
        return rule("argument", f'{begin} {text} "\\n"')

    return _in_order([(item(name, schema), must) for name, schema, must in _parameters(tool)], "", rule)


def _parameters(tool: Tool) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield each parameter with its schema, and whether it is required. Raises `NotForcible`."""
    schema = tool.parameters
    unkept = sorted(schema.keys() - _SEPARABLE)
    if unkept:
        raise NotForcible(
            f"tool {tool.name!r}: parameters have {unkept[0]!r}, which arguments one by one cannot guarantee"
        )
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not _is_schema(properties, required, [schema.get(word, {}) for word in _DEFINITIONS]):
        raise NotForcible(f"tool {tool.name!r}: parameters are not a JSON Schema")
    unknown = [name for name in required if name not in properties]
    if unknown:
        raise NotForcible(f"tool {tool.name!r} requires {unknown[0]!r}, which has no schema")
    for name, value in properties.items():
        resolved = {"not": {}} if value is False else {} if value is True else value
        target = referred(resolved["$ref"], schema) if set(resolved) == {"$ref"} else None
        if isinstance(target, dict):
            resolved = target
        yield name, resolved | _needed(tool, name, resolved), name in required


def _is_schema(properties: object, required: object, definitions: Sequence[object]) -> bool:
    """Return whether these parts of a schema have the right types."""
    return (
        isinstance(properties, dict)
        and all(isinstance(schema, dict | bool) for schema in properties.values())
        and isinstance(required, list)
        and all(isinstance(name, str) for name in required)
        and all(isinstance(definition, dict) for definition in definitions)
    )


def _needed(tool: Tool, name: str, schema: object) -> dict[str, dict[str, Any]]:
    """Return the definitions to which a parameter refers, directly or not. Raises `NotForcible`."""
    needed: dict[str, dict[str, Any]] = {}
    waiting = list(_references(schema))
    while waiting:
        reference = waiting.pop()
        match = re.match(r"#/(\$defs|definitions)/([^/]+)", reference)
        if match is None:
            raise NotForcible(f"tool {tool.name!r}: parameter {name!r} refers to {reference!r}")
        word, key = match[1], unquote(match[2]).replace("~1", "/").replace("~0", "~")
        definitions, section = tool.parameters.get(word, {}), needed.setdefault(word, {})
        if key in definitions and key not in section:
            section[key] = definitions[key]
            waiting += _references(definitions[key])
    return needed


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _in_order(items: list[tuple[str, bool]], separator: str, rule: AddRule) -> str:
    """Return items in their order, of which only the required ones need be there."""
    rest, firsts = "", []
    first_must = next((place for place, (_, must) in enumerate(items) if must), len(items))
    for place in range(len(items) - 1, -1, -1):
        item, _ = items[place]
        if place <= first_must:
            firsts.append(f"{item} {rest}")
        more = f"{separator} {item}" if items[place][1] else f"({separator} {item})?"
        rest = rule("rest", f"{more} {rest}")
    if first_must == len(items):
        firsts.append('""')
    return "(" + " | ".join(firsts) + ")"


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps(dict(schema) | {"x-guidance": _STYLE})
