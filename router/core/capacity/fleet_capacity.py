"""The fleet summed up for predictions: made anew at most twenty times a second, however often it is asked.

Between two of these only the prompts bound to workers are followed exactly (`Fleet.bound_tokens`): they are
what moves fastest. A worker that joins, leaves or begins to drain is seen at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from router.core.capacity.fleet import DECODE, Worker
from router.core.capacity.prompt_queues import PromptQueue, PromptQueues
from scheduling.admission.lanes import Lane
from scheduling.admission.prediction import (
    NO_LIMIT_S,
    Capacity,
    DecodeSpeed,
    DecodeView,
    PrefillSpeed,
    PrefillView,
    capacity_of,
    decode_speed,
    free_seats,
    mixed_step_s,
    prefill_speed,
    seq_capacity,
)
from scheduling.cost.cost_model import CostModel
from scheduling.policies.slack import ARRIVAL_S

if TYPE_CHECKING:
    from router.core.state import RouterState

MAX_AGE_S = 0.05
MOVES_PER_WORKER = 4
"""Reports and dispatches per worker after which it is old too: what little a small fleet has moves fast."""
STEPS_BOUND = 2
"""Steps' worth of prompts bound to a worker: what has entered an engine can no longer be reordered, but a
worker that runs dry while the next grant travels is idle."""
LEAST_BOUND = 256
"""Tokens; where promises cut steps short, two of them are over before a grant has travelled."""
TPOT_SCALE = 64.0
"""Ratios are bucketed by powers of two from 64 units of work on; a sequence of the batch counts as 64."""


@dataclass(slots=True)
class _Pace:
    """What is known of the fleet for those that ask for one pace."""

    seats: list[int | None]
    """By decode worker, in the fleet's order: most sequences that keep it; None where that is to be found."""
    capacity: Capacity | None = None
    was_asked: bool = True
    """Since the fleet was last summed up."""


