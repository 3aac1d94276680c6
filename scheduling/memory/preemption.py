"""Who gives up its KV blocks when running sequences need some, and by which means.

    cost(RECOMPUTE) = what computing its tokens again adds to steps that are full:
                      c1 + c3·T + c5·T²/2 seconds for T tokens
    cost(SWAP)      = 2 · bytes / bandwidth: to host memory, and back
    price           = cost / min(blocks freed, blocks needed)

The least price goes, among those whose slack survives it: slack ≥ cost + the wait for blocks to come back.
Where nobody's does, the least price of all; what costs the same is decided by the fewest tokens, then by the
latest arrival. Recomputing and swapping are compared as in Kwon et al., "Efficient Memory Management for
Large Language Model Serving with PagedAttention", SOSP 2023, which fixes one of them; here each victim's
cheaper one is taken.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence

from scheduling.cost.cost_model import CostModel, StepShape
from scheduling.value import value


class Means(enum.Enum):
    """How a victim comes back."""

    RECOMPUTE = "recompute"
    """Its tokens are computed again, as far as the prefix cache has forgotten them."""
    SWAP = "swap"
    """Its blocks are copied to host memory, and back."""


@value
class VictimView:
    """A sequence, or choices that share a prompt, that could give its blocks up."""

    handle: int
    num_tokens: int
    """To be computed again, were it recomputed."""
    num_freed_blocks: int
    """Those that nobody else references, and those promised to it."""
    num_swap_blocks: int
    """To be copied, were it swapped."""
    arrival: int
    """Its place in the order of arrival."""
    slack_s: float = math.inf
    """Until its next token is due; 0 where it is late, infinite without a promise."""
    can_swap: bool = True
    """Whether it runs, and host memory has room for its blocks."""


@value
class SwapSpeed:
    """What swapping depends on."""

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
    """The victim, its means, and what that is predicted to cost."""

    handle: int
    means: Means
    cost_s: float


def choose(
    victims: Sequence[VictimView], needed: int, cost: CostModel, swap: SwapSpeed, *, wait_s: float = 0.0
) -> Preemption | None:
    """The next to give up its blocks while `needed` more are wanted; None where nobody would free any.

    `wait_s` is for how long a victim would be without blocks, as far as that is known.
    """
    if needed < 1:
        raise ValueError(f"needed is {needed}; accepted: at least 1")
    best: tuple[tuple[bool, float, float, int], Preemption] | None = None
    for victim in victims:
        if victim.num_freed_blocks < 1:
            continue
        useful = min(victim.num_freed_blocks, needed)
        for means, seconds in _means(victim, cost, swap):
            is_hurt = victim.slack_s < seconds + wait_s
            rank = (is_hurt, seconds / useful, victim.num_tokens / useful, -victim.arrival)
            if best is None or rank < best[0]:
                best = rank, Preemption(victim.handle, means, seconds)
    return None if best is None else best[1]


def recompute_s(num_tokens: int, cost: CostModel) -> float:
    """What computing a context of `num_tokens` adds to steps whose weights are paid for already."""
    full = StepShape(math.ceil(cost.knee_tokens), 0, 0, 0.0, 0)
    return cost.predict(full.with_chunk(0, num_tokens)) - cost.predict(full)


def _means(victim: VictimView, cost: CostModel, swap: SwapSpeed) -> Iterator[tuple[Means, float]]:
    yield Means.RECOMPUTE, recompute_s(victim.num_tokens, cost)
    if victim.can_swap:
        yield Means.SWAP, 2 * victim.num_swap_blocks * swap.block_bytes / swap.bytes_per_s
