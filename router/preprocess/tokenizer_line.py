"""The order of the tokenizer processes: half of their time goes to the shortest text, half to the oldest.

In order of arrival, a short text would wait for every long one before it. With the shortest first, a long
text would wait for as long as short ones arrive. Texts of about the same length stay in order of arrival.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

NUM_CLASSES = 32
"""The number of size classes; the size doubles from one class to the next."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One text's place in the line."""

    size: int
    number: int
    """The number of its arrival."""


class TokenizerLine:
    """The waiting texts. Sizes are in any unit of work, at least 1."""

    def __init__(self) -> None:
        self._classes: list[OrderedDict[int, Place]] = [OrderedDict() for _ in range(NUM_CLASSES)]
        self._sizes = [0] * NUM_CLASSES
        """The sum of sizes in each class."""
        self._arrived = 0
        self._balance = 0
        """Work served because it was the oldest, minus work served because it was the shortest."""

    def __len__(self) -> int:
        return sum(map(len, self._classes))

    @property
    def size(self) -> int:
        """The sum of all sizes."""
        return sum(self._sizes)

    def join(self, size: int) -> Place:
        """Take the last place among texts of this size."""
        self._arrived += 1
        place = Place(size, self._arrived)
        self._classes[_class_of(size)][place.number] = place
        self._sizes[_class_of(size)] += size
        return place

    def leave(self, place: Place) -> None:
        """Give up a place; no error if it was taken already."""
        if self._classes[_class_of(place.size)].pop(place.number, None) is not None:
            self._sizes[_class_of(place.size)] -= place.size
        if not any(self._classes):
            self._balance = 0

    def take(self) -> Place | None:
        """Remove and return the next place; None if the line is empty."""
        heads = [next(iter(waiting.values())) for waiting in self._classes if waiting]
        if not heads:
            return None
        shortest, oldest = heads[0], min(heads, key=lambda place: place.number)
        chosen = shortest if self._balance >= 0 else oldest
        if shortest is not oldest:
            self._balance += chosen.size if chosen is oldest else -chosen.size
        self.leave(chosen)
        return chosen

    def before(self, size: int) -> int:
        """Return the work before a newcomer of this size, if nothing arrives after it."""
        not_longer = sum(self._sizes[: _class_of(size) + 1])
        return min(self.size, 2 * not_longer)


def _class_of(size: int) -> int:
    return min(NUM_CLASSES, max(1, size.bit_length())) - 1
