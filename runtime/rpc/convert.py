"""Convert protobuf messages to and from dataclasses with the same field names."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from google.protobuf.message import Message

from baton.worker.v1 import attempt_pb2, worker_pb2
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.request import Fence

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def to_pb(kind: type[M], value: object, **extra: Any) -> M:
    """Return a message with the fields of `value`; those in `extra` come from there. None stays unset."""
    described: Any = kind
    names = _message_fields(described)
    return kind(**{name: getattr(value, name) for name in names if name not in extra}, **extra)


def from_pb(kind: type[T], message: Message, **extra: Any) -> T:
    """Return a dataclass `kind` with the fields of a message; those in `extra` come from there.

    An optional field that is unset becomes None, a repeated one a tuple.
    """
    described: Any = kind
    names = _dataclass_fields(described)
    return kind(**{name: field_of(message, name) for name in names if name not in extra}, **extra)


def field_of(message: Message, name: str) -> Any:
    """Return one field; None if it is optional and unset, a tuple if it is repeated."""
    kind: Any = type(message)
    has_presence, is_repeated = _message_fields(kind)[name]
    if has_presence and not message.HasField(name):
        return None
    value = getattr(message, name)
    return tuple(value) if is_repeated else value


@cache
def _message_fields(kind: Any) -> dict[str, tuple[bool, bool]]:
    """Return for each field of a message whether it knows that it is unset, and whether it is repeated.

    This is kept: to look it up takes protobuf longer than to read the field.
    """
    return {
        name: (field.has_presence, field.is_repeated)
        for name, field in kind.DESCRIPTOR.fields_by_name.items()
    }


@cache
def _dataclass_fields(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.init)


def fence_to_pb(fence: Fence) -> attempt_pb2.Fence:
    return to_pb(attempt_pb2.Fence, fence)


def fence_from_pb(message: attempt_pb2.Fence) -> Fence:
    return from_pb(Fence, message)


def cost_to_pb(cost: CostModel) -> worker_pb2.CostModel:
    band = None if cost.chunk_band is None else to_pb(worker_pb2.Band, cost.chunk_band)
    return to_pb(worker_pb2.CostModel, cost, chunk_band=band)


def columns_to_pb(columns: TokenColumns) -> attempt_pb2.TokenColumns:
    return to_pb(attempt_pb2.TokenColumns, columns)


def columns_from_pb(message: attempt_pb2.TokenColumns) -> TokenColumns:
    """Return the columns as lists: protobuf's containers are slow to read row by row."""
    names = _dataclass_fields(TokenColumns)
    columns = {name: list(getattr(message, name)) for name in names if name != "text_utf8"}
    return TokenColumns(**columns, text_utf8=message.text_utf8)
