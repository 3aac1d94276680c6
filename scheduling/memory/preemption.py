"""Choose the sequence that gives up its KV blocks when running ones need some, and by which means.

    cost(RECOMPUTE) = time that computing its tokens again adds to steps that are full:
                      c1 + c3·T + c5·T²/2 seconds for T tokens
    cost(SWAP)      = 2 · bytes / bandwidth: to host memory, and back
    price           = cost / min(blocks freed, blocks needed)

The victim is the sequence of the least price among those whose slack survives it: slack ≥ cost. How long a
victim will wait for blocks is not known, and does not count. If no slack survives, it is the least price of
all. Ties go to the fewest tokens, then to the latest arrival. Recomputing and swapping are compared as in
Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
which fixes one of them; here the cheaper one is chosen for each victim.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence

from scheduling.cost_model import CostModel, StepShape
from scheduling.value import value


class Means(enum.Enum):
    """How a victim comes back."""

    RECOMPUTE = "recompute"
    """Its tokens are computed again, unless they are still in the prefix cache."""
    SWAP = "swap"
    """Its blocks are copied to host memory, and back."""


@value
class VictimView:
    """A sequence, or choices that share a prompt, that could give up its blocks."""

    key: int
    """Its group's key, by which the chosen victim is found."""
    num_tokens: int
    """Tokens to compute again if it is recomputed."""
    num_freed_blocks: int
    """Blocks that no other sequence references, and blocks promised to it."""
    num_swap_blocks: int
    """Blocks to copy if it is swapped."""
    arrival: int
    """Its place in the order of arrival."""
    slack_s: float = math.inf
    """Seconds until its next token is due; 0 if it is late, infinite without a promise."""
    can_swap: bool = True
    """It runs, and host memory has room for its blocks."""


@value
class SwapSpeed:
    """Size and speed that swapping depends on."""

    block_bytes: int
    bytes_per_s: float

    def __post_init__(self) -> None:
        if self.block_bytes < 1 or not self.bytes_per_s > 0:
            raise ValueError(
                f"block_bytes, bytes_per_s are {self.block_bytes}, {self.bytes_per_s}; "
                "accepted: from 1, above 0"
            )


@value
class Preemption:
    """The victim, its means, and the predicted cost."""

    key: int
    means: Means
    cost_s: float


def choose(victims: Sequence[VictimView], needed: int, cost: CostModel, swap: SwapSpeed) -> Preemption | None:
    """Choose the next victim while `needed` more blocks are wanted; None if no sequence would free any."""
    if needed < 1:
        raise ValueError(f"needed is {needed}; accepted: at least 1")
    best: tuple[tuple[bool, float, float, int], Preemption] | None = None
    for victim in victims:
        if victim.num_freed_blocks < 1:
            continue
        useful = min(victim.num_freed_blocks, needed)
        for means, seconds in _means(victim, cost, swap):
            is_hurt = victim.slack_s < seconds
            rank = (is_hurt, seconds / useful, victim.num_tokens / useful, -victim.arrival)
            if best is None or rank < best[0]:
                best = rank, Preemption(victim.key, means, seconds)
    return None if best is None else best[1]


def recompute_s(num_tokens: int, cost: CostModel, num_before: int = 0) -> float:
    """Return the seconds that computing `num_tokens` behind `num_before` others adds to steps at the knee."""
    full = StepShape(math.ceil(cost.knee_tokens), 0, 0, 0.0, 0)
    return cost.above_floor(full.with_chunk(num_before, num_tokens)) - cost.above_floor(full)


def _means(victim: VictimView, cost: CostModel, swap: SwapSpeed) -> Iterator[tuple[Means, float]]:
    yield Means.RECOMPUTE, recompute_s(victim.num_tokens, cost)
    if victim.can_swap:
        yield Means.SWAP, 2 * victim.num_swap_blocks * swap.block_bytes / swap.bytes_per_s
