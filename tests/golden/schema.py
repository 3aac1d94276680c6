"""Describes types as JSON, so that stored rows can be read and changed after the types have changed.

A type is a name ("int", "Slo", "SloClass"), or a list: ["optional", T], ["list", T], ["map", T],
["tuple", T, U], ["union", A, B]. `Schema` has the fields of every named dataclass and the members of every
named enum; any other name is a value that is stored as it is.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

Kind = str | list[Any]


@dataclass(slots=True)
class Schema:
    """The dataclasses and enums that rows are made of, by name."""

    types: dict[str, dict[str, Kind]] = field(default_factory=dict)
    """Fields in the order of a row."""
    enums: dict[str, list[Any]] = field(default_factory=dict)
    """The values of all members, as they are stored."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Classes by the names that they have in stored rows, where these are others."""
    special: Mapping[type, Kind] = field(default_factory=dict)
    """The kinds of types that are stored in a form of their own."""

    def add(self, hint: Any) -> Kind:
        """Describe a type; its dataclasses and enums are entered."""
        if typing.get_origin(hint) is not None:
            return self._add_generic(hint)
        if hint in self.special:
            return self.special[hint]
        if isinstance(hint, type) and is_dataclass(hint):
            self._add_dataclass(hint)
        elif issubclass(hint, enum.Enum):
            self.enums[hint.__name__] = sorted((member.value for member in hint), key=str)
        return str(hint.__name__)

    def as_json(self) -> dict[str, Any]:
        return {"types": self.types, "enums": self.enums, "renamed": self.renamed}

    def _add_generic(self, hint: Any) -> Kind:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            known = [self.add(argument) for argument in arguments if argument is not types.NoneType]
            return ["optional", known[0]] if len(known) < len(arguments) else ["union", *known]
        if origin is tuple and arguments[1:] != (Ellipsis,):
            return ["tuple", *(self.add(argument) for argument in arguments)]
        if origin in (tuple, list, Sequence):
            return ["list", self.add(arguments[0])]
        assert origin is Mapping, f"{hint!r} is of no kind that a row can hold"
        return ["map", self.add(arguments[1])]

    def _add_dataclass(self, hint: type) -> None:
        if hint.__name__ in self.types:
            return
        hints = typing.get_type_hints(hint)
        self.types[hint.__name__] = {}  # entered first: its fields may be of its own type
        row = {part.name: self.add(hints[part.name]) for part in fields(hint) if part.init}
        self.types[hint.__name__] = row


def differences(stored: Schema, current: Schema, *, in_order: bool = True) -> list[str]:
    """Say in what the types of a stored file differ from those of the code; empty if in nothing."""
    found = []
    classes, enums = (stored.types, current.types), (stored.enums, current.enums)
    for what, (old, new) in (("class", classes), ("enum", enums)):
        found += [f"{what} {name} is stored, but not in the code" for name in old.keys() - new.keys()]
        found += [f"{what} {name} is in the code, but not stored" for name in new.keys() - old.keys()]
    for name in stored.types.keys() & current.types.keys():
        before, after = stored.types[name], current.types[name]
        found += _field_differences(name, before, after)
        if in_order and before.keys() == after.keys() and list(before) != list(after):
            found.append(f"{name} has its fields in another order")
    found += [
        f"enum {name} is stored with the values {stored.enums[name]}, and the code has {current.enums[name]}"
        for name in stored.enums.keys() & current.enums.keys()
        if stored.enums[name] != current.enums[name]
    ]
    return sorted(found)


def _field_differences(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    gone = [f"{name}.{part} is stored, but not in the code" for part in before.keys() - after.keys()]
    new = [f"{name}.{part} is in the code, but not stored" for part in after.keys() - before.keys()]
    changed = [
        f"{name}.{part} is stored as {before[part]}, and {after[part]} in the code"
        for part in before.keys() & after.keys()
        if before[part] != after[part]
    ]
    return gone + new + changed
