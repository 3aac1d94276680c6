"""Choose the waiting requests that give up being in time when not all can be, so that the most are in time.

This is the decision alone; `router/core/admit.py` says when it is made, and carries it out.

Earliest deadline first meets every due time that any order could meet, as long as the work fits (Liu &
Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment", 1973). If it does not
fit, dropping the largest request due by then, each time one would be late, leaves the most in time (Moore,
"An n Job, One Machine Sequencing Algorithm for Minimizing the Number of Late Jobs", 1968).

A request is done, at the latest, when a fleet of m workers and total rate μ has done all work ahead of it and
one worker, of rate μ / m, its own (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969):

    Σ work ahead / μ + own work · m / μ   =   (Σ work, its own included, + own work · (m - 1)) / μ

Classes are planned from high to low, each behind the requests that higher ones keep, except for batch's
share.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from operator import attrgetter

from scheduling.admission.backlog import Stake, Waiting
from scheduling.admission.learnt import BATCH_SHARE
from scheduling.request import SloClass
from scheduling.value import value


@value
class Service:
    """The workers that do the jobs."""

    now: float
    rate: float
    """Tokens per second of all workers."""
    num_workers: int
    start_tokens: float = 0.0
    """Work before any of the jobs: bound to workers, or of other routers."""


@value
class Plan:
    """Keys of the requests that give up being in time."""

    shed: tuple[str, ...] = ()
    """Requests at risk: their callers prefer a late answer to a refusal."""
    broken: tuple[str, ...] = ()
    """Accepted requests: these promises are broken, so that the most others are kept."""
    late: tuple[str, ...] = ()
    """Requests that would be late, and for which no other request may give up its place."""


def plan(jobs: Iterable[Waiting], service: Service, *, may_break: bool = False) -> Plan:
    """Make the full plan. With `may_break`, after capacity died, accepted requests give up too, after all
    requests at risk.
    """
    lanes: dict[SloClass, list[Waiting]] = {slo_class: [] for slo_class in SloClass}
    for job in jobs:
        lanes[job.slo_class].append(job)
    shed: list[str] = []
    broken: list[str] = []
    late: list[str] = []
    reserved = service.start_tokens
    for slo_class, lane in lanes.items():
        lane.sort(key=attrgetter("due_at", "key"))
        pace = _Pace(service, slo_class, reserved, batch_waits=bool(lanes[SloClass.BATCH]))
        victims, late_ones, kept = _moore(lane, pace, may_break=may_break)
        for job in victims:
            (broken if job.stake is Stake.ACCEPTED else shed).append(job.key)
        late += (job.key for job in late_ones)
        reserved += kept
    return Plan(tuple(shed), tuple(broken), tuple(late))


class _Pace:
    """When jobs of one class are done, behind the work that higher classes reserved."""

    def __init__(self, service: Service, slo_class: SloClass, reserved: float, *, batch_waits: bool) -> None:
        self._now, self._reserved = service.now, reserved
        self._own_share = service.num_workers - 1
        is_batch = slo_class is SloClass.BATCH
        self._rate = service.rate * (1 - BATCH_SHARE if batch_waits and not is_batch else 1)
        self._floor_rate = service.rate * BATCH_SHARE if is_batch else 0.0
        self._start = service.start_tokens

    def done_at(self, tokens: int, own: int) -> float:
        """Return when a job of `own` tokens is done that is the last of `tokens` of its class."""
        own_extra = own * self._own_share
        at = (self._reserved + tokens + own_extra) / self._rate
        if self._floor_rate:
            at = min(at, (self._start + own_extra) / self._rate + tokens / self._floor_rate)
        return self._now + at


def _moore(
    lane: Sequence[Waiting], pace: _Pace, *, may_break: bool
) -> tuple[list[Waiting], list[Waiting], int]:
    """Return one class's victims, the jobs that stay late, and the tokens kept; `lane` is in order of due
    times.
    """
    tokens = 0
    victims: list[Waiting] = []
    late: list[Waiting] = []
    largest: list[tuple[bool, int, int]] = []
    """A heap; a job dropped for its own length stays in it until it comes up."""
    gone: set[int] = set()
    for place, job in enumerate(lane):
        tokens += job.tokens
        if job.stake is Stake.NONE:
            continue
        may_go = may_break or job.stake is Stake.AT_RISK
        if may_go:
            heapq.heappush(largest, (job.stake is Stake.ACCEPTED, -job.tokens, -place))
        while pace.done_at(tokens, job.tokens) > job.due_at:
            while largest and -largest[0][2] in gone:
                heapq.heappop(largest)
            if not largest:
                late.append(job)
                break
            victim = lane[-largest[0][2]]
            helps = pace.done_at(tokens - victim.tokens, job.tokens) <= job.due_at
            if may_go and victim is not job and not helps and job.stake is victim.stake:
                # It is late because of its own length, so dropping others would not help.
                gone.add(place)
                victim = job
            else:
                heapq.heappop(largest)
            victims.append(victim)
            tokens -= victim.tokens
            if victim is job:
                break
    return victims, late, tokens
