"""Tells the fleet, through Redis, that this worker lives and which prefixes it holds."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable

import structlog

from state.errors import StoreUnavailable
from state.records import StartingRecord, WorkerRecord
from state.store import Store
from worker.identity import WorkerRole
from worker.metrics import WorkerMetrics
from worker.startup.preflight import check_fleet
from worker.startup.starting import Progress

log = structlog.get_logger()

HEARTBEAT_S = 1.0
TTL_S = 3.0
PIECE = 1000
"""Blocks in one message: packing them holds the event loop for a millisecond."""
MAX_PIECES = 20
"""Messages sent at each heartbeat, few enough that the next one is not late. A pool that is all news takes
a few heartbeats."""


class PrefixNews:
    """Changes that the prefix directory has not been told yet.

    Each hash is in one of three places at most, so that taking the news costs what is taken, however many
    blocks are cached. A dict, unlike a set, gives up its entries one by one without a walk over its table.
    """

    def __init__(self) -> None:
        self._told: set[bytes] = set()
        """Held, and the directory knows."""
        self._untold: dict[bytes, None] = {}
        """Held, and the directory does not know."""
        self._gone: dict[bytes, None] = {}
        """Not held any more, and the directory does not know."""

    def note(self, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        for block_hash in added:
            if block_hash in self._gone:
                del self._gone[block_hash]
                self._told.add(block_hash)
            elif block_hash not in self._told:
                self._untold[block_hash] = None
        for block_hash in removed:
            if block_hash in self._told:
                self._told.remove(block_hash)
                self._gone[block_hash] = None
            else:
                self._untold.pop(block_hash, None)

    def take(self, most: int) -> tuple[list[bytes], list[bytes]]:
        """Return (added, removed) since the last call, at most `most` of both together."""
        removed = [self._gone.popitem()[0] for _ in range(min(most, len(self._gone)))]
        added = [self._untold.popitem()[0] for _ in range(min(most - len(removed), len(self._untold)))]
        self._told.update(added)
        return added, removed

    def forget_telling(self) -> None:
        """Announce all held blocks again: the directory may have lost everything."""
        told, self._told = self._told, set()
        self._untold.update(dict.fromkeys(told))
        self._gone.clear()


class StartAnnouncement:
    """Announces the progress of this worker's start to the fleet every second, until it is over."""

    def __init__(
        self, store: Store, worker_id: str, role: WorkerRole, progress: Callable[[], Progress]
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._incarnation = secrets.token_hex(8)
        self._role = role
        self._progress = progress
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._beat(), name="start announcement")

    async def end(self) -> None:
        """Stop announcing: the worker serves, or never will. A second call does nothing."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        with contextlib.suppress(StoreUnavailable):
            await self._store.withdraw_start(self._record())

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(StoreUnavailable):
                await self._store.announce_start(self._record())
            await asyncio.sleep(HEARTBEAT_S)

    def _record(self) -> StartingRecord:
        now = self._progress()
        return StartingRecord(
            self._worker_id, self._incarnation, self._role.value, now.phase.value, now.done, now.total
        )


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
                self.prefixes.forget_telling()
                log.exception("registration_failed")
            else:
                if not reachable:
                    log.info("redis_back")
                reachable = True

    async def _tell(self) -> None:
        await self._store.register_worker(self._record, TTL_S)
        for _ in range(MAX_PIECES):
            added, removed = self.prefixes.take(PIECE)
            if not added and not removed:
                return
            await self._store.publish_prefix(self._record.key, added, removed)
