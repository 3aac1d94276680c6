"""The core's picture of the workers: what they said of themselves, and what was sent since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduling.cost_model import CostModel
from scheduling.placement import Path, Placement, choose_path

if TYPE_CHECKING:
    from router.sessions import Group

PREFILL = "prefill"
DECODE = "decode"


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
    groups: dict[int, Group] = field(default_factory=dict)
    sent_tokens: int = 0
    """Prompt tokens dispatched since its last report."""
    asking: bool = False
    """A grant call for it is under way."""

    @property
    def key(self) -> str:
        return self.facts.key

    @property
    def draining(self) -> bool:
        """Takes nothing new."""
        return self.drain_asked or self.load.draining

    @property
    def bound_tokens(self) -> int:
        """Prompt tokens it has not computed yet."""
        return self.load.pending_prefill_tokens + self.sent_tokens

    @property
    def decoding(self) -> list[Group]:
        """Groups of this router that decode, or will decode, here."""
        return [group for group in self.groups.values() if group.decode_key == self.key]

    @property
    def num_seqs(self) -> int:
        """Sequences that decode here, other routers' included."""
        return max(self.load.running, sum(group.num_seqs for group in self.decoding))

    @property
    def leased_blocks(self) -> int:
        """Blocks leased here by this router."""
        return sum(group.blocks for group in self.decoding)

    @property
    def free_blocks(self) -> int:
        """Blocks neither leased by this router nor used by anyone, as far as is known."""
        return max(0, min(self.facts.num_blocks - self.leased_blocks, self.load.free_blocks))

    def learn(self, load: WorkerLoad) -> None:
        """Take over what it said last."""
        self.load = load
        self.sent_tokens = 0


class Fleet:
    """The connected workers, by key."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.workers: dict[str, Worker] = {}

    def open(self, role: str) -> list[Worker]:
        """Workers of one role that take new work, by key."""
        return sorted(
            (w for w in self.workers.values() if w.facts.role == role and not w.draining), key=lambda w: w.key
        )

    @property
    def path(self) -> Path:
        """How prompts are computed with the workers there are."""
        aggregated = self.placement is Placement.AGGREGATED
        return choose_path(Path.AGGREGATED if aggregated else Path.DISAGGREGATED, len(self.open(PREFILL)))

    @property
    def computing(self) -> list[Worker]:
        """Workers that take prompts."""
        return self.open(PREFILL if self.path is Path.DISAGGREGATED else DECODE)

    @property
    def idle(self) -> bool:
        """No worker has anything to do."""
        return not any(worker.bound_tokens or worker.num_seqs for worker in self.workers.values())

    @property
    def largest_pool(self) -> int:
        """Blocks of the largest decode worker; 0 without one."""
        return max((w.facts.num_blocks for w in self.open(DECODE)), default=0)

    def serves(self) -> bool:
        """A request could run."""
        return bool(self.open(DECODE))

    def alive(self, keys: Iterable[str | None]) -> list[Worker]:
        """Those of the named workers that are connected, each once."""
        return [self.workers[key] for key in dict.fromkeys(keys) if key is not None and key in self.workers]
