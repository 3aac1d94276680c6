"""Token sequences that must not be completed: the last token is banned after all the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class BadWords:
    """The bad words of a request that have more than one token; those of one token are banned everywhere."""

    __slots__ = ("_by_last",)

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._by_last: dict[int, list[tuple[list[int], int]]] = {}
        """Maps the last token before a banned one to all tokens before the banned one, and the banned one."""
        for sequence in sequences:
            *before, banned = sequence
            if before:
                self._by_last.setdefault(before[-1], []).append((before, banned))

    def __bool__(self) -> bool:
        return bool(self._by_last)

    def banned_after(self, output: Sequence[int]) -> list[int]:
        """Return the tokens, ascending, that would complete a bad word behind this output."""
        ends = self._by_last.get(output[-1], ()) if output else ()
        found = {banned for before, banned in ends if list(output[-len(before) :]) == before}
        return sorted(found)