class FleetCapacity:
    """What the fleet can do, by the pace a request asks for.

    A worker that is found as it was the last time is not looked at again.
    """

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._made_at = float("-inf")
        self._version = -1
        self._moves = 0
        self._workers: tuple[Worker, ...] = ()
        """Those that compute prompts, then those that only decode; and of the decode workers the places."""
        self._places: dict[str, int] = {}
        self._seen: dict[str, tuple[object, ...]] = {}
        self._prefill: dict[str, PrefillSpeed] = {}
        self._decode: dict[str, DecodeSpeed] = {}
        self._queues = PromptQueues(state.fleet)
        self._unpaced: Capacity | None = None
        self._paces: dict[int | None, _Pace] = {}

    def capacity(self, pace_ms: int | None) -> Capacity:
        """As a request would find it that asks for this time between tokens. Somebody must serve."""
        self._refresh()
        pace = self._pace(pace_ms)
        if pace.capacity is None:
            pace.capacity = self._paced(pace, pace_ms)
        return pace.capacity

    def _pace(self, pace_ms: int | None) -> _Pace:
        found = self._paces.get(pace_ms)
        if found is None:
            found = self._paces[pace_ms] = _Pace([None] * len(self._places))
        found.was_asked = True
        return found

    def _paced(self, pace: _Pace, pace_ms: int | None) -> Capacity:
        """The fleet with as many seats as keep this pace."""
        workers = self._state.fleet.open(DECODE)
        if self._unpaced is None:
            self._unpaced = capacity_of(list(self._prefill.values()), list(self._decode.values()))
        limits = [
            self._find_seats(pace, place, workers[place], pace_ms) if seats is None else seats
            for place, seats in enumerate(pace.seats)
        ]
        roomiest = self._unpaced.roomiest
        place = next(place for place, one in enumerate(self._decode.values()) if one.view is roomiest)
        return replace(
            self._unpaced,
            free_seqs=free_seats([limit - one.num_seqs for limit, one in zip(limits, workers, strict=True)]),
            roomiest=replace(
                roomiest, seq_capacity=limits[place], prefill=self._joined(roomiest.prefill, pace_ms)
            ),
        )

    def _joined(self, view: PrefillView | None, pace_ms: int | None) -> PrefillView | None:
        """How a decode worker computes prompts once one has joined that asks for this pace."""
        if view is None or pace_ms is None or not is_cut(self._state, view.cost):
            return view
        return replace(view, limit_s=min(view.limit_s, pace_ms / 1000))

    def decode_view(self, worker: Worker) -> DecodeView:
        """A decode worker, with what its sequences will probably still need."""
        self._refresh()
        return self._decode_of(worker)

    def _decode_of(self, worker: Worker) -> DecodeView:
        found = self._decode.get(worker.key)
        return _decode_view(worker, None) if found is None else found.view

    def chunk(self, worker: Worker) -> int:
        """Prompt tokens of one of its full steps."""
        self._refresh()
        found = self._prefill.get(worker.key)
        return worker.facts.token_budget if found is None else found.chunk

    def free_workers(self) -> list[Worker]:
        """Those that compute prompts and have capacity to offer."""
        self._refresh()
        return self._queues.free()

    def lanes(self) -> list[Lane]:
        """When each worker that computes prompts is free."""
        self._refresh()
        return self._queues.lanes()

    def prompt_queue(self, worker: Worker) -> PromptQueue:
        """How a worker that computes prompts works off those bound to it."""
        self._refresh()
        return self._queues[worker.key]

    def prefill_view(self, worker_key: str) -> PrefillView:
        """A worker that computes prompts."""
        self._refresh()
        return self._prefill[worker_key].view

    def seat_limit(self, worker: Worker, pace_ms: int | None) -> int:
        """Most sequences that may run there while every promise, and this pace, is kept."""
        self._refresh()
        place = self._places.get(worker.key)
        if place is None:
            return self._seat_limit(worker, pace_ms)
        pace = self._pace(pace_ms)
        seats = pace.seats[place]
        return self._find_seats(pace, place, worker, pace_ms) if seats is None else seats

    def _find_seats(self, pace: _Pace, place: int, worker: Worker, pace_ms: int | None) -> int:
        seats = pace.seats[place] = self._seat_limit(worker, pace_ms)
        return seats

    def _seat_limit(self, worker: Worker, pace_ms: int | None) -> int:
        most, tightest = worker.facts.max_num_seqs, worker.tightest_pace_s(pace_ms)
        if tightest == NO_LIMIT_S:
            return most
        state = self._state
        if is_cut(state, worker.cost):
            late = worker.cost.ratio_q95
        else:
            _, late = state.learnt.tpot.quantiles(worker.num_seqs * TPOT_SCALE, state.now)
        return seq_capacity(self._decode_of(worker), most, tightest / late)

    def _refresh(self) -> None:
        state, fleet = self._state, self._state.fleet
        moves = MOVES_PER_WORKER * len(fleet.workers)
        is_new = state.now - self._made_at <= MAX_AGE_S and fleet.moves - self._moves <= moves
        if is_new and fleet.version == self._version:
            return
        if fleet.version != self._version:
            self._begin()
        self._made_at, self._version, self._moves = state.now, fleet.version, fleet.moves
        self._forget_seats(self._look(self._workers))
        self._unpaced = None

    def _begin(self) -> None:
        """Other workers are open than before."""
        fleet = self._state.fleet
        decoding = fleet.open(DECODE)
        self._workers = tuple(dict.fromkeys((*fleet.computing, *decoding)))
        self._places = {worker.key: place for place, worker in enumerate(decoding)}
        for known in (self._seen, self._prefill, self._decode, self._paces):
            known.clear()
        self._queues.begin(fleet.computing)

    def _look(self, workers: Iterable[Worker]) -> list[int]:
        """Look at those that changed; places of the decode workers whose seats are to be found again."""
        computing, stale = self._state.fleet.computing_roles, []
        for worker in workers:
            key, found = worker.key, _state(worker)
            is_short, place = is_cut(self._state, worker.cost), self._places.get(key)
            is_same = self._seen.get(key) == found
            # Where steps are not cut, seats depend on what was learnt too.
            if place is not None and not (is_same and is_short):
                stale.append(place)
            if is_same:
                continue
            self._seen[key] = found
            if worker.facts.role in computing:
                speed = self._prefill[key] = prefill_speed(_prefill_view(worker, is_short=is_short))
                self._queues.put(worker, _prompt_queue(speed))
            if place is not None:
                prefill = self._prefill.get(key)
                view = _decode_view(worker, None if prefill is None else prefill.view)
                self._decode[key] = decode_speed(view)
        return stale

    def _forget_seats(self, places: list[int]) -> None:
        """Of these workers, and of paces that nobody has asked for."""
        self._paces = {pace_ms: pace for pace_ms, pace in self._paces.items() if pace.was_asked}
        for pace in self._paces.values():
            pace.capacity, pace.was_asked = None, False
            for place in places:
                pace.seats[place] = None


def _state(worker: Worker) -> tuple[object, ...]:
    """All that what is seen of it depends on, besides its bound prompts and what does not change."""
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


def is_cut(state: RouterState, cost: CostModel) -> bool:
    """Steps are as long as promises allow; otherwise they are filled to the budget."""
    return state.config.policy.promises and cost.is_trusted and any(cost.coefficients)


def _prefill_view(worker: Worker, *, is_short: bool) -> PrefillView:
    cost, budget = worker.cost, worker.facts.token_budget
    decodes = min(worker.num_seqs, budget - 1) if worker.facts.role == DECODE else 0
    if decodes == 0:
        return PrefillView(cost, budget, limit_s=ARRIVAL_S if is_short else NO_LIMIT_S)
    limit_s = worker.tightest_pace_s() if is_short else NO_LIMIT_S
    return PrefillView(cost, budget, decodes, worker.load.context_tokens, limit_s)


def _prompt_queue(speed: PrefillSpeed) -> PromptQueue:
    view, limit = speed.view, max(LEAST_BOUND, STEPS_BOUND * speed.chunk)
    half_decode_s = mixed_step_s(view, 0) / 2 if view.num_decodes else 0.0
    return PromptQueue(speed.rate, speed.step_s / 2, half_decode_s, limit)


def _decode_view(worker: Worker, prefill: PrefillView | None) -> DecodeView:
    # Whoever outlived the expectation is not about to end: of a long one, a quarter is still to come.
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
    )
