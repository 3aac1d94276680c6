"""Announces to the fleet, through Redis, that this worker lives and which prefixes it caches."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable

import structlog

from state.errors import StoreUnavailable
from state.records import StartingRecord, WorkerRecord
from state.store import Store
from worker.errors import ForeignFleetError
from worker.metrics import WorkerMetrics
from worker.role import WorkerRole
from worker.startup.starting import Progress

log = structlog.get_logger()

RENEW_S = 1.0
"""Seconds between renewals of the record in Redis, which expires after `TTL_S`."""
TTL_S = 3.0
PIECE = 1000
"""Blocks in one message: packing them holds the event loop for a millisecond."""
MAX_PIECES = 20
"""Messages sent at each renewal, few enough that the next one is not late. To announce a whole pool takes a
few renewals."""


class PrefixChanges:
    """Cached blocks that came or went since the prefix directory was updated.

    Each hash is in at most one of three places, so the cost of `take` depends on how much it returns, not on
    how many blocks are cached. A dict, unlike a set, pops its entries without a walk over its table.
    """

    def __init__(self) -> None:
        self._announced: set[bytes] = set()
        """Cached, and in the directory."""
        self._unannounced: dict[bytes, None] = {}
        """Cached, and not in the directory yet."""
        self._gone: dict[bytes, None] = {}
        """Not cached any more, and still in the directory."""

    def note(self, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        for block_hash in added:
            if block_hash in self._gone:
                del self._gone[block_hash]
                self._announced.add(block_hash)
            elif block_hash not in self._announced:
                self._unannounced[block_hash] = None
        for block_hash in removed:
            if block_hash in self._announced:
                self._announced.remove(block_hash)
                self._gone[block_hash] = None
            else:
                self._unannounced.pop(block_hash, None)

    def take(self, most: int) -> tuple[list[bytes], list[bytes]]:
        """Return (added, removed) since the last call, at most `most` of both together."""
        removed = [self._gone.popitem()[0] for _ in range(min(most, len(self._gone)))]
        num_added = min(most - len(removed), len(self._unannounced))
        added = [self._unannounced.popitem()[0] for _ in range(num_added)]
        self._announced.update(added)
        return added, removed

    def announce_all_again(self) -> None:
        """Announce all cached blocks again: the directory may have lost everything."""
        announced, self._announced = self._announced, set()
        self._unannounced.update(dict.fromkeys(announced))
        self._gone.clear()


@contextlib.asynccontextmanager
async def announced_start(
    store: Store, worker_id: str, role: WorkerRole, progress: Callable[[], Progress]
) -> AsyncIterator[None]:
    """Announce the progress of this worker's start to the fleet every second until the context ends."""
    incarnation = secrets.token_hex(8)

    def record() -> StartingRecord:
        now = progress()
        return StartingRecord(worker_id, incarnation, role.value, now.phase.value, now.done, now.total)

    async def renew() -> None:
        while True:
            with contextlib.suppress(StoreUnavailable):
                await store.announce_start(record())
            await asyncio.sleep(RENEW_S)

    task = asyncio.create_task(renew(), name="start announcement")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with contextlib.suppress(StoreUnavailable):
            await store.withdraw_start(record())


class Registration:
    """Renews the worker's record until stopped. An outage of Redis does not affect running sequences."""

    def __init__(self, store: Store, record: WorkerRecord, metrics: WorkerMetrics) -> None:
        self.prefixes = PrefixChanges()
        self._store = store
        self._record = record
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None
        store.on_new_epoch(self.prefixes.announce_all_again)

    async def start(self) -> None:
        """Join the fleet. Raises ForeignFleetError or StoreUnavailable."""
        check_fleet(self._record, await self._store.list_workers())
        await self._store.register_worker(self._record, TTL_S)
        try:  # again: two workers that join at one moment do not see each other before they are registered
            check_fleet(self._record, await self._store.list_workers())
        except ForeignFleetError:
            await self._unregister()
            raise
        self._task = asyncio.create_task(self._renew(), name="registration")

    async def stop(self) -> None:
        """Leave the registry: no new work is wanted."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        await self._unregister()

    async def _unregister(self) -> None:
        try:
            await self._store.unregister_worker(self._record.worker_id, self._record.incarnation)
        except StoreUnavailable as error:
            log.warning("unregister_failed", reason=str(error))

    async def _renew(self) -> None:
        reachable = True
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self._announce()
            except StoreUnavailable as error:
                if reachable:
                    log.warning("redis_lost", reason=str(error))
                reachable = False
                self.prefixes.announce_all_again()
            except Exception:  # the loop's top: if it ended, a healthy worker would be lost
                self._metrics.loop_errors.labels("registration").inc()
                self.prefixes.announce_all_again()
                log.exception("registration_failed")
            else:
                if not reachable:
                    log.info("redis_back")
                reachable = True

    async def _announce(self) -> None:
        await self._store.register_worker(self._record, TTL_S)
        for _ in range(MAX_PIECES):
            added, removed = self.prefixes.take(PIECE)
            if not added and not removed:
                return
            await self._store.publish_prefix(self._record.key, added, removed)


def check_fleet(own: WorkerRecord, fleet: Iterable[WorkerRecord]) -> None:
    """Refuse to join workers whose KV differs; an earlier process of this worker does not count.

    So are workers refused that have another adapter under the same name.
    """
    for other in fleet:
        if other.worker_id == own.worker_id:
            continue
        for field, has, others in (
            ("--block-size", own.block_size, other.block_size),
            ("fingerprint (of weights, dtype, quantisation and layout)", own.fingerprint, other.fingerprint),
            ("--deterministic", _describe_digest(own.sameness), _describe_digest(other.sameness)),
        ):
            if has != others:
                raise ForeignFleetError(field, has, others, other.worker_id)
        for name, digest in own.adapters.items():
            if (theirs := other.adapters.get(name, digest)) != digest:
                field = f"--lora {name} (a digest of its files)"
                raise ForeignFleetError(field, digest, theirs, other.worker_id)


def _describe_digest(digest: str) -> str:
    return f"on, with logits {digest}" if digest else "off"
