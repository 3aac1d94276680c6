"""Values that may be asked for again, within a bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """Values that were used last, as many as have the size `most` in all: characters of source text, say."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._size = 0

    def get(self, key: Key) -> Value | None:
        entry = self._values.get(key)
        if entry is None:
            return None
        self._values.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep a value that is not kept yet."""
        self._values[key] = value, size
        self._size += size
        while self._size > self._most:
            _, (_, size_left) = self._values.popitem(last=False)
            self._size -= size_left
