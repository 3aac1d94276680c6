"""The blocks whose content a draft model has computed too, for sequences that begin alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

HashOf = Callable[[int], bytes | None]
"""Returns the identity of a block's content if the prefix cache has it, and None otherwise."""


class ComputedBlocks:
    """Remembers the identity that each block had when the draft model had computed all of it.

    While a block has the same identity, which is that of all tokens up to its end, the draft model's KV in it
    is right as well, unless it has been written to since.
    """

    def __init__(self, num_blocks: int, hash_of: HashOf) -> None:
        self._known: list[bytes | None] = [None] * num_blocks
        self._hash_of = hash_of

    def begin(self, blocks: Iterable[int]) -> None:
        """The draft model writes to these blocks."""
        for block in blocks:
            self._known[block] = None

    def finish(self, blocks: Iterable[int]) -> None:
        """The draft model has computed all tokens of these blocks."""
        for block in blocks:
            self._known[block] = self._hash_of(block)

    def num_leading(self, block_table: Sequence[int]) -> int:
        """Return how many blocks at the beginning of a table are computed."""
        for place, block in enumerate(block_table):
            known = self._known[block]
            if known is None or known != self._hash_of(block):
                return place
        return len(block_table)
