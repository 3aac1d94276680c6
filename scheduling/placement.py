"""Choose where a request runs: filter, score, pick, as plain functions in lists.

A decode worker is picked by the slack that placement leaves of its promises. A path, where each request has
its own, is picked by its time to first token.

**Roles as weights.** A prefill worker only computes prompts. A decode worker can do both. Its weight, 0 to 1,
is the share of its time that prompts may take before requests are sent elsewhere
(`PathCandidate.within_share`). It is moved at run time (`rebalance`). The weights that put prompts and
decodes under equal pressure follow from the work alone:

    (P + W) / (P + D) = prefill work / all work          P, D workers of each kind, W the sum of the weights

The weights move there only when the two pressures have been apart by more than `BAND` for `HOLD_S`, and by at
most `MOST_MOVE` at a time. At the target the pressures are equal, so under constant work the weights move in
one direction and stay.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from scheduling.value import value

START_WEIGHT = 0.5
"""The weight of a worker that has none yet."""
BAND = 0.2
"""The difference of pressures, as shares of time, that is ignored: load varies that much by chance."""
HOLD_S = 10.0
"""Longer than a burst, shorter than a lasting change of load."""
MOST_MOVE = 0.25
LEAST_MOVE = 0.01


class Placement(enum.Enum):
    """How the path of a request is chosen."""

    AGGREGATED = "aggregated"
    """Prompts are computed where they decode; prefill workers idle."""
    DISAGGREGATED = "disaggregated"
    """Prefill workers compute all prompts (DistServe). Decode workers do where there are none, and for a
    request whose handoffs from every prefill worker have failed."""
    CONDITIONAL = "conditional"
    """Each request takes the path that serves it best."""


@value
class Handoff:
    """KV that goes from one worker to another; both by key."""

    source: str
    target: str


@value
class DecodeCandidate:
    """The facts about a decode worker that placement depends on. Times are seconds."""

    key: str
    draining: bool
    avoided: bool
    """An earlier attempt of this request failed there, found no room, or was taken away."""
    free_blocks: int
    free_seqs: int
    step_after_s: float
    """Duration of a decode step with this request in the batch."""
    tpot_s: float
    """This request's TPOT; infinite without one."""
    held_tpot_s: float
    """The least TPOT of the others there; infinite without any."""
    num_seqs: int
    """Sequences there, without this request's."""
    cached_blocks: int
    delay_s: float = 0.0
    """The time that loading the request's LoRA adapter and its decode steps take there; 0 everywhere if no
    candidate has to load it."""
    failed_receipts: int = 0
    """Handoffs of this request to this worker that failed, as `failed_receipts` counts them."""

    @property
    def tightest_tpot_s(self) -> float:
        """The least TPOT there once this request has joined; infinite without any."""
        return min(self.tpot_s, self.held_tpot_s)


def failed_receipts(failed: Sequence[Handoff], source: str, target: str) -> int:
    """Return how often handoffs to a target failed.

    The ones from this source count twice: a handoff fails for its source, its target or the link between
    them, and the other two may be in order.
    """
    return sum(1 + (handoff.source == source) for handoff in failed if handoff.target == target)


Filter = Callable[[DecodeCandidate, int], bool]
Score = Callable[[DecodeCandidate], float]


def is_open(candidate: DecodeCandidate, _blocks: int) -> bool:
    """Return True unless the worker drains: then it only finishes its requests."""
    return not candidate.draining


def has_blocks(candidate: DecodeCandidate, blocks: int) -> bool:
    """Return True if the whole reservation fits."""
    return candidate.free_blocks >= blocks


def has_seat(candidate: DecodeCandidate, _blocks: int) -> bool:
    """Return True if the worker keeps all its promises with one more sequence."""
    return candidate.free_seqs > 0


def least_slack(candidate: DecodeCandidate) -> float:
    """Return the slack of the tightest promise after placement.

    Without a promise all workers are equal: the noise of measured step costs must not crowd one of them.
    """
    if candidate.tightest_tpot_s == float("inf"):
        return 0.0
    return candidate.tightest_tpot_s - candidate.step_after_s


def least_failed(candidate: DecodeCandidate) -> float:
    """Prefer workers that have not failed this request, or have failed it less often."""
    return -(candidate.avoided + candidate.failed_receipts)


def least_delay(candidate: DecodeCandidate) -> float:
    """Prefer workers that need not load the adapter, unless their steps are longer by more than that."""
    return -candidate.delay_s


def held_prefix(candidate: DecodeCandidate) -> float:
    """Prefer workers that hold much of the prompt: those blocks need not be sent."""
    return float(candidate.cached_blocks)


def free_room(candidate: DecodeCandidate) -> float:
    """Prefer the emptier worker."""
    return float(candidate.free_blocks)


FILTERS: tuple[Filter, ...] = (is_open, has_blocks, has_seat)
SCORES: tuple[Score, ...] = (least_failed, least_delay, least_slack, free_room, held_prefix)
"""Compared in this order."""


def choose_decode_worker(
    candidates: Sequence[DecodeCandidate], blocks: int, scores: Sequence[Score] = SCORES
) -> DecodeCandidate | None:
    """Return the best worker with room for `blocks`; None if there is none. Ties go to the lower key."""
    fitting = [candidate for candidate in candidates if all(keep(candidate, blocks) for keep in FILTERS)]
    fitting.sort(key=attrgetter("key"))
    return max(fitting, key=lambda candidate: tuple(score(candidate) for score in scores), default=None)


