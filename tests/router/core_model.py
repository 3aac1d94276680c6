"""The surroundings of a core: calls that hear, workers that compute, and a store that keeps its promises."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core.model.actions import AskGrants, Settle
from router.core.model.events import Enqueued, Granted, WorkerFacts, WorkerLoad
from runtime.state.records import DecodeRoom, PrefillRoom, QueueEntry, Settled, Settlement
from scheduling.request import FinishReason, SequenceSpec


@dataclass
class Heard:
    """The messages that one call received."""

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
        self.ahead: list[int] = []
        """Copies of running groups' blocks that have come."""
        self.is_draining = False

    @property
    def load(self) -> WorkerLoad:
        return WorkerLoad(running=len(self.running), free_blocks=64, draining=self.is_draining)


class ModelStore:
    """The store's promises, without Redis: a queue, grants, credits and leases."""

    def __init__(self) -> None:
        self.queue: list[QueueEntry] = []
        self.granted: dict[str, tuple[QueueEntry, str, str]] = {}
        """Entries, and the two workers that their grants are for."""
        self.credits: dict[tuple[str, str], int] = {}
        self.leases: dict[tuple[str, str], int] = {}
        self.unsettled: set[tuple[str, str]] = set()
        """Credits and leases that run out with their grants."""
        self.to_give_back: Counter[tuple[str, str]] = Counter()
        """How often each lease may be given back: one request's grants may share one, or it ran out."""
        self.forgiven: set[str] = set()
        """Names of which a call failed: nobody knows what they hold, so it may be given back at any time."""

    def enqueue(self, entry: QueueEntry) -> Enqueued:
        if entry.request_key in self.granted:  # a grant that is out stands
            return Enqueued(entry.request_key, 0, 0)
        self.dequeue(entry.request_key)
        self.queue.append(entry)
        self.queue.sort(key=lambda one: (one.slo_class, one.due_in_ms))
        place = self.queue.index(entry)
        return Enqueued(entry.request_key, place, sum(item.work_tokens for item in self.queue[:place]))

    def dequeue(self, key: str) -> None:
        self.queue = [entry for entry in self.queue if entry.request_key != key]
        self.granted.pop(key, None)

    def bound_to(self, worker_key: str) -> int:
        return sum(tokens for (_, worker), tokens in self.credits.items() if worker == worker_key)

    def grant(self, ask: AskGrants) -> list[Granted]:
        grants: list[Granted] = []
        worker_key = ask.worker.key
        while len(grants) < ask.worker.max_grants and self._takes_more(ask.worker):
            decode_key = self._find_room(self.queue[0], ask.decoders) if self.queue else None
            if decode_key is None:
                break
            head = self.queue.pop(0)
            key = head.request_key
            self.granted[key] = head, worker_key, decode_key
            self.credits[key, worker_key] = head.work_tokens
            self.unsettled.add((key, worker_key))
            self.to_give_back[key, decode_key] += 1
            if (key, decode_key) not in self.leases:
                self.leases[key, decode_key] = head.blocks
                self.unsettled.add((key, decode_key))
            grants.append(Granted(key, worker_key, decode_key))
        return grants

    def _takes_more(self, worker: PrefillRoom) -> bool:
        num_prompts = sum(key == worker.key for _, key in self.credits)
        return self.bound_to(worker.key) < worker.limit_tokens or num_prompts < worker.min_prompts

    def _find_room(self, entry: QueueEntry, rooms: Sequence[DecodeRoom]) -> str | None:
        for room in rooms:
            pairs = self.leases.items()
            others = [v for (key, worker), v in pairs if worker == room.key and key != entry.request_key]
            if sum(others) + entry.blocks <= room.num_blocks and len(others) < room.max_seqs:
                return room.key
        return None

    def settle(self, action: Settle) -> Settlement:
        key, prefill_key = action.request_key, action.prefill_key
        entry, worker_key, held_key = self.granted.get(key, (None, "", ""))
        if entry is not None and worker_key != prefill_key:
            return Settlement(Settled.EXPIRED)
        waits = any(item.request_key == key for item in self.queue)
        if entry is None and not waits:
            return self._settled_before(action)
        decode_key = self._find_room(entry, action.decoders) if entry is not None else None
        for worker in (prefill_key, *(room.key for room in action.decoders)):
            self._let_go(key, worker)
        if entry is None:
            return Settlement(Settled.EXPIRED)
        del self.granted[key]
        self.to_give_back[key, held_key] -= 1
        if decode_key is None:
            self.queue.insert(0, entry)
            return Settlement(Settled.NO_ROOM)
        self.to_give_back[key, decode_key] += 1
        self.credits[key, prefill_key], self.leases[key, decode_key] = entry.work_tokens, entry.blocks
        return Settlement(Settled.OK, decode_key)

    def _settled_before(self, action: Settle) -> Settlement:
        key, credit = action.request_key, (action.request_key, action.prefill_key)
        for room in action.decoders:
            if credit in self.credits and (key, room.key) in self.leases:
                self.unsettled -= {credit, (key, room.key)}
                return Settlement(Settled.OK, room.key)
        return Settlement(Settled.EXPIRED)

    def _let_go(self, key: str, worker_key: str) -> None:
        self.credits.pop((key, worker_key), None)
        self.leases.pop((key, worker_key), None)
        self.unsettled.discard((key, worker_key))

    def release_credit(self, key: str, worker_key: str) -> None:
        self.credits.pop((key, worker_key), None)

    def release_lease(self, key: str, worker_key: str) -> None:
        pair = key, worker_key
        assert self.to_give_back[pair] > 0 or key in self.forgiven, "a lease is given back once"
        self.to_give_back[pair] -= 1
        self.leases.pop(pair, None)

    def expire(self) -> None:
        self.granted.clear()
        for key, worker_key in list(self.unsettled):
            self._let_go(key, worker_key)
