"""Waiting requests in order, with the number and the work of those ahead of any of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

Place = tuple[int, str]
"""Score and request key: like Redis, which orders equal scores by their members."""
MOST = 256
"""Places of a block. A call looks at one block, and at the sums of those before it."""


@dataclass(slots=True)
class _Block:
    """Places that follow each other, with the work of each and of all."""

    places: list[Place] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    sum_of_tokens: int = 0


class WaitingLine:
    """Places in order, each at most once. With ten thousand of them a call takes some microseconds."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._lasts: list[Place] = []
        """The last place of each block."""
        self._num_places = 0

    def __len__(self) -> int:
        return self._num_places

    @property
    def tokens(self) -> int:
        """Tokens of all waiting requests."""
        return sum(block.sum_of_tokens for block in self._blocks)

    @property
    def head(self) -> Place | None:
        """The first place."""
        return self._blocks[0].places[0] if self._blocks else None

    def first(self, most: int) -> list[Place]:
        """Return the first places, at most so many."""
        return list(islice(self._places, most))

    @property
    def _places(self) -> Iterator[Place]:
        return chain.from_iterable(block.places for block in self._blocks)

    def add(self, place: Place, tokens: int) -> None:
        """Add a place with its work."""
        if not self._blocks:
            self._blocks.append(_Block())
            self._lasts.append(place)
        number = min(bisect_left(self._lasts, place), len(self._lasts) - 1)
        block = self._blocks[number]
        at = bisect_left(block.places, place)
        assert block.places[at : at + 1] != [place], place
        block.places.insert(at, place)
        block.tokens.insert(at, tokens)
        block.sum_of_tokens += tokens
        self._num_places += 1
        if len(block.places) > MOST:
            self._split(number)
        else:
            self._lasts[number] = block.places[-1]

    def remove(self, place: Place) -> None:
        """Remove a place that is there."""
        number = bisect_left(self._lasts, place)
        block = self._blocks[number]
        at = bisect_left(block.places, place)
        assert block.places[at] == place, place
        block.sum_of_tokens -= block.tokens[at]
        del block.places[at], block.tokens[at]
        self._num_places -= 1
        if block.places:
            self._lasts[number] = block.places[-1]
        else:
            del self._blocks[number], self._lasts[number]

    def ahead_of(self, place: Place) -> tuple[int, int]:
        """Return the number of requests ahead of `place`, and their work."""
        number = bisect_left(self._lasts, place)
        before = self._blocks[:number]
        count = sum(len(block.places) for block in before)
        tokens = sum(block.sum_of_tokens for block in before)
        if number < len(self._blocks):
            block = self._blocks[number]
            at = bisect_left(block.places, place)
            count, tokens = count + at, tokens + sum(block.tokens[:at])
        return count, tokens

    def _split(self, number: int) -> None:
        """Divide a block that has become too long."""
        block, half = self._blocks[number], MOST // 2
        later = _Block(block.places[half:], block.tokens[half:], sum(block.tokens[half:]))
        del block.places[half:], block.tokens[half:]
        block.sum_of_tokens -= later.sum_of_tokens
        self._blocks.insert(number + 1, later)
        self._lasts[number : number + 1] = [block.places[-1], later.places[-1]]
