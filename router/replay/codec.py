"""Convert frozen dataclasses to JSON and back by their type hints: each becomes a row of its fields, in
order.

Both directions are prepared once per type. Field names are not in the rows but in `schema`, which lists the
fields of every type that rows can contain and is written once.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

Convert = Callable[[Any], Any]


class UnknownType(TypeError):
    """This codec cannot convert values of a type hint."""

    def __init__(self, hint: object, where: str) -> None:
        super().__init__(
            f"{where} is {hint!r}; accepted: int, float, str, bool, bytes, enums, dataclasses of these, and "
            "optionals, tuples, lists, sequences and mappings of those"
        )


class Codec:
    """Converts some types and everything they consist of. `special` gives converters for single types."""

    def __init__(self, special: Mapping[type, tuple[Convert, Convert]] | None = None) -> None:
        self._special = {bytes: (bytes.hex, bytes.fromhex), **(special or {})}
        self._made: dict[type, tuple[Convert | None, Convert | None]] = {}
        self.schema: dict[str, list[str]] = {}

    def of(self, hint: Any, where: str = "the value") -> tuple[Convert, Convert]:
        """Return converters to JSON and from JSON for a hint; raises `UnknownType`."""
        encode, decode = self._of(hint, where)
        return encode or _same, decode or _same

    def _of(self, hint: Any, where: str) -> tuple[Convert | None, Convert | None]:
        """Return both converters; None for values that stay as they are."""
        if hint in (int, float, str, bool):
            return None, None
        if hint in self._special:
            return self._special[hint]
        if typing.get_origin(hint) is not None:
            return self._of_many(hint, where)
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return attrgetter("value"), hint
        if isinstance(hint, type) and is_dataclass(hint):
            return self._dataclass(hint)
        raise UnknownType(hint, where)

    def _of_many(self, hint: Any, where: str) -> tuple[Convert, Convert]:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments, where)
        if origin is tuple and arguments[1:] != (Ellipsis,):
            return self._fixed(arguments, where)
        if origin in (tuple, list, Sequence):
            return self._sequence(arguments[0], tuple if origin is tuple else list, where)
        if origin is Mapping and arguments[0] is str:
            return self._mapping(arguments[1], where)
        raise UnknownType(hint, where)

    def _union(self, arguments: Sequence[Any], where: str) -> tuple[Convert, Convert]:
        members = [member for member in arguments if member is not types.NoneType]
        if len(members) == 1:
            encode, decode = self.of(members[0], where)
            return (
                lambda value: None if value is None else encode(value),
                lambda value: None if value is None else decode(value),
            )
        if len(members) < len(arguments) or not all(map(is_dataclass, members)):
            raise UnknownType(arguments, where)
        return self._tagged({member: self.of(member, where) for member in members})

    def _tagged(self, members: Mapping[type, tuple[Convert, Convert]]) -> tuple[Convert, Convert]:
        encoders = {member: (member.__name__, encode) for member, (encode, _) in members.items()}
        decoders = {member.__name__: decode for member, (_, decode) in members.items()}

        def encode(value: Any) -> list[Any]:
            name, row = encoders[type(value)]
            return [name, row(value)]

        def decode(value: Any) -> Any:
            name, row = value
            if name not in decoders:
                raise ValueError(f"{name!r} is not one of {', '.join(decoders)}")
            return decoders[name](row)

        return encode, decode

    def _fixed(self, arguments: Sequence[Any], where: str) -> tuple[Convert, Convert]:
        pairs = [self.of(argument, where) for argument in arguments]
        return (
            lambda value: [encode(part) for (encode, _), part in zip(pairs, value, strict=True)],
            lambda value: tuple(decode(part) for (_, decode), part in zip(pairs, value, strict=True)),
        )

    def _sequence(self, element: Any, made: Convert, where: str) -> tuple[Convert, Convert]:
        encode, decode = self._of(element, where)
        return (
            list if encode is None else lambda value: [encode(part) for part in value],
            made if decode is None else lambda value: made(decode(part) for part in value),
        )

    def _mapping(self, element: Any, where: str) -> tuple[Convert, Convert]:
        encode, decode = self.of(element, where)
        return (
            lambda value: {key: encode(part) for key, part in value.items()},
            lambda value: {key: decode(part) for key, part in value.items()},
        )

    def _dataclass(self, hint: type) -> tuple[Convert | None, Convert | None]:
        if hint in self._made:
            return self._made[hint]
        hints = typing.get_type_hints(hint)
        names = [field.name for field in fields(hint) if field.init]
        self.schema[hint.__name__] = names
        pairs = [self._of(hints[name], f"{hint.__name__}.{name}") for name in names]
        to_json = [(place, encode) for place, (encode, _) in enumerate(pairs) if encode is not None]
        from_json = [(place, decode) for place, (_, decode) in enumerate(pairs) if decode is not None]
        self._made[hint] = _row_of(names, to_json), _value_of(hint, from_json, len(names))
        return self._made[hint]


def _same(value: Any) -> Any:
    return value


def _row_of(names: Sequence[str], converted: Sequence[tuple[int, Convert]]) -> Convert:
    if not names:
        return lambda _: []
    if len(names) == 1:
        only = attrgetter(names[0])
        encode = converted[0][1] if converted else _same
        return lambda value: [encode(only(value))]
    get = attrgetter(*names)

    def row(value: Any) -> list[Any]:
        cells = list(get(value))
        for place, encode in converted:
            cells[place] = encode(cells[place])
        return cells

    return row


def _value_of(hint: type, converted: Sequence[tuple[int, Convert]], count: int) -> Convert:
    def value(row: Any) -> Any:
        if len(row) != count:
            raise ValueError(f"{hint.__name__} has {len(row)} fields; accepted: {count}")
        cells = list(row)
        for place, decode in converted:
            cells[place] = decode(cells[place])
        return hint(*cells)

    return value
