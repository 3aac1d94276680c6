"""The core's picture of the workers: what they said of themselves, and what was sent since.

Every sum here is kept as things change and has one owner: `Worker.take` and `Worker.let_go` for what decodes
there, `Fleet.learn` and `Fleet.send` for prompts bound to workers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduling.cost.cost_model import CostModel
from scheduling.cost.quickest import quickest
from scheduling.placement import Placement
from scheduling.value import value

if TYPE_CHECKING:
    from router.core.dispatch.moves import Move
    from router.core.session.session import Group

STALL_S = 2.0
STALL_STEPS = 4
"""A step stalls that lasts so many times as long as the longest before, and over so many seconds."""
PREFILL = "prefill"
DECODE = "decode"


@value
class WorkerFacts:
    """What does not change while the worker's process lives."""

    worker_id: str
    incarnation: str
    role: str
    """`prefill` or `decode`"""
    address: str
    fingerprint: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    token_budget: int

    @property
    def key(self) -> str:
        """Names this process of this worker."""
        return f"{self.worker_id}:{self.incarnation}"


@value
class WorkerLoad:
    """As `WorkerLoad` in `worker.proto`."""

    step: int = 0
    running: int = 0
    waiting: int = 0
    pending_prefill_tokens: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    context_tokens: int = 0
    draining: bool = False
    preempted: int = 0


@dataclass(slots=True, eq=False)
class Worker:
    """One connected worker. Groups are those dispatched to it and not over."""

    facts: WorkerFacts
    load: WorkerLoad
    cost: CostModel
    drain_asked: bool = False
    step_s: float = 0.0
    longest_step_s: float = 0.0
    stalled: bool = False
    """Its step does not end, or its event loop is held up: it gets new work only if no other worker can take
    it."""
    groups: dict[int, Group] = field(default_factory=dict)
    preempted: dict[int, Group] = field(default_factory=dict)
    """Groups that wait here for blocks they had."""
    copies: dict[int, Move] = field(default_factory=dict)
    """By handle: blocks that are copied from or to it ahead of a group."""
    sent_tokens: int = 0
    """Prompt tokens dispatched since its last report."""
    coming_tokens: int = 0
    """Prompt tokens granted to it, their lease not yet settled."""
    asking: bool = False
    """A grant call for it is under way."""
    prefill_share: float = 0.0
    """Of its time, that it spends on prompts and on decodes: moving averages."""
    decode_share: float = 0.0
    reported_at: float = float("-inf")
    key: str = field(init=False)
    quickest: tuple[CostModel, ...] = field(init=False)
    """The quickest costs it has reported since it joined; none before it measured any."""
    decode_groups: int = 0
    """Groups of this router that decode, or will decode, here; and their sequences, blocks and tokens."""
    decode_seqs: int = 0
    leased_blocks: int = 0
    expected_tokens: int = 0
    """Output expected of them; and of that, what was not delivered yet."""
    remaining_tokens: int = 0
    paces_ms: list[int] = field(default_factory=list)
    """What was promised to them between tokens, ascending."""

    def __post_init__(self) -> None:
        self.key = self.facts.key
        self.quickest = quickest((), self.cost, self.facts.token_budget)

    def learn_cost(self, cost: CostModel) -> None:
        """Take over the step costs that it reports."""
        self.cost = cost
        self.quickest = quickest(self.quickest, cost, self.facts.token_budget)

    @property
    def draining(self) -> bool:
        """Takes nothing new."""
        return self.drain_asked or self.load.draining

    @property
    def bound_tokens(self) -> int:
        """Prompt tokens it has not computed yet."""
        return self.load.pending_prefill_tokens + self.sent_tokens + self.coming_tokens

    @property
    def num_seqs(self) -> int:
        """Sequences that decode here, other routers' included."""
        return max(self.load.running, self.decode_seqs)

    @property
    def free_blocks(self) -> int:
        """Blocks neither leased by this router nor used by anyone, as far as is known."""
        return max(0, min(self.facts.num_blocks - self.leased_blocks, self.load.free_blocks))

    def take(self, group: Group) -> None:
        """The group will decode here."""
        self.decode_groups += 1
        self.decode_seqs += group.num_seqs
        self.leased_blocks += group.blocks
        self.expected_tokens += group.expected_tokens
        self.remaining_tokens += group.expected_tokens - group.delivered_tokens
        pace_ms = group.session.aim.pace_ms
        if pace_ms is not None:
            insort(self.paces_ms, pace_ms)

    def let_go(self, group: Group) -> None:
        """The group is over, or goes elsewhere."""
        self.decode_groups -= 1
        self.decode_seqs -= group.num_seqs
        self.leased_blocks -= group.blocks
        self.expected_tokens -= group.expected_tokens
        self.remaining_tokens -= group.expected_tokens - group.delivered_tokens
        pace_ms = group.session.aim.pace_ms
        if pace_ms is not None:
            del self.paces_ms[bisect_left(self.paces_ms, pace_ms)]

    def tightest_pace_s(self, pace_ms: int | None = None) -> float:
        """The least time between tokens promised here, `pace_ms` included; infinite without any."""
        tightest = self.paces_ms[0] if self.paces_ms else None
        if tightest is None or (pace_ms is not None and pace_ms < tightest):
            tightest = pace_ms
        return float("inf") if tightest is None else tightest / 1000


