"""Where a request runs: filter, score, pick, as plain functions in lists.

A decode worker is picked by what placement leaves of its promises; a path, where each request has its own, by
how early it has the first token.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from scheduling.value import value


class Placement(enum.Enum):
    """Who decides which path a request goes."""

    AGGREGATED = "aggregated"
    """All compute their prompts where they decode; prefill workers idle."""
    DISAGGREGATED = "disaggregated"
    """Prefill workers compute all prompts; without any the decode workers do (DistServe)."""
    CONDITIONAL = "conditional"
    """Each request takes the path that serves it best."""


@value
class DecodeCandidate:
    """A decode worker, as far as placement cares. Times are seconds."""

    key: str
    draining: bool
    avoided: bool
    """An earlier attempt of this request failed there."""
    free_blocks: int
    free_seqs: int
    step_after_s: float
    """A decode step with this request in the batch."""
    tightest_tpot_s: float
    """Least TPOT promised there, this request's included; infinite when none is."""
    cached_blocks: int


@value
class DecodeChoice:
    """The pick, and why."""

    worker_key: str
    score: tuple[float, ...]
    reason: str


Filter = Callable[[DecodeCandidate, int], bool]
Score = Callable[[DecodeCandidate], float]


def is_open(candidate: DecodeCandidate, _blocks: int) -> bool:
    """A draining worker finishes what it has."""
    return not candidate.draining


def has_blocks(candidate: DecodeCandidate, blocks: int) -> bool:
    """The whole reservation fits."""
    return candidate.free_blocks >= blocks


def has_seat(candidate: DecodeCandidate, _blocks: int) -> bool:
    """One more sequence keeps every promise made there."""
    return candidate.free_seqs > 0


def least_slack(candidate: DecodeCandidate) -> float:
    """What is left of the tightest promise after placement.

    Without any promise all are equal: the noise of measured step costs must not crowd one worker.
    """
    if candidate.tightest_tpot_s == float("inf"):
        return 0.0
    return candidate.tightest_tpot_s - candidate.step_after_s


def not_avoided(candidate: DecodeCandidate) -> float:
    """Another worker than the one that failed, where there is one."""
    return 0.0 if candidate.avoided else 1.0


def held_prefix(candidate: DecodeCandidate) -> float:
    """Blocks that need not be sent."""
    return float(candidate.cached_blocks)


def free_room(candidate: DecodeCandidate) -> float:
    """Among equals, the emptier."""
    return float(candidate.free_blocks)


FILTERS: tuple[Filter, ...] = (is_open, has_blocks, has_seat)
SCORES: tuple[Score, ...] = (not_avoided, least_slack, free_room, held_prefix)
"""Compared in this order."""


def choose_decode_worker(
    candidates: Sequence[DecodeCandidate],
    blocks: int,
    filters: Sequence[Filter] = FILTERS,
    scores: Sequence[Score] = SCORES,
) -> DecodeChoice | None:
    """The best worker with room for `blocks`; None when there is none. Ties go to the lower key."""
    fitting = [one for one in candidates if all(keep(one, blocks) for keep in filters)]
    if not fitting:
        return None
    scored = [
        (tuple(score(one) for score in scores), one) for one in sorted(fitting, key=lambda one: one.key)
    ]
    best_score, best = max(scored, key=lambda pair: pair[0])
    return DecodeChoice(best.key, best_score, f"best of {len(fitting)} with room")


@value
class PathCandidate:
    """A worker that could compute a prompt, and what would come of it."""

    worker_key: str
    ttft_s: float
    """90 % quantile of the time to first token."""
    worker_s: float
    """Seconds of workers' time it takes until the first decode step: prompt, decodes held up, hand-over."""
    meets: bool
    """Every latency that was asked for is met at the 90 % quantiles; so it is where none was asked for."""
    harms: bool = False
    """It breaks a promise made to another."""
    within_share: bool = True
    """The worker has prefill share left (`scheduling.roles`); a prefill worker always has."""

    @property
    def holds(self) -> bool:
        """What is asked for is met, and nobody is harmed."""
        return self.meets and not self.harms


def choose_conditional(candidates: Sequence[PathCandidate]) -> PathCandidate | None:
    """Conditional disaggregation; None without candidates. Of one that does not hold the caller decides
    whether to go it or to wait.

    Of the paths that hold the earliest first token. Where none does, the earliest among those that harm
    nobody, or among all. Workers' shares are kept to as long as a path within them is left, and ties go to
    the fewest worker-seconds, then to the lower key, so their order does not matter.

    Under load too: what is ahead of a worker is what makes it late there, so the earliest first token spreads
    prompts as the work allows. Saving worker-seconds instead lets a request wait for a busy prefill worker
    beside an idle decode worker, later than it was predicted to be when it was admitted.
    """
    harmless = [one for one in candidates if not one.harms]
    holding = [one for one in harmless if one.meets]
    within = [one for one in holding if one.within_share]
    return min(within or holding or harmless or candidates, key=_earliest, default=None)


def _earliest(one: PathCandidate) -> tuple[float, float, str]:
    return one.ttft_s, one.worker_s, one.worker_key
