"""The capacity of the fleet, summed up for predictions at most twenty times a second.

Only the prompts bound to workers are followed exactly in between (`Fleet.bound_tokens`), since they change
fastest. A worker that joins, leaves or begins to drain is seen at once. Every question takes the time `now`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from router.core.model.events import DECODE
from router.core.model.fleet import Fleet, Worker
from scheduling.admission.learnt import LearntRatios
from scheduling.admission.prediction import Capacity, Lane, capacity_of, free_seats
from scheduling.cost.cost_model import CostModel
from scheduling.policies.policy import Policy
from scheduling.policies.slack import arrival_s
from scheduling.speeds import (
    DecodeSpeed,
    DecodeView,
    PrefillSpeed,
    PrefillView,
    decode_speed,
    mixed_step_s,
    num_micro_batches,
    prefill_speed,
    seq_capacity,
    share,
    step_limit_s,
)
from scheduling.step import NO_LIMIT_S
from scheduling.value import value

MAX_AGE_S = 0.05
MOVES_PER_WORKER = 4
"""Reports and dispatches per worker after which a sum is too old as well: small fleets change fast."""
STEPS_BOUND = 2
"""Steps' worth of prompts bound to a worker. What has entered an engine can no longer be reordered, but a
worker that runs dry while the next grant travels is idle."""
LEAST_BOUND = 256
"""Tokens bound at least: where promises cut steps short, two steps are over before a grant has travelled."""
TPOT_SCALE = 64.0
"""Ratios are bucketed by powers of two from 64 units of work on; a sequence of the batch counts as 64."""


@value
class PromptQueue:
    """How a worker computes the prompts bound to it, in arrival order at the worker."""

    speed: PrefillSpeed
    half_decode_s: float
    """Expected time until a step can begin, while no prompt is computed; 0 where nothing runs."""
    limit: int
    """Tokens from which on nothing more is bound to the worker, unless it has too few prompts."""
    min_prompts: int
    """Prompts of this router up to which more are bound, however long they are; 0 without a pipeline."""

    def wait_s(self, bound_tokens: int) -> float:
        """Return the time until so many bound tokens are computed."""
        speed = self.speed
        return bound_tokens / speed.rate + speed.rest_s if bound_tokens else self.half_decode_s

    def has_room(self, worker: Worker) -> bool:
        """Return True if more prompts may be bound to the worker."""
        return worker.bound_tokens < self.limit or worker.bound_prompts < self.min_prompts


@dataclass(slots=True)
class _Pace:
    """The fleet for requests that ask for one pace."""

    seats: dict[str, int] = field(default_factory=dict)
    """The most sequences of decode workers that keep the pace, by worker key, where they are known."""
    capacity: Capacity | None = None
    was_asked: bool = True
    """Asked for since the fleet was last summed up."""


class FleetCapacity:
    """The capacity of the fleet for each pace that a request may ask for.

    A worker that has not changed since the last sum is not looked at again, and one whose bound prompts have
    changed (`Fleet.dirty`) only for these.
    """

    def __init__(self, policy: Policy, fleet: Fleet, tpot_ratios: LearntRatios) -> None:
        self._policy = policy
        self._fleet = fleet
        self._tpot_ratios = tpot_ratios
        self._made_at = float("-inf")
        self._version = -1
        self._moves = 0
        self._workers: tuple[Worker, ...] = ()
        """Workers that compute prompts, then those that only decode."""
        self._seen: dict[str, tuple[object, ...]] = {}
        self._prefill: dict[str, PrefillSpeed] = {}
        self._decode: dict[str, DecodeSpeed] = {}
        self._queues: dict[str, PromptQueue] = {}
        self._lanes: dict[str, Lane] = {}
        self._roomy: set[str] = set()
        """Keys of workers with fewer bound prompts than their limit."""
        self._unpaced: Capacity | None = None
        self._paces: dict[int | None, _Pace] = {}

    def capacity(self, pace_ms: int | None, now: float) -> Capacity:
        """Return the fleet as a request with this time between tokens finds it; a worker must serve."""
        self._refresh(now)
        pace = self._pace(pace_ms)
        if pace.capacity is None:
            pace.capacity = self._paced(pace, pace_ms, now)
        return pace.capacity

    def prefill_rate(self, pace_ms: int | None, now: float) -> float:
        """Return the prompt tokens per second of all workers together."""
        return self.capacity(pace_ms, now).prefill_rate

    def decode_view(self, worker: Worker, now: float) -> DecodeView:
        """Return a decode worker, with what its sequences will probably still need."""
        self._refresh(now)
        return self._decode_of(worker)

    def chunk(self, worker: Worker, now: float) -> int:
        """Return the prompt tokens of a full step of a worker."""
        self._refresh(now)
        found = self._prefill.get(worker.key)
        return worker.facts.token_budget if found is None else found.chunk

    def free_workers(self, now: float) -> list[Worker]:
        """Return the workers that compute prompts and have capacity to offer."""
        self._catch_up(now)
        roomy = self._roomy
        return [worker for worker in self._workers if worker.key in roomy and not worker.asking]

    def lanes(self, now: float) -> list[Lane]:
        """Return when each worker that computes prompts is free."""
        self._catch_up(now)
        return list(self._lanes.values())

    def prompt_queue(self, worker: Worker, now: float) -> PromptQueue:
        """Return how a worker computes the prompts bound to it, also one that gets none as a rule."""
        self._refresh(now)
        found = self._queues.get(worker.key)
        return self._queue_of(worker) if found is None else found

    def prefill_speed(self, worker: Worker, now: float) -> PrefillSpeed:
        """Return how fast a worker computes prompts."""
        return self.prompt_queue(worker, now).speed

    def _queue_of(self, worker: Worker) -> PromptQueue:
        is_short = cuts_steps(self._policy, worker.cost)
        return _prompt_queue(prefill_speed(_prefill_view(worker, is_short=is_short)))

    def seat_limit(self, worker: Worker, pace_ms: int | None, now: float) -> int:
        """Return the most sequences that may run on a worker while all promises and this pace are kept."""
        self._refresh(now)
        if worker.key not in self._decode:
            return self._seat_limit(worker, pace_ms, now)
        seats = self._pace(pace_ms).seats
        found = seats.get(worker.key)
        if found is None:
            found = seats[worker.key] = self._seat_limit(worker, pace_ms, now)
        return found

    def _pace(self, pace_ms: int | None) -> _Pace:
        found = self._paces.get(pace_ms)
        if found is None:
            found = self._paces[pace_ms] = _Pace()
        found.was_asked = True
        return found

    def _paced(self, pace: _Pace, pace_ms: int | None, now: float) -> Capacity:
        """Return the fleet with as many seats as keep a pace."""
        if self._unpaced is None:
            self._unpaced = capacity_of(list(self._prefill.values()), list(self._decode.values()))
        seats, workers, roomiest = pace.seats, self._fleet.decoding, self._unpaced.roomiest
        for worker in workers:
            if worker.key not in seats:
                seats[worker.key] = self._seat_limit(worker, pace_ms, now)
        key = next(key for key, speed in self._decode.items() if speed.view is roomiest)
        return replace(
            self._unpaced,
            free_seqs=free_seats([seats[worker.key] - worker.num_seqs for worker in workers]),
            roomiest=replace(
                roomiest, seq_capacity=seats[key], prefill=self._joined(roomiest.prefill, pace_ms)
            ),
        )

    def _joined(self, view: PrefillView | None, pace_ms: int | None) -> PrefillView | None:
        """Return how a decode worker computes prompts once a request with this pace has joined."""
        if view is None or pace_ms is None or not cuts_steps(self._policy, view.cost):
            return view
        return replace(view, limit_s=min(view.limit_s, step_limit_s(pace_ms / 1000, view.num_stages)))

    def _decode_of(self, worker: Worker) -> DecodeView:
        found = self._decode.get(worker.key)
        return _decode_view(worker, None) if found is None else found.view

    def _seat_limit(self, worker: Worker, pace_ms: int | None, now: float) -> int:
        most, tightest = worker.facts.max_num_seqs, worker.tightest_pace_s(pace_ms)
        if tightest == NO_LIMIT_S:
            return most
        if cuts_steps(self._policy, worker.cost):
            late = worker.cost.ratio_q95
        else:
            _, late = self._tpot_ratios.quantiles(worker.num_seqs * TPOT_SCALE, now)
        return seq_capacity(self._decode_of(worker), most, tightest / late)

    def _refresh(self, now: float) -> None:
        fleet = self._fleet
        moves = MOVES_PER_WORKER * len(fleet.workers)
        is_new = now - self._made_at <= MAX_AGE_S and fleet.moves - self._moves <= moves
        if is_new and fleet.version == self._version:
            return
        if fleet.version != self._version:
            self._begin()
        self._made_at, self._version, self._moves = now, fleet.version, fleet.moves
        self._forget_seats(self._look_at(self._workers))
        self._unpaced = None

    def _begin(self) -> None:
        """Start again, because other workers take new work than before."""
        fleet = self._fleet
        self._workers = tuple(dict.fromkeys((*fleet.computing, *fleet.decoding)))
        for known in (self._seen, self._prefill, self._decode, self._paces, self._queues, self._lanes):
            known.clear()
        self._roomy.clear()
        fleet.dirty.clear()

    def _look_at(self, workers: Iterable[Worker]) -> list[str]:
        """Look at changed workers; return the keys of decode workers whose seats must be found anew."""
        computing, stale = self._fleet.computing_roles, []
        for worker in workers:
            key, found = worker.key, _inputs(worker)
            is_short, decodes = cuts_steps(self._policy, worker.cost), worker.facts.role == DECODE
            is_same = self._seen.get(key) == found
            # Where steps are not cut, seats depend on learnt ratios too.
            if decodes and not (is_same and is_short):
                stale.append(key)
            if is_same:
                continue
            self._seen[key] = found
            if worker.facts.role in computing:
                queue = self._queues[key] = self._queue_of(worker)
                self._prefill[key] = queue.speed
                self._look_at_prompts(worker)
            if decodes:
                prefill = self._prefill.get(key)
                view = _decode_view(worker, None if prefill is None else prefill.view)
                self._decode[key] = decode_speed(view)
        return stale

    def _catch_up(self, now: float) -> None:
        """Look at the bound prompts that have changed."""
        self._refresh(now)
        dirty = self._fleet.dirty
        while dirty:
            key, _ = dirty.popitem()
            self._look_at_prompts(self._fleet.workers[key])

    def _look_at_prompts(self, worker: Worker) -> None:
        queue = self._queues[worker.key]
        self._lanes[worker.key] = Lane(worker.key, queue.wait_s(worker.bound_tokens), queue.speed)
        if queue.has_room(worker):
            self._roomy.add(worker.key)
        else:
            self._roomy.discard(worker.key)

    def _forget_seats(self, keys: list[str]) -> None:
        """Forget the seats of these workers, and paces that nobody has asked for."""
        self._paces = {pace_ms: pace for pace_ms, pace in self._paces.items() if pace.was_asked}
        for pace in self._paces.values():
            pace.capacity, pace.was_asked = None, False
            for key in keys:
                pace.seats.pop(key, None)


def _inputs(worker: Worker) -> tuple[object, ...]:
    """Return what a worker's speeds depend on, without its bound prompts and what never changes."""
    return (
        worker.cost,
        worker.load.running,
        worker.load.context_tokens,
        worker.load.free_blocks,
        worker.paces_ms[0] if worker.paces_ms else None,
        worker.decode_seqs,
        worker.decode_groups,
        worker.leased_blocks,
        worker.expected_tokens,
        worker.remaining_tokens,
    )


