"""Set fields of the contract's messages from values that callers give, and show values in errors and JSON."""

from __future__ import annotations

import json
from collections.abc import MutableMapping, MutableSequence
from dataclasses import fields
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from baton.errors import FieldViolation, InvalidRequest

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


# The values that a field can carry, by its protobuf type.
_ACCEPTED = {
    FieldDescriptor.CPPTYPE_UINT32: f"a whole number from 0 to {2**32 - 1}",
    FieldDescriptor.CPPTYPE_UINT64: f"a whole number from 0 to {2**64 - 1}",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_MESSAGE: "token ids with a number for each",  # the only map
}


_SCALARS = frozenset({str, int, float, bool})


def put_all(message: Message, prefix: str, options: object, **given: Any) -> None:
    """Set each field of a message, which is then set itself, from `given`, or else from `options`."""
    message.SetInParent()
    for name in _fields_of(message.DESCRIPTOR):
        _put(message, prefix, name, given[name] if name in given else getattr(options, name))


def put(message: Message, prefix: str, **values: Any) -> None:
    """Set the values that are not None. Protobuf refuses a value of the wrong type or outside its range."""
    for name, value in values.items():
        _put(message, prefix, name, value)


@cache
def _fields_of(descriptor: Descriptor) -> tuple[str, ...]:
    return tuple(descriptor.fields_by_name)


def _put(message: Message, prefix: str, name: str, value: Any) -> None:
    if value is None or (type(value) is tuple and not value):  # most fields of most messages
        return
    if type(value) in _SCALARS:
        try:
            setattr(message, name, value)
        except (AttributeError, TypeError, ValueError):  # a list, or the wrong type: what follows says so
            pass
        else:
            return
    target: Any = getattr(message, name)
    is_list = isinstance(target, MutableSequence)
    try:
        if is_list:
            target.extend(_parts(value))
        elif isinstance(target, MutableMapping):
            target.update(value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError) as error:
        kind = message.DESCRIPTOR.fields_by_name[name].cpp_type
        accepted = f"{'a list; each entry ' if is_list else ''}{_ACCEPTED.get(kind, str(error))}"
        raise invalid(prefix + name, value, f"it must be {accepted}") from None


def _parts(values: Any) -> Any:
    """Refuse a string: it is a sequence of characters too, which nobody means."""
    if isinstance(values, str):
        raise TypeError("a sequence")
    return values


@cache
def names_of(kind: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in fields(kind))


def json_of(field: str, value: object) -> str:
    """Return a schema as JSON; a text is one already. Raises `InvalidRequest`."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        accepted = "a JSON Schema"
        violation = FieldViolation(field, accepted)
        raise InvalidRequest(f"{field} is no JSON ({error}); accepted: {accepted}", [violation]) from None


def invalid(field: str, value: object, accepted: str) -> InvalidRequest:
    return InvalidRequest(f"{field} is {shown(value)}: {accepted}", [FieldViolation(field, accepted)])
