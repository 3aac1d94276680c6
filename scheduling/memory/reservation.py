"""How many KV blocks running sequences will need, as expected from the lengths of recent outputs."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable

DEVIATION = 0.75
"""Standard deviation of an output length divided by its mean: between lognormal (0.6) and exponential (1)."""


class LengthQuantiles:
    """The last `window` output lengths, to predict how long a running output gets."""

    # With fewer examples the longest output is assumed: a guess that is too low costs computed work.
    MIN_EXAMPLES = 8

    def __init__(self, window: int = 512) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; accepted: at least 1")
        self._window = window
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def observe(self, num_tokens: int) -> None:
        """Learn from an output that ended by itself after `num_tokens`."""
        if len(self._recent) == self._window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(num_tokens)
        insort(self._sorted, num_tokens)

    def remaining(self, num_so_far: int, limit: int, share: float) -> int:
        """Return the tokens still to come that a share of outputs does not exceed, 1 to `limit - num_so_far`.

        Only outputs longer than `num_so_far` count: P(total ≤ x | total > so far) ≥ share.
        """
        begin = bisect_right(self._sorted, num_so_far)
        num_longer = len(self._sorted) - begin
        most = max(1, limit - num_so_far)
        if num_longer < self.MIN_EXAMPLES:
            return most
        place = begin + min(num_longer - 1, int(share * num_longer))
        return min(most, self._sorted[place] - num_so_far)


def spread(index: int) -> float:
    """Return a share from 0 to 1 for the index-th sequence; any run of indexes covers 0 to 1 evenly.

    It is the fraction of a multiple of the golden ratio: the least clustered of all such sequences (Knuth,
    "The Art of Computer Programming" 3, 6.4).
    """
    return (index * 0.6180339887498949) % 1.0


def peak_blocks(sequences: Iterable[tuple[float, int]], block_size: int) -> int:
    """Return the most blocks that running sequences will hold at one time, if each runs as long as expected.

    A sequence is (blocks it holds, tokens still to come). All get a token per step, and give their blocks
    back when they end. The peak is just before a sequence ends, so each end is examined. One standard
    deviation of the sum is added, with the lengths taken as independent.

    A sum of one high quantile per sequence would keep half of the pool for outputs that never get that long,
    and ignore that short outputs make room for long ones: Gong et al., "Past-Future Scheduler for LLM Serving
    under SLA Guarantees", ASPLOS 2025. There, lengths are drawn at random from past outputs; here, `spread`
    gives each sequence its own quantile, which needs no randomness and less of a margin.
    """
    peak = held = squares = 0.0
    for count, (blocks, remaining) in enumerate(sorted(sequences, key=_by_remaining, reverse=True), 1):
        held += blocks
        squares += remaining * remaining
        peak = max(peak, held + (count * remaining + DEVIATION * math.sqrt(squares)) / block_size)
    return math.ceil(peak)


def _by_remaining(sequence: tuple[float, int]) -> int:
    return sequence[1]
