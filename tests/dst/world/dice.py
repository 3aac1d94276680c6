"""Randomness by name: a draw depends on the seed and its own name, and on no draw before it.

Taking one fault or one message out of a run thus leaves all other draws as they were, which is what makes a
failing run smaller without making it another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")
_SCALE = 1.0 / (1 << 64)


class Dice:
    """The draws of one seed. Names are any values whose `repr` is the same in every process."""

    def __init__(self, seed: int | str) -> None:
        self._seed = str(seed).encode()

    def share(self, *name: object) -> float:
        """Return a number from 0 up to 1, which is not reached."""
        digest = blake2b(repr(name).encode(), digest_size=8, key=self._seed[:64]).digest()
        return int.from_bytes(digest, "little") * _SCALE

    def between(self, low: float, high: float, *name: object) -> float:
        return low + (high - low) * self.share(*name)

    def whole(self, low: int, high: int, *name: object) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return low + int((high - low + 1) * self.share(*name))

    def one_of(self, options: Sequence[T], *name: object) -> T:
        return options[int(len(options) * self.share(*name))]

    def happens(self, chance: float, *name: object) -> bool:
        return self.share(*name) < chance
