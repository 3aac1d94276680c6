"""Values made from texts that may be asked for again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Kept(Generic[Key, Value]):
    """Values that were used last, as many as have `most` characters of source text in all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._num_characters = 0

    def get(self, key: Key) -> Value | None:
        entry = self._values.get(key)
        if entry is None:
            return None
        self._values.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, num_characters: int) -> None:
        """Keep a value that is not kept yet."""
        self._values[key] = value, num_characters
        self._num_characters += num_characters
        while self._num_characters > self._most:
            _, (_, num_left) = self._values.popitem(last=False)
            self._num_characters -= num_left