# Paths


@value
class PathCandidate:
    """A worker that could compute a prompt, and the predicted outcome."""

    worker_key: str
    ttft_s: float
    """The 90 % quantile of the time to first token."""
    worker_s: float
    """Seconds of workers' time until the first decode step: the prompt, decodes held up, hand-over."""
    meets: bool
    """The first token is within the TTFT that the fleet aims at, if it aims at one."""
    crowds: bool = False
    """It leaves a decode worker few seats, or has not the blocks: others would get no place there."""
    within_share: bool = True
    """The worker has prefill share left (`rebalance`); a prefill worker always has."""
    failed: int = 0
    """Attempts of this request that failed on this path."""


def without_failed(candidates: Sequence[PathCandidate]) -> list[PathCandidate]:
    """Return the paths on which the fewest attempts of a request failed."""
    least = min((path.failed for path in candidates), default=0)
    return [path for path in candidates if path.failed == least]


def choose_conditional(candidates: Sequence[PathCandidate]) -> PathCandidate | None:
    """Choose the path with the earliest first token (conditional disaggregation); None without candidates.

    Good paths meet the TTFT and crowd no worker. They come first, those within their worker's share before
    the others; then paths that crowd no worker, then all. If the result is no good path, the caller decides
    whether to use it or to wait. Ties go to the fewest worker-seconds, then to the lower key, so the order of
    candidates does not matter.

    The rule is the same under load: work ahead of a worker delays the first token there, so the earliest
    first token spreads prompts over the workers. Saving worker-seconds instead would let a request wait for a
    busy prefill worker beside an idle decode worker, for longer than predicted at its admission.
    """
    roomy = [path for path in candidates if not path.crowds]
    good = [path for path in roomy if path.meets]
    within = [path for path in good if path.within_share]
    return min(within or good or roomy or candidates, key=_earliest, default=None)


def _earliest(path: PathCandidate) -> tuple[float, float, str]:
    return path.ttft_s, path.worker_s, path.worker_key


# Roles


@dataclass(frozen=True, slots=True)
class MixedLoad:
    """A decode worker's shares of time, as moving averages from 0 to 1."""

    key: str
    prefill: float
    """Time for prompts: what steps took beyond their decodes."""
    decode: float


@dataclass(frozen=True, slots=True)
class Roles:
    """The weights, and since when the fleet has been out of balance; the input of the next call."""

    weights: Mapping[str, float] = field(default_factory=dict)
    uneven_since: float | None = None
    toward_prefill: bool = False
    """The direction in which it has been out of balance."""


def rebalance(roles: Roles, mixed: Sequence[MixedLoad], dedicated: Sequence[float], now: float) -> Roles:
    """Return the new roles.

    `dedicated` has each prefill worker's busy share of time, `now` is seconds on the caller's clock. A worker
    that has joined starts at `START_WEIGHT`; a worker that has left is forgotten. Raise ValueError for a
    share outside 0 to 1.
    """
    if not mixed:
        return Roles()
    for share in (*dedicated, *(load.prefill for load in mixed), *(load.decode for load in mixed)):
        if not 0 <= share <= 1:
            raise ValueError(f"share of time is {share}; accepted: 0 to 1")
    weights = {load.key: roles.weights.get(load.key, START_WEIGHT) for load in mixed}
    gap = _gap(weights, mixed, dedicated)
    if abs(gap) <= BAND:
        return Roles(weights)
    toward_prefill = gap > 0
    if roles.uneven_since is None or toward_prefill != roles.toward_prefill:
        return Roles(weights, now, toward_prefill)
    if now - roles.uneven_since < HOLD_S:
        return replace(roles, weights=weights)
    target = _target(mixed, dedicated)
    return Roles({key: _moved(weight, target) for key, weight in weights.items()})


def _gap(weights: Mapping[str, float], mixed: Sequence[MixedLoad], dedicated: Sequence[float]) -> float:
    """Return the pressure of prompts minus that of decodes: work of each kind by the time it may have."""
    prompts, decodes = _work(mixed, dedicated)
    for_prompts = len(dedicated) + sum(weights.values())
    for_decodes = len(mixed) - sum(weights.values())
    return _pressure(prompts, for_prompts) - _pressure(decodes, for_decodes)


def _pressure(work: float, room: float) -> float:
    """Return work by room, at most 1, since shares of time cannot show more; 1 if there is no room for it."""
    return min(1.0, work / room) if room > 0 else float(work > 0)


def _target(mixed: Sequence[MixedLoad], dedicated: Sequence[float]) -> float:
    """Return the weight with which both pressures are equal, the same for all decode workers."""
    prompts, decodes = _work(mixed, dedicated)
    share = prompts / (prompts + decodes)
    return min(1.0, max(0.0, (share * (len(dedicated) + len(mixed)) - len(dedicated)) / len(mixed)))


def _work(mixed: Sequence[MixedLoad], dedicated: Sequence[float]) -> tuple[float, float]:
    """Return the work of prompts and of decodes, in workers."""
    return sum(dedicated) + sum(load.prefill for load in mixed), sum(load.decode for load in mixed)


def _moved(weight: float, target: float) -> float:
    move = min(MOST_MOVE, max(-MOST_MOVE, target - weight))
    return weight + move if abs(move) >= LEAST_MOVE else weight
