"""The in-memory store behind the interface of `state.store.Store`, for whoever awaits its store."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from scheduling.admission.shares import Standing
from sim.store.memory_store import MemoryStore
from state.records import (
    DecodeRoom,
    Grant,
    Hold,
    Notice,
    Nudge,
    PrefillRoom,
    QueueEntry,
    QueuePlace,
    QueueStatus,
    Settlement,
    WorkerRecord,
)


class AsyncMemoryStore:
    """Every method answers at once. Docstrings are those of `Store`."""

    def __init__(self, memory: MemoryStore) -> None:
        self.memory = memory

    async def close(self) -> None:
        """Nothing is open."""

    def on_new_epoch(self, call: Callable[[], None]) -> None:
        """Nothing is ever forgotten."""

    async def register_worker(self, record: WorkerRecord, ttl_s: float) -> None:
        self.memory.register_worker(record, ttl_s)

    async def unregister_worker(self, worker_id: str, incarnation: str) -> None:
        self.memory.unregister_worker(worker_id, incarnation)

    async def list_workers(self) -> list[WorkerRecord]:
        return self.memory.list_workers()

    async def enqueue(self, entry: QueueEntry, capacity: int) -> QueuePlace:
        return self.memory.enqueue(entry, capacity)

    async def dequeue(self, request_key: str) -> bool:
        return self.memory.dequeue(request_key)

    async def queue_status(self) -> QueueStatus:
        return self.memory.queue_status()

    async def charge_tenant(
        self, tenant: str, tokens: float, lead: float, band: float = math.inf
    ) -> Standing:
        return self.memory.charge_tenant(tenant, tokens, lead, band)

    async def refund_tenant(self, tenant: str, tokens: float) -> None:
        self.memory.refund_tenant(tenant, tokens)

    async def grant(self, caller: str, worker: PrefillRoom, decoders: Sequence[DecodeRoom]) -> list[Grant]:
        return self.memory.grant(caller, worker, decoders)

    async def settle(
        self, request_key: str, prefill_key: str, decoders: Sequence[DecodeRoom], ttl_s: float
    ) -> Settlement:
        return self.memory.settle(request_key, prefill_key, decoders, ttl_s)

    async def release_credit(self, request_key: str, prefill_key: str) -> bool:
        return self.memory.release_credit(request_key, prefill_key)

    async def release_lease(self, request_key: str, decode_key: str) -> bool:
        return self.memory.release_lease(request_key, decode_key)

    async def renew(
        self, credits_held: Iterable[tuple[str, str]], leases_held: Iterable[tuple[str, str]], ttl_s: float
    ) -> None:
        self.memory.renew(credits_held, leases_held, ttl_s)

    async def take_holds(
        self, credits_held: Iterable[Hold], leases_held: Iterable[Hold], ttl_s: float
    ) -> None:
        self.memory.take_holds(credits_held, leases_held, ttl_s)

    async def leases(self, worker_key: str) -> dict[str, int]:
        return self.memory.leases(worker_key)

    async def credits(self, worker_key: str) -> dict[str, int]:
        return self.memory.credits(worker_key)

    async def publish_prefix(self, worker_key: str, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        self.memory.publish_prefix(worker_key, added, removed)

    async def lookup_prefix(self, worker_keys: Sequence[str], hashes: Iterable[bytes]) -> dict[str, int]:
        return self.memory.lookup_prefix(worker_keys, list(hashes))

    async def notices(self, router_id: str) -> AsyncGenerator[Notice, None]:
        """Like `Store.notices`: a first `Nudge`, then what comes."""
        heard: asyncio.Queue[Notice] = asyncio.Queue()
        unsubscribe = self.memory.subscribe(router_id, heard.put_nowait)
        try:
            yield Nudge()
            while True:
                yield await heard.get()
        finally:
            unsubscribe()
