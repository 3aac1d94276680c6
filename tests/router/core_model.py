"""What surrounds a core: calls that hear, workers that compute, and a store that keeps its promises."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from router.actions import Settle
from router.events import Enqueued, Granted
from router.fleet import WorkerFacts, WorkerLoad
from scheduling.request import FinishReason, SequenceSpec
from state.records import QueueEntry, Settled


@dataclass
class Heard:
    """What one call was told."""

    max_tokens: int
    first: int = 0
    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    accepted: int = 0
    ended: dict[int, FinishReason] = field(default_factory=dict)
    over: int = 0
    gone: bool = False


@dataclass
class Running:
    """One group on one worker, as that worker sees it."""

    spec: SequenceSpec
    prefills: bool
    next_index: dict[int, int]


class ModelWorker:
    def __init__(self, name: str, role: str, incarnation: int) -> None:
        self.facts = WorkerFacts(name, str(incarnation), role, f"{name}:1", "fp", 4, 64, 8, 64)
        self.running: dict[int, Running] = {}
        self.forgotten: list[tuple[int, int, int, int]] = []
        """Rows of attempts that were cancelled: late reports."""

    @property
    def load(self) -> WorkerLoad:
        return WorkerLoad(running=len(self.running), free_blocks=64)


class ModelStore:
    """The store's promises, without Redis: a queue, grants, credits and leases."""

    def __init__(self) -> None:
        self.queue: list[QueueEntry] = []
        self.granted: dict[str, QueueEntry] = {}
        self.credits: dict[tuple[str, str], int] = {}
        self.unsettled: set[tuple[str, str]] = set()
        """Credits that run out with their grants."""
        self.leases: dict[tuple[str, str], int] = {}

    def enqueue(self, entry: QueueEntry) -> Enqueued:
        if entry.request_key in self.granted:  # a grant that is out stands
            return Enqueued(entry.request_key, 0, 0)
        self.dequeue(entry.request_key)
        self.queue.append(entry)
        self.queue.sort(key=lambda one: (one.slo_class, one.due_in_ms))
        place = self.queue.index(entry)
        return Enqueued(entry.request_key, place, sum(one.work_tokens for one in self.queue[:place]))

    def dequeue(self, key: str) -> None:
        self.queue = [one for one in self.queue if one.request_key != key]
        self.granted.pop(key, None)

    def bound_to(self, worker_key: str) -> int:
        return sum(tokens for (_, worker), tokens in self.credits.items() if worker == worker_key)

    def grant(self, worker_key: str, limit: int, most: int) -> list[Granted]:
        grants: list[Granted] = []
        while len(grants) < most and self.queue and self.bound_to(worker_key) < limit:
            head = self.queue.pop(0)
            self.granted[head.request_key] = head
            self.credits[head.request_key, worker_key] = head.work_tokens
            self.unsettled.add((head.request_key, worker_key))
            grants.append(Granted(head.request_key, worker_key))
        return grants

    def settle(self, action: Settle) -> Settled:
        entry = self.granted.pop(action.request_key, None)
        if entry is None:
            self.credits.pop((action.request_key, action.prefill_key), None)
            return Settled.EXPIRED
        held = [v for (_, w), v in self.leases.items() if w == action.decoder.key]
        if sum(held) + entry.blocks > action.decoder.num_blocks or len(held) >= action.decoder.max_seqs:
            self.credits.pop((action.request_key, action.prefill_key), None)
            self.queue.insert(0, entry)
            return Settled.NO_ROOM
        self.leases[action.request_key, action.decoder.key] = entry.blocks
        self.unsettled.discard((action.request_key, action.prefill_key))
        return Settled.OK

    def expire(self) -> None:
        self.granted.clear()
        for one in self.unsettled:
            self.credits.pop(one, None)
        self.unsettled.clear()
