"""Ways to cut the tokens of a few sequences into steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NUM_TAIL = 3
"""Number of last tokens of a sequence that are decoded one by one."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `begin` to `end` of a sequence, computed in one step."""

    sequence: int
    begin: int
    end: int


Steps = list[list[Piece]]


def in_chunks(lengths: Sequence[int], sizes: Sequence[int]) -> Steps:
    """Cut each sequence into chunks of its size; a step has the next chunk of every sequence."""
    cuts = zip(lengths, sizes, strict=True)
    return _together([list(_cut(which, length, size)) for which, (length, size) in enumerate(cuts)])


def token_by_token(lengths: Sequence[int], *, together: bool) -> Steps:
    """Compute all but the last tokens in the first step or steps, and then those one by one."""
    heads, tails = _heads(lengths), _tails(lengths)
    if together:
        return [heads, *_together(tails)]
    return [[piece] for piece in [*heads, *(piece for tail in tails for piece in tail)]]


def decoded_beside(lengths: Sequence[int], sizes: Sequence[int]) -> Steps:
    """Decode the first sequence while the others come in chunks of these sizes, in the reverse order."""
    others = [list(_cut(which, lengths[which], size)) for which, size in enumerate(sizes, start=1)]
    decoded = _together([_tails(lengths)[0], *others])
    return [[_heads(lengths)[0]], *(step[::-1] for step in decoded)]


def _heads(lengths: Sequence[int]) -> list[Piece]:
    return [Piece(which, 0, length - _tail(length)) for which, length in enumerate(lengths)]


def _tails(lengths: Sequence[int]) -> list[list[Piece]]:
    return [
        [Piece(which, place, place + 1) for place in range(length - _tail(length), length)]
        for which, length in enumerate(lengths)
    ]


def _tail(length: int) -> int:
    return min(NUM_TAIL, length - 1)


def _cut(sequence: int, length: int, size: int) -> Iterator[Piece]:
    for begin in range(0, length, size):
        yield Piece(sequence, begin, min(begin + size, length))


def _together(cuts: Sequence[Sequence[Piece]]) -> Steps:
    """Put the next piece of every sequence into each step, while it has one."""
    longest = max(len(pieces) for pieces in cuts)
    return [[pieces[index] for pieces in cuts if index < len(pieces)] for index in range(longest)]
