"""Tells the fleet, through Redis, that this worker lives and which prefixes it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from state.errors import StoreUnavailable
from state.records import WorkerRecord
from state.store import Store
from worker.metrics import WorkerMetrics
from worker.preflight import check_fleet

log = structlog.get_logger()

HEARTBEAT_S = 1.0
TTL_S = 3.0


class PrefixNews:
    """What the prefix directory has not been told yet."""

    def __init__(self) -> None:
        self._held: set[bytes] = set()
        self._told: set[bytes] = set()
        self._changed: set[bytes] = set()

    def note(self, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        for block_hash in added:
            self._held.add(block_hash)
            self._changed.add(block_hash)
        for block_hash in removed:
            self._held.discard(block_hash)
            self._changed.add(block_hash)

    def take(self) -> tuple[list[bytes], list[bytes]]:
        """(added, removed) since the last time."""
        changed, self._changed = self._changed, set()
        added = [block_hash for block_hash in changed if block_hash in self._held - self._told]
        removed = [block_hash for block_hash in changed if block_hash in self._told - self._held]
        self._told.update(added)
        self._told.difference_update(removed)
        return added, removed

    def forget_telling(self) -> None:
        """The directory may have lost everything: next time, all that is held is news."""
        self._told.clear()
        self._changed = set(self._held)


class Registration:
    """Heartbeats until stopped. Redis may go and come back: running sequences do not care."""

    def __init__(self, store: Store, record: WorkerRecord, metrics: WorkerMetrics) -> None:
        self.prefixes = PrefixNews()
        self._store = store
        self._record = record
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None
        store.on_new_epoch(self.prefixes.forget_telling)

    async def start(self) -> None:
        """Raises ForeignFleetError or StoreUnavailable; afterwards the worker is announced."""
        check_fleet(self._record, await self._store.list_workers())
        await self._store.register_worker(self._record, TTL_S)
        self._task = asyncio.create_task(self._beat(), name="registration")

    async def stop(self) -> None:
        """No new work is wanted."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        try:
            await self._store.unregister_worker(self._record.worker_id, self._record.incarnation)
        except StoreUnavailable as error:
            log.warning("unregister_failed", reason=str(error))

    async def _beat(self) -> None:
        reachable = True
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await self._tell()
            except StoreUnavailable as error:
                if reachable:
                    log.warning("redis_lost", reason=str(error))
                reachable = False
                self.prefixes.forget_telling()
            except Exception:  # the loop's top: ended unheard, it would take a healthy worker away
                self._metrics.loop_errors.labels("registration").inc()
                log.exception("registration_failed")
            else:
                if not reachable:
                    log.info("redis_back")
                reachable = True

    async def _tell(self) -> None:
        await self._store.register_worker(self._record, TTL_S)
        added, removed = self.prefixes.take()
        if added or removed:
            await self._store.publish_prefix(self._record.key, added, removed)
