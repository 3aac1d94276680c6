"""The connected workers: what they reported, and what was sent to them since.

Every sum is kept up to date as things change, in one place: `Worker.reserve` and `Worker.release` count what
decodes on a worker, `Fleet` counts the prompts that are bound to workers.

`FleetCapacity` sums the fleet up for predictions, at most twenty times a second. Only the prompts bound to
workers are followed exactly in between (`Fleet.bound_tokens`), since they change fastest. A worker that
joins, leaves or begins to drain is seen at once. Every question to it takes the time `now`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from router.core.model.events import DECODE, PREFILL, StepReported, WorkerFacts, WorkerLoad
from router.core.model.session import Group, Move
from scheduling.admission.learnt import TPOT_SCALE, LearntRatios
from scheduling.cost_model import CostModel, StepShape, quickest
from scheduling.placement import Placement, Roles
from scheduling.policies.policy import Policy
from scheduling.prediction import (
    Capacity,
    DecodeSpeed,
    DecodeView,
    Lane,
    PrefillSpeed,
    PrefillView,
    arrival_s,
    capacity_of,
    decode_speed,
    free_seats,
    mixed_step_s,
    num_micro_batches,
    prefill_speed,
    seq_capacity,
    share,
    step_limit_s,
)
from scheduling.step import NO_LIMIT_S
from scheduling.value import value

STALL_S = 2.0
STALL_STEPS = 4
"""A step stalls once it takes more than `STALL_S`, and this many times as long as the longest step before."""
STEP_WEIGHT = 0.2
"""Weight of the newest step in the average step time."""
SHARE_WINDOW_S = 10.0
"""The shares of time that workers spend on prompts and on decodes are averages over about this long."""


MAX_AGE_S = 0.05
MOVES_PER_WORKER = 4
"""Reports and dispatches per worker after which a sum is too old as well: small fleets change fast."""
STEPS_BOUND = 2
"""Steps' worth of prompts bound to a worker. What has entered an engine can no longer be reordered, but a
worker that runs dry while the next grant travels is idle."""
LEAST_BOUND = 256
"""Tokens bound at least: where promises cut steps short, two steps are over before a grant has travelled."""


@dataclass(slots=True, eq=False)
class Worker:
    """One connected worker. `groups` are dispatched to it and not over, by handle."""

    facts: WorkerFacts
    load: WorkerLoad
    cost: CostModel
    drain_asked: bool = False
    step_s: float = 0.0
    """Average time of its steps."""
    longest_step_s: float = 0.0
    stalled: bool = False
    """Its step does not end, or its event loop is held up. It gets new work only if no other worker can take
    the work."""
    groups: dict[int, Group] = field(default_factory=dict)
    preempted: dict[int, Group] = field(default_factory=dict)
    """Groups that wait here for blocks which they had."""
    copies: dict[int, Move] = field(default_factory=dict)
    """Pre-copies from or to this worker, by handle."""
    sent_tokens: int = 0
    """Prompt tokens dispatched since its last report."""
    coming_tokens: int = 0
    """Prompt tokens granted to it while the lease is not settled."""
    bound_prompts: int = 0
    """Prompts of this router that are granted or bound to it, and not computed yet."""
    asking: bool = False
    """A grant call for it is under way."""
    prefill_share: float = 0.0
    """Moving averages: the shares of its time that it spends on prompts and on decodes."""
    decode_share: float = 0.0
    reported_at: float = float("-inf")
    key: str = field(init=False)
    draining: bool = field(init=False)
    """Takes nothing new: it was asked to drain, or reports that it drains."""
    quickest: tuple[CostModel, ...] = field(init=False)
    """The quickest costs that it has reported since it joined; empty before it measured any."""
    decode_groups: int = 0
    """Groups of this router that decode, or will decode, here; then their sequences, blocks and tokens."""
    decode_seqs: int = 0
    num_seqs: int = field(init=False)
    """Sequences that decode here, those of other routers included."""
    free_blocks: int = field(init=False)
    """Blocks that, as far as is known, this router has not leased and nobody uses."""
    leased_blocks: int = 0
    expected_tokens: int = 0
    """Output expected of these groups; `remaining_tokens` is the part that is not delivered yet."""
    remaining_tokens: int = 0
    adapters: tuple[str, ...] = field(init=False)
    """The digests of its LoRA adapters, those that it would load first included."""
    adapter_set: frozenset[str] = field(init=False)
    load_s_by_adapter: Mapping[str, float] = field(default_factory=dict)
    """Seconds to load an adapter, by digest, for those that it has not in memory."""
    paces_ms: list[int] = field(default_factory=list)
    """The times between tokens that were promised to these groups, ascending."""

    def __post_init__(self) -> None:
        self.key, self.draining = self.facts.key, self.load.draining
        self.set_adapters(tuple(sorted(set(self.facts.adapters.values()))), {})
        self.quickest = quickest((), self.cost, self.facts.token_budget)
        self.count()

    def count(self) -> None:
        """Compare what was reported last with what was sent."""
        self.num_seqs = max(self.load.running, self.decode_seqs)
        unleased = self.facts.num_blocks - self.leased_blocks
        self.free_blocks = max(0, min(unleased, self.load.free_blocks))

    def has(self, adapter: str) -> bool:
        """Return whether the worker runs sequences with an adapter, by its digest; all run those without."""
        return not adapter or adapter in self.adapter_set

    def load_s(self, adapter: str) -> float:
        """Return how long a request with an adapter that it has waits for its loading."""
        return self.load_s_by_adapter.get(adapter, 0.0) if adapter else 0.0

    def set_adapters(self, adapters: tuple[str, ...], load_s: Mapping[str, float]) -> None:
        """Take over what adapters the worker has, by their digests, and how long some take to load."""
        self.adapters, self.adapter_set = adapters, frozenset(adapters)
        self.load_s_by_adapter = load_s

    def learn_cost(self, cost: CostModel) -> None:
        """Take over the step costs that the worker reports."""
        self.cost = cost
        self.quickest = quickest(self.quickest, cost, self.facts.token_budget)

    @property
    def bound_tokens(self) -> int:
        """Return the prompt tokens that are bound to the worker and not computed yet."""
        return self.load.pending_prefill_tokens + self.sent_tokens + self.coming_tokens

    def reserve(self, group: Group) -> None:
        """Count a group that will decode here."""
        self.decode_groups += 1
        self.decode_seqs += group.num_seqs
        self.leased_blocks += group.blocks
        self.expected_tokens += group.expected_tokens
        self.remaining_tokens += _remaining(group)
        pace_ms = group.session.aim.pace_ms
        if pace_ms is not None:
            insort(self.paces_ms, pace_ms)
        self.count()

    def release(self, group: Group) -> None:
        """Stop counting a group that is over or goes elsewhere."""
        self.decode_groups -= 1
        self.decode_seqs -= group.num_seqs
        self.leased_blocks -= group.blocks
        self.expected_tokens -= group.expected_tokens
        self.remaining_tokens -= _remaining(group)
        pace_ms = group.session.aim.pace_ms
        if pace_ms is not None:
            del self.paces_ms[bisect_left(self.paces_ms, pace_ms)]
        self.count()

    def tightest_pace_s(self, pace_ms: int | None = None) -> float:
        """Return the least time between tokens promised here, `pace_ms` included; infinite without any."""
        tightest = self.paces_ms[0] if self.paces_ms else None
        if tightest is None or (pace_ms is not None and pace_ms < tightest):
            tightest = pace_ms
        return float("inf") if tightest is None else tightest / 1000


class Fleet:
    """The connected workers by key, and which of them take new work."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.workers: dict[str, Worker] = {}
        self.prefilling: tuple[Worker, ...] = ()
        """Prefill workers that are given new work, by key: all that take it, or those that do not stall."""
        self.decoding: tuple[Worker, ...] = ()
        """The same for decode workers."""
        self.computing: tuple[Worker, ...] = ()
        """Workers that are given prompts to compute."""
        self.computing_roles: tuple[str, ...] = (DECODE,)
        """Roles of these workers; without any prefill worker, decode workers compute all prompts."""
        self.serves = False
        """A request could run: there is a decode worker that takes new work."""
        self.bound_tokens = 0
        """Prompt tokens bound to the workers that compute prompts."""
        self.version = 0
        """Counts changes of the workers that take new work."""
        self.moves = 0
        """Counts reports and dispatches."""
        self.unheard_drains: set[str] = set()
        """Keys of workers that were asked to drain and have not said that they do: a message may be lost."""
        self.block_size = 1
        """The same on all workers; 1 until a worker has joined."""
        self.fingerprint = ""
        """The same on all workers; empty until a worker has joined."""
        self.largest_pool = 0
        """Blocks of the largest decode worker that takes new work; 0 without one."""
        self.roles = Roles()
        """The weights by which decode workers also compute prompts."""
        self.dirty: dict[str, None] = {}
        """An ordered set: workers whose bound prompts have changed since `PromptQueues` looked at them."""

    def join(self, worker: Worker) -> None:
        """Add a worker that is connected now."""
        self.workers[worker.key] = worker
        self.fingerprint = worker.facts.fingerprint
        self.changed()

    def largest_pool_with(self, adapter: str) -> int:
        """Return the blocks of the largest decode worker that takes new work with an adapter.

        0 if there is none, or no worker that computes prompts with it.
        """
        if not adapter:
            return self.largest_pool
        if not any(worker.has(adapter) for worker in self.computing):
            return 0
        return max((worker.facts.num_blocks for worker in self.decoding if worker.has(adapter)), default=0)

    def lose(self, key: str) -> Worker | None:
        """Remove a worker whose stream is gone, and return it if it was known."""
        worker = self.workers.pop(key, None)
        if worker is not None:
            self.changed()
        return worker

    def changed(self) -> None:
        """Find anew which workers take new work."""
        self.version += 1
        taking = self._taking(DECODE)
        self.prefilling, self.decoding = _prefer_running(self._taking(PREFILL)), _prefer_running(taking)
        self.computing_roles = self._computing_roles()
        self.computing = tuple(
            worker
            for role in self.computing_roles
            for worker in (self.prefilling if role == PREFILL else self.decoding)
        )
        self.serves = bool(self.decoding)
        # Without any worker it stays as it was: requests that wait for one are measured by it.
        self.block_size = next((worker.facts.block_size for worker in self.workers.values()), self.block_size)
        self.largest_pool = max((worker.facts.num_blocks for worker in taking), default=0)
        self.bound_tokens = sum(worker.bound_tokens for worker in self.computing)

    def _taking(self, role: str) -> tuple[Worker, ...]:
        found = (worker for worker in self.workers.values() if worker.facts.role == role)
        return tuple(sorted((worker for worker in found if not worker.draining), key=_key))

    def _computing_roles(self) -> tuple[str, ...]:
        if self.placement is Placement.AGGREGATED or not self.prefilling:
            return (DECODE,)
        return (PREFILL,) if self.placement is Placement.DISAGGREGATED else (PREFILL, DECODE)

    def adapt(self, worker: Worker, adapters: tuple[str, ...], load_s: Mapping[str, float]) -> None:
        """Take over the LoRA adapters that a worker has now."""
        had = worker.adapters
        worker.set_adapters(adapters, load_s)
        if had != adapters:
            self.changed()

    def learn(self, worker: Worker, load: WorkerLoad) -> None:
        """Take over the load that a worker reported last."""
        self.moves += 1
        before, was_draining = worker.bound_tokens, worker.draining
        worker.load, worker.sent_tokens = load, 0
        worker.count()
        worker.draining = worker.drain_asked or load.draining
        if load.draining:
            self.unheard_drains.discard(worker.key)
        if worker.draining != was_draining:
            self.changed()
        else:
            self._bind(worker, worker.bound_tokens - before)

    def take_report(self, worker: Worker, report: StepReported, now: float) -> None:
        """Take in what a report of a step states of its worker."""
        self.learn(worker, report.load)
        if report.cost is not None:
            worker.learn_cost(report.cost)
        if report.step_s > 0:
            self.stepped(worker, report.step_s)
        if self.placement is Placement.CONDITIONAL:
            observe(worker, report, now)

    def send(self, worker: Worker, tokens: int) -> None:
        """Count a prompt of this many tokens that was dispatched to a worker."""
        self.moves += 1
        worker.sent_tokens += tokens
        self._bind(worker, tokens)

    def expect(self, worker_key: str | None, tokens: int) -> None:
        """Count prompt tokens that are on their way to a worker; negative when they no longer are."""
        worker = self.workers.get(worker_key or "")
        if worker is None:
            return
        worker.coming_tokens += tokens
        worker.bound_prompts += 1 if tokens > 0 else -1
        self._bind(worker, tokens)

    def bind_prompt(self, worker_key: str) -> None:
        """Count a prompt that holds a credit of a worker."""
        self._count_prompt(worker_key, 1)

    def unbind_prompt(self, worker_key: str) -> None:
        """Stop counting a prompt that no longer holds a credit of a worker."""
        self._count_prompt(worker_key, -1)

    def _count_prompt(self, worker_key: str, change: int) -> None:
        worker = self.workers.get(worker_key)
        if worker is not None:
            worker.bound_prompts += change
            if not worker.draining and worker in self.computing:
                self.dirty[worker.key] = None

    def _bind(self, worker: Worker, tokens: int) -> None:
        if tokens and not worker.draining and worker in self.computing:
            self.bound_tokens += tokens
            self.dirty[worker.key] = None

    def drain(self, worker: Worker) -> None:
        """Give a worker nothing new from now on."""
        worker.drain_asked = worker.draining = True
        self.unheard_drains.add(worker.key)
        self.changed()

    def watch(self, worker: Worker, running_step_s: float) -> None:
        """Judge whether a worker stalls whose step has been running for this long."""
        limit_s = max(STALL_S, STALL_STEPS * worker.longest_step_s)
        self._set_stalled(worker, stalled=running_step_s > limit_s)

    def hold(self, worker: Worker) -> None:
        """Take a worker whose event loop is held up as stalled, until it reports again."""
        self._set_stalled(worker, stalled=True)

    def stepped(self, worker: Worker, step_s: float) -> None:
        """Take in that a worker's step has ended after this long."""
        worker.longest_step_s = max(worker.longest_step_s, step_s)
        worker.step_s += STEP_WEIGHT * (step_s - worker.step_s) if worker.step_s else step_s
        if worker.stalled:
            self._set_stalled(worker, stalled=False)

    def _set_stalled(self, worker: Worker, *, stalled: bool) -> None:
        if worker.stalled is not stalled:
            worker.stalled = stalled
            self.changed()

    @property
    def idle(self) -> bool:
        """Return True if no worker has anything to do."""
        return not any(worker.bound_tokens or worker.num_seqs for worker in self.workers.values())

    @property
    def num_stalled(self) -> int:
        return sum(worker.stalled for worker in self.workers.values())

    def alive(self, keys: Iterable[str | None]) -> list[Worker]:
        """Return those of the named workers that are connected, each once."""
        return [self.workers[key] for key in dict.fromkeys(keys) if key is not None and key in self.workers]


