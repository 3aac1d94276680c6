"""The fleet summed up for predictions: made anew at most twenty times a second, however often it is asked.

Between two of these only the prompts bound to workers are followed exactly (`Fleet.bound_tokens`): they are
what moves fastest. A worker that joins, leaves or begins to drain is seen at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from router.fleet import DECODE, Worker
from scheduling.cost_model import CostModel
from scheduling.policies.slack import ARRIVAL_S
from scheduling.prediction import (
    NO_LIMIT_S,
    Capacity,
    DecodeView,
    FleetView,
    PrefillView,
    capacity_of,
    chunk_tokens,
    free_seats,
    mixed_step_s,
    seq_capacity,
)

if TYPE_CHECKING:
    from router.book import Book

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


@dataclass(frozen=True, slots=True)
class PromptQueue:
    """A worker that computes prompts, as those see it that come to it."""

    rate: float
    """Tokens per second."""
    half_step_s: float
    """Until the step that runs is over, where it computes a prompt."""
    half_decode_s: float
    """The same where it computes none; 0 where nothing runs."""

    def wait_s(self, bound_tokens: int) -> float:
        """Until what is bound to it is computed."""
        return bound_tokens / self.rate + self.half_step_s if bound_tokens else self.half_decode_s


class Outlook:
    """What the fleet can do, by the pace a request asks for."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._made_at = float("-inf")
        self._version = -1
        self._moves = 0
        self._prefill: dict[str, PrefillView] = {}
        self._chunks: dict[str, int] = {}
        self._bound_limits: dict[str, int] = {}
        self._queues: dict[str, PromptQueue] = {}
        self._decode: dict[str, DecodeView] = {}
        self._unpaced: Capacity | None = None
        self._capacities: dict[int | None, Capacity] = {}
        self._seats: dict[tuple[str, int | None], int] = {}

    def capacity(self, pace_ms: int | None) -> Capacity:
        """As a request would find it that asks for this time between tokens. Somebody must serve."""
        self._refresh()
        found = self._capacities.get(pace_ms)
        if found is None:
            found = self._capacities[pace_ms] = self._paced(pace_ms)
        return found

    def _paced(self, pace_ms: int | None) -> Capacity:
        """The fleet with as many seats as keep this pace."""
        workers = self._book.fleet.open(DECODE)
        if self._unpaced is None:
            view = FleetView(list(self._prefill.values()), [self._decode[one.key] for one in workers])
            self._unpaced = capacity_of(view)
        limits = [self._seats_of(one, pace_ms) for one in workers]
        roomiest = self._unpaced.roomiest
        place = next(i for i, one in enumerate(workers) if self._decode[one.key] is roomiest)
        return replace(
            self._unpaced,
            free_seqs=free_seats([limit - one.num_seqs for limit, one in zip(limits, workers, strict=True)]),
            roomiest=replace(
                roomiest, seq_capacity=limits[place], prefill=self._joined(roomiest.prefill, pace_ms)
            ),
        )

    def _joined(self, view: PrefillView | None, pace_ms: int | None) -> PrefillView | None:
        """How a decode worker computes prompts once one has joined that asks for this pace."""
        if view is None or pace_ms is None or not is_cut(self._book, view.cost):
            return view
        return replace(view, limit_s=min(view.limit_s, pace_ms / 1000))

    def decode_view(self, worker: Worker) -> DecodeView:
        """A decode worker, with what its sequences will probably still need."""
        self._refresh()
        return self._decode_of(worker)

    def _decode_of(self, worker: Worker) -> DecodeView:
        found = self._decode.get(worker.key)
        return _decode_view(worker, None) if found is None else found

    def chunk(self, worker: Worker) -> int:
        """Prompt tokens of one of its full steps."""
        self._refresh()
        return self._chunks.get(worker.key, worker.facts.token_budget)

    @property
    def bound_limits(self) -> Mapping[str, int]:
        """By worker that computes prompts: tokens from which on nothing more is bound to it."""
        self._refresh()
        return self._bound_limits

    def prompt_queue(self, worker: Worker) -> PromptQueue:
        """How it works off the prompts bound to it."""
        self._refresh()
        return self._queues[worker.key]

    def prefill_view(self, worker: Worker) -> PrefillView:
        """A worker that computes prompts."""
        self._refresh()
        return self._prefill[worker.key]

    def seat_limit(self, worker: Worker, pace_ms: int | None) -> int:
        """Most sequences that may run there while every promise, and this pace, is kept."""
        self._refresh()
        return self._seats_of(worker, pace_ms)

    def _seats_of(self, worker: Worker, pace_ms: int | None) -> int:
        found = self._seats.get((worker.key, pace_ms))
        if found is None:
            found = self._seats[worker.key, pace_ms] = self._seat_limit(worker, pace_ms)
        return found

    def _seat_limit(self, worker: Worker, pace_ms: int | None) -> int:
        most, tightest = worker.facts.max_num_seqs, worker.tightest_pace_s(pace_ms)
        if tightest == NO_LIMIT_S:
            return most
        book = self._book
        if is_cut(book, worker.cost):
            late = worker.cost.ratio_q95
        else:
            _, late = book.learnt.tpot.quantiles(worker.num_seqs * TPOT_SCALE, book.now)
        return seq_capacity(self._decode_of(worker), most, tightest / late)

    def _refresh(self) -> None:
        book, fleet = self._book, self._book.fleet
        moves = MOVES_PER_WORKER * len(fleet.workers)
        is_new = book.now - self._made_at <= MAX_AGE_S and fleet.moves - self._moves <= moves
        if is_new and fleet.version == self._version:
            return
        self._made_at, self._version, self._moves = book.now, fleet.version, fleet.moves
        self._unpaced = None
        self._capacities.clear()
        self._seats.clear()
        self._prefill = {
            one.key: _prefill_view(one, is_short=is_cut(book, one.cost)) for one in fleet.computing
        }
        self._chunks = {key: chunk_tokens(view) for key, view in self._prefill.items()}
        self._bound_limits = {
            key: max(LEAST_BOUND, STEPS_BOUND * tokens) for key, tokens in self._chunks.items()
        }
        self._queues = {key: _prompt_queue(view, self._chunks[key]) for key, view in self._prefill.items()}
        self._decode = {one.key: _decode_view(one, self._prefill.get(one.key)) for one in fleet.open(DECODE)}


def is_cut(book: Book, cost: CostModel) -> bool:
    """Steps are as long as promises allow; otherwise they are filled to the budget."""
    return book.config.policy.promises and cost.is_trusted and any(cost.coefficients)


def _prefill_view(worker: Worker, *, is_short: bool) -> PrefillView:
    cost, budget = worker.cost, worker.facts.token_budget
    decodes = min(worker.num_seqs, budget - 1) if worker.facts.role == DECODE else 0
    if decodes == 0:
        return PrefillView(cost, budget, limit_s=ARRIVAL_S if is_short else NO_LIMIT_S)
    limit_s = worker.tightest_pace_s() if is_short else NO_LIMIT_S
    return PrefillView(cost, budget, decodes, worker.load.context_tokens, limit_s)


def _prompt_queue(view: PrefillView, chunk: int) -> PromptQueue:
    step_s = mixed_step_s(view, chunk)
    return PromptQueue(chunk / step_s, step_s / 2, mixed_step_s(view, 0) / 2 if view.num_decodes else 0.0)


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