def cuts_steps(policy: Policy, cost: CostModel) -> bool:
    """Return True if steps are as long as promises allow; otherwise they are filled to the budget."""
    return policy.promises and cost.is_trusted and any(cost.coefficients)


def _prefill_view(worker: Worker, *, is_short: bool) -> PrefillView:
    cost, budget, num_stages = worker.cost, worker.facts.token_budget, worker.facts.num_stages
    decodes = min(share(worker.num_seqs, num_stages), budget - 1) if worker.facts.role == DECODE else 0
    if decodes == 0:
        limit_s = arrival_s(cost) if is_short else NO_LIMIT_S
        return PrefillView(cost, budget, limit_s=limit_s, num_stages=num_stages)
    limit_s = step_limit_s(worker.tightest_pace_s(), num_stages) if is_short else NO_LIMIT_S
    context = share(worker.load.context_tokens, num_stages)
    return PrefillView(cost, budget, decodes, context, limit_s, num_stages)


def _prompt_queue(speed: PrefillSpeed) -> PromptQueue:
    view = speed.view
    num_steps = num_micro_batches(view.num_stages)
    return PromptQueue(
        speed=speed,
        half_decode_s=mixed_step_s(view, 0) / (2 * view.num_stages) if view.num_decodes else 0.0,
        limit=max(LEAST_BOUND, STEPS_BOUND * num_steps * speed.chunk),
        min_prompts=num_steps if num_steps > 1 else 0,
    )


def _decode_view(worker: Worker, prefill: PrefillView | None) -> DecodeView:
    # Outputs that are longer than expected are not about to end: assume that a quarter is still to come.
    remaining = max(worker.remaining_tokens, 0.25 * worker.expected_tokens)
    mean_remaining = remaining / worker.decode_seqs if worker.decode_seqs else 1.0
    return DecodeView(
        cost=worker.cost,
        num_seqs=worker.num_seqs,
        context_tokens=worker.load.context_tokens,
        seq_capacity=worker.facts.max_num_seqs,
        free_blocks=worker.free_blocks,
        mean_remaining_tokens=max(1.0, mean_remaining),
        mean_blocks=worker.leased_blocks / worker.decode_groups if worker.decode_groups else 0.0,
        prefill=prefill,
        num_stages=worker.facts.num_stages,
    )