def observe(worker: Worker, report: StepReported, now: float) -> None:
    """Take a step into the averages of a worker's time on prompts and on decodes.

    All the time since the last report counts as spent like this step.
    """
    since_s, worker.reported_at = now - worker.reported_at, now
    shape = report.shape
    if shape is None or report.step_s <= 0 or not math.isfinite(since_s):
        return
    is_busy = report.load.running > 0 or report.load.pending_prefill_tokens > 0
    busy = 1.0 if is_busy else min(1.0, report.step_s / max(since_s, report.step_s))
    decode = _decode_part(worker, shape) * busy
    weight = 1 - math.exp(-since_s / SHARE_WINDOW_S)
    worker.decode_share += weight * (decode - worker.decode_share)
    worker.prefill_share += weight * (busy - decode - worker.prefill_share)


def _decode_part(worker: Worker, shape: StepShape) -> float:
    """Return the share of a step that its decodes alone would have taken."""
    if shape.num_tokens == shape.num_decodes:
        return 1.0
    if shape.num_decodes == 0:
        return 0.0
    whole = worker.cost.predict(shape)
    alone = worker.cost.predict(StepShape.of(shape.num_decodes, shape.decode_context, ()))
    return min(1.0, alone / whole) if whole > 0 else 0.0


def _remaining(group: Group) -> int:
    """Return the output that is expected of a group, and not delivered yet."""
    return group.expected_tokens - sum(len(choice.token_ids) for choice in group.choices)


def _key(worker: Worker) -> str:
    return worker.key


def _prefer_running(workers: tuple[Worker, ...]) -> tuple[Worker, ...]:
    """Return the workers that do not stall, or all of them if every one does."""
    return tuple(worker for worker in workers if not worker.stalled) or workers


# Summed up for predictions


@value
class PromptQueue:
    """How a worker computes the prompts bound to it, in arrival order at the worker."""

    speed: PrefillSpeed
    half_decode_s: float
    """Expected time until a step can begin, while no prompt is computed; 0 where nothing runs."""
    limit: int
    """Tokens from which on nothing more is bound to the worker, unless it has too few prompts."""
    num_steps: int
    """Steps in flight at most, in each of which there is another prompt."""
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
    return policy.cuts_steps and cost.is_trusted and any(cost.coefficients)


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
        num_steps=num_steps,
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
