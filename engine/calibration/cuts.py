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


def cut_ways(
    lengths: Sequence[int], chunks: Sequence[Sequence[int]], beside: Sequence[int]
) -> Iterator[tuple[str, Steps]]:
    """Yield ways to cut sequences of these lengths into steps, by name.

    Each of `chunks` has a size for every sequence. `beside` has one for every sequence but the first, for
    chunks that come while the first is decoded.
    """
    for sizes in chunks:
        named = ", ".join(map(str, sizes))
        yield f"in chunks of {named}, together", in_chunks(lengths, sizes)
    heads = [Piece(which, 0, length - _tail(length)) for which, length in enumerate(lengths)]
    tails = [
        [Piece(which, place, place + 1) for place in range(length - _tail(length), length)]
        for which, length in enumerate(lengths)
    ]
    one_by_one = [*heads, *(piece for tail in tails for piece in tail)]
    yield "token by token, alone", [[piece] for piece in one_by_one]
    yield "token by token, together", [heads, *_together(tails)]
    # The longest is decoded while the others' prompts are computed in chunks, in the reverse order.
    others = [list(_cut(which, lengths[which], size)) for which, size in enumerate(beside, start=1)]
    decoded = _together([tails[0], *others])
    yield "decoded while chunks of others come", [[heads[0]], *(step[::-1] for step in decoded)]


def in_chunks(lengths: Sequence[int], sizes: Sequence[int]) -> Steps:
    """Cut each sequence into chunks of its size; a step has the next chunk of every sequence."""
    cuts = zip(lengths, sizes, strict=True)
    return _together([list(_cut(which, length, size)) for which, (length, size) in enumerate(cuts)])


def _tail(length: int) -> int:
    return min(NUM_TAIL, length - 1)


def _cut(sequence: int, length: int, size: int) -> Iterator[Piece]:
    for begin in range(0, length, size):
        yield Piece(sequence, begin, min(begin + size, length))


def _together(cuts: Sequence[Sequence[Piece]]) -> Steps:
    """Put the next piece of every sequence into each step, while it has one."""
    longest = max(len(pieces) for pieces in cuts)
    return [[pieces[index] for pieces in cuts if index < len(pieces)] for index in range(longest)]
