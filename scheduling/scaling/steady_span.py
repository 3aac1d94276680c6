"""How long the load has been steady, so that the mean of that time says what it is now.

Requests come at random: the mean of a short span has much chance in it, and that of a long one also the load
of before. The longest span is taken that no shorter one contradicts (Lepski, "On a problem of adaptive
estimation in Gaussian white noise", 1991). A shorter span contradicts a longer one if it has more or fewer
requests, or prompt tokens, than its part of the longer one has by chance. How much is chance follows from the
differences between neighbouring slots, which a lasting change moves only once (von Neumann, "Distribution of
the ratio of the mean square successive difference to the variance", 1941). Nothing is assumed about how
requests come.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from scheduling.scaling.demand import NUM_SLOTS, Slot

SPANS = (3, 6, 12, 24, 48, 96, NUM_SLOTS)
"""Slots: from 15 seconds to all that are kept."""
STRANGE = 4.0
"""Standard deviations that are no chance."""
ROUNDING = 1e-9
"""The share of a sum by which two may differ that should be equal."""


def steady_span(slots: Sequence[Slot]) -> int:
    """Return how many of the last slots had one load; 0 without any slots."""
    prompts = _steady([slot.prompts for slot in slots])
    tokens = _steady([slot.prompt_tokens for slot in slots])
    return min(prompts, tokens)


def _steady(loads: Sequence[float]) -> int:
    """Return how many of the last numbers have one mean."""
    changes = [(after - before) ** 2 for before, after in pairwise(loads)]
    variance = sum(changes) / 2 / len(changes) if changes else 0.0
    sums: list[tuple[int, float]] = []
    total = 0.0
    for length, load in enumerate(reversed(loads), 1):
        total += load
        if length not in SPANS and length != len(loads):
            continue
        for shorter, part in sums:
            share = shorter / length
            chance = STRANGE**2 * variance * shorter * (1 - share)
            if (part - share * total) ** 2 > chance + (ROUNDING * total) ** 2:
                return sums[-1][0]
        sums.append((length, total))
    return len(loads)
