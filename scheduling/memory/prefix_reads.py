"""Choose how a worker gets the blocks behind those in its pool: read, fetched from others, or computed.

    saved = time to compute the tokens (`disk_reads.py`) - time to read them

The read that saves the most is begun, if any saves something. It is stopped after the time that computing
would have taken, so a source that is slow, gone or wrong costs a sequence that time at most. Routers and
workers decide by the same rule: a router foresees what the worker will do.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.cost_model import CostModel
from scheduling.memory.disk_reads import read_limit_s
from scheduling.memory.preemption import recompute_s
from scheduling.value import value


@value
class TierHit:
    """Blocks of a prompt that a worker has in host memory or on its disk, behind those in its pool."""

    num_blocks: int
    read_s: float
    """How long the worker expects a read of all of them to take."""


@value
class PrefixRead:
    """Tokens behind those in a worker's pool that it could read."""

    num_tokens: int
    """At least 1."""
    read_s: float
    """How long the read is expected to take."""


@value
class ChosenRead:
    """The read to begin."""

    place: int
    """Its index among those that could be begun."""
    limit_s: float
    """After this time it is stopped."""


def choose_read(reads: Sequence[PrefixRead], num_before: int, cost: CostModel) -> ChosenRead | None:
    """Return the read that saves the most behind `num_before` tokens; None: computing is faster than each.

    Where the cost of steps is not known, a read saves more the more tokens it brings. Ties go to the first.
    """
    is_known = any(cost.coefficients)
    best: tuple[float, ChosenRead] | None = None
    for place, read in enumerate(reads):
        limit_s = read_limit_s(read.num_tokens, num_before, read.read_s, cost)
        if limit_s is None:
            continue
        saved = float(read.num_tokens)
        if is_known:
            saved = recompute_s(read.num_tokens, cost, num_before) - read.read_s
        if best is None or saved > best[0]:
            best = saved, ChosenRead(place, limit_s)
    return None if best is None else best[1]
