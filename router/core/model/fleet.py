"""The connected workers: what they reported, and what was sent to them since.

Every sum is kept up to date as things change, in one place: `Worker.reserve` and `Worker.release` count what
decodes on a worker, `Fleet` counts the prompts that are bound to workers.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from router.core.model.events import DECODE, PREFILL, StepReported, WorkerFacts, WorkerLoad
from router.core.model.session import Group, Move
from scheduling.cost.cost_model import CostModel, StepShape, quickest
from scheduling.placement import Placement
from scheduling.roles import Roles

STALL_S = 2.0
STALL_STEPS = 4
"""A step stalls once it takes more than `STALL_S`, and this many times as long as the longest step before."""
STEP_WEIGHT = 0.2
"""Weight of the newest step in the average step time."""
SHARE_WINDOW_S = 10.0
"""The shares of time that workers spend on prompts and on decodes are averages over about this long."""


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
        if worker.draining != was_draining:
            self.changed()
        else:
            self._bind(worker, worker.bound_tokens - before)

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
