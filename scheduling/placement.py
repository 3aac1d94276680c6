"""Where a request runs: filter, score, pick, as plain functions in lists."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class Path(enum.Enum):
    """How a prompt's KV comes to be on its decode worker."""

    DISAGGREGATED = "disaggregated"
    """A prefill worker computes it and hands it over."""
    AGGREGATED = "aggregated"
    """The decode worker computes it itself."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


def choose_path(wanted: Path, num_prefill_workers: int) -> Path:
    """The configured path; without any prefill worker the decode workers do it all."""
    if wanted is Path.DISAGGREGATED and num_prefill_workers > 0:
        return Path.DISAGGREGATED
    return Path.AGGREGATED
