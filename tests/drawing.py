"""Values of any dataclass for property tests, drawn by the types of its fields."""

from __future__ import annotations

import enum
import typing
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

SMALL = st.integers(0, 2**32 - 1)
LARGE = st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
SOME_NAME = NAMES.filter(bool)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
_PLAIN = {
    int: SMALL,
    float: FINITE,
    str: NAMES,
    bytes: st.binary(max_size=5),
    bool: st.booleans(),
    NoneType: st.none(),
}


def drawn(kind: type[T], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[T]:
    """Draw all fields that the constructor takes: by these strategies, or else what `_PLAIN` has."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.init]  # type: ignore[arg-type] # a dataclass
    others = {name: _of(hints[name]) for name in names if name not in given}
    return st.builds(kind, **others, **given)


def _of(hint: Any) -> st.SearchStrategy[Any]:
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is tuple and arguments[1:] != (Ellipsis,):
        return st.tuples(*map(_of, arguments))
    if origin in (tuple, Sequence):
        rows = st.lists(_of(arguments[0]), max_size=3)
        return rows.map(tuple) if origin is tuple else rows
    if arguments:
        return st.one_of(*map(_of, arguments))
    if hint in _PLAIN:
        return _PLAIN[hint]
    if is_dataclass(hint):
        return drawn(typing.cast("type[Any]", hint))
    assert issubclass(hint, enum.Enum), hint
    return st.sampled_from(hint)