class Fleet:
    """The connected workers, by key."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.workers: dict[str, Worker] = {}
        self.bound_tokens = 0
        """Of the workers that compute prompts."""
        self.version = 0
        """Counts what changes the fleet's capacity at a stroke."""
        self.moves = 0
        """Counts reports and dispatches."""
        self.block_size = 1
        """The same everywhere; 1 without a worker."""
        self.fingerprint = ""
        """The same everywhere; empty until a worker has joined."""
        self.largest_pool = 0
        """Blocks of the largest decode worker that takes new work; 0 without one."""
        self.stirred: dict[str, None] = {}
        """An ordered set: workers whose bound prompts have moved, until `PromptQueues` has looked."""
        self._open: dict[str, tuple[Worker, ...]] = {}

    def join(self, worker: Worker) -> None:
        """A worker is connected."""
        self.workers[worker.key] = worker
        self.fingerprint = worker.facts.fingerprint
        self.changed()

    def lose(self, key: str) -> Worker | None:
        """A worker's stream is gone."""
        worker = self.workers.pop(key, None)
        if worker is not None:
            self.changed()
        return worker

    def changed(self) -> None:
        """Other workers are there, or take new work, than before."""
        self.version += 1
        self._open.clear()
        self.block_size = next((worker.facts.block_size for worker in self.workers.values()), 1)
        self.largest_pool = max((worker.facts.num_blocks for worker in self._taking(DECODE)), default=0)
        self.bound_tokens = sum(worker.bound_tokens for worker in self.computing)

    def learn(self, worker: Worker, load: WorkerLoad) -> None:
        """Take over what a worker said last."""
        self.moves += 1
        before, was_draining = worker.bound_tokens, worker.draining
        worker.load, worker.sent_tokens = load, 0
        if worker.draining != was_draining:
            self.changed()
        else:
            self._bind(worker, worker.bound_tokens - before)

    def send(self, worker: Worker, tokens: int) -> None:
        """A prompt of that many tokens was dispatched to a worker."""
        self.moves += 1
        worker.sent_tokens += tokens
        self._bind(worker, tokens)

    def expect(self, worker_key: str | None, tokens: int) -> None:
        """So many more prompt tokens are on their way to a worker; fewer where negative."""
        worker = self.workers.get(worker_key or "")
        if worker is None:
            return
        worker.coming_tokens += tokens
        self._bind(worker, tokens)

    def _bind(self, worker: Worker, tokens: int) -> None:
        """So many more are bound to a worker that may compute prompts."""
        if tokens and not worker.draining and self._computes(worker):
            self.bound_tokens += tokens
            self.stirred[worker.key] = None

    def drain(self, worker: Worker) -> None:
        """A worker shall take nothing new."""
        worker.drain_asked = True
        self.changed()

    def watch(self, worker: Worker, running_step_s: float) -> None:
        """A worker's step has been running for so long."""
        limit_s = max(STALL_S, STALL_STEPS * worker.longest_step_s)
        self._set_stalled(worker, stalled=running_step_s > limit_s)

    def hold(self, worker: Worker) -> None:
        """A worker's event loop is held up, until it says something again."""
        self._set_stalled(worker, stalled=True)

    def stepped(self, worker: Worker, step_s: float) -> None:
        """A worker's step has ended."""
        worker.longest_step_s = max(worker.longest_step_s, step_s)
        if worker.stalled:
            self._set_stalled(worker, stalled=False)

    def _set_stalled(self, worker: Worker, *, stalled: bool) -> None:
        if worker.stalled is not stalled:
            worker.stalled = stalled
            self.changed()

    def open(self, role: str) -> tuple[Worker, ...]:
        """Workers of one role that are given new work, by key: of those that take it, who gets on with it."""
        found = self._open.get(role)
        if found is None:
            taking = self._taking(role)
            found = self._open[role] = tuple(one for one in taking if not one.stalled) or taking
        return found

    def _taking(self, role: str) -> tuple[Worker, ...]:
        workers = (one for one in self.workers.values() if one.facts.role == role and not one.draining)
        return tuple(sorted(workers, key=lambda one: one.key))

    @property
    def computing_roles(self) -> tuple[str, ...]:
        """Whose workers take prompts; without any prefill worker the decode workers do it all."""
        if self.placement is Placement.AGGREGATED or not self.open(PREFILL):
            return (DECODE,)
        return (PREFILL,) if self.placement is Placement.DISAGGREGATED else (PREFILL, DECODE)

    @property
    def computing(self) -> tuple[Worker, ...]:
        """Workers that take prompts."""
        found = self._open.get("computing")
        if found is None:
            found = tuple(worker for role in self.computing_roles for worker in self.open(role))
            self._open["computing"] = found
        return found

    def _computes(self, worker: Worker) -> bool:
        return worker in self.computing

    @property
    def idle(self) -> bool:
        """No worker has anything to do."""
        return not any(worker.bound_tokens or worker.num_seqs for worker in self.workers.values())

    @property
    def num_stalled(self) -> int:
        return sum(worker.stalled for worker in self.workers.values())

    def serves(self) -> bool:
        """A request could run."""
        return bool(self.open(DECODE))

    def alive(self, keys: Iterable[str | None]) -> list[Worker]:
        """Those of the named workers that are connected, each once."""
        return [self.workers[key] for key in dict.fromkeys(keys) if key is not None and key in self.workers]
