"""Messages of the contract as an enemy or a mistake would make them, and a way to fuzz code that awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import hypothesis
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from tests.patience import PATIENCE_S

M = TypeVar("M", bound=Message)

UINT32 = st.one_of(st.integers(0, 9), st.sampled_from([2**31 - 1, 2**31, 2**32 - 1]), st.integers(0, 200))
UINT64 = st.one_of(UINT32, st.sampled_from([2**53, 2**63 - 1, 2**63, 2**64 - 1]))
SIGNED = st.one_of(st.integers(-9, 200), st.sampled_from([-(2**31), 2**31 - 1]))
FLOATS = st.one_of(st.floats(-2, 2), st.floats(width=32), st.just(0.0))
TEXT = st.one_of(st.sampled_from(["", "r", "a\x00b", "\n", "é" * 200, "../../etc"]), st.text(max_size=8))
BYTES = st.one_of(st.sampled_from([b"", b"\xff" * 40]), st.binary(max_size=20))

_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_UINT32: UINT32,
    FieldDescriptor.TYPE_UINT64: UINT64,
    FieldDescriptor.TYPE_FIXED64: UINT64,
    FieldDescriptor.TYPE_INT32: SIGNED,
    FieldDescriptor.TYPE_INT64: SIGNED,
    FieldDescriptor.TYPE_ENUM: st.integers(0, 9),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: FLOATS,
    FieldDescriptor.TYPE_FLOAT: FLOATS,
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_BYTES: BYTES,
}
FEW = 4
"""Elements of a repeated field, and fields set of a message, are few: examples stay readable."""


def messages(kind: type[M]) -> st.SearchStrategy[M]:
    """Any message of a type: some of its fields set, to whatever their types allow."""
    return _of(cast(Descriptor, kind.DESCRIPTOR)).map(lambda fields: _build(kind, fields))


def _of(descriptor: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    fields = {field.name: st.deferred(lambda field=field: _field(field)) for field in descriptor.fields}  # type: ignore[misc]  # a default has no annotation
    return st.fixed_dictionaries({}, optional=fields)


def _field(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return st.dictionaries(_field(key), _field(value), max_size=FEW)
    one = _of(field.message_type) if field.message_type is not None else _SCALARS[field.type]
    return st.lists(one, max_size=FEW) if field.is_repeated else one


def _build(kind: type[M], fields: dict[str, Any]) -> M:
    # Of the fields of a oneof the last one set counts, as on the wire.
    return kind(**fields)


Given = TypeVar("Given")


async def fuzz(
    strategy: st.SearchStrategy[Given], check: Callable[[Given], Coroutine[Any, Any, None]], examples: int
) -> None:
    """Await `check` for many examples on the running loop; a failing one is shrunk."""
    loop = asyncio.get_running_loop()

    @hypothesis.settings(max_examples=examples, deadline=None)
    @hypothesis.given(strategy)
    def one(example: Given) -> None:
        asyncio.run_coroutine_threadsafe(check(example), loop).result(timeout=PATIENCE_S)

    await asyncio.to_thread(one)
