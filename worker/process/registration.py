"""Announces to the fleet, through Redis, that this worker lives and which prefixes it has."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from runtime.state.errors import StoreUnavailable
from runtime.state.records import LinkRecord, LoraRecord, StartingRecord, TierRecord, WorkerRecord
from runtime.state.store import Store
from scheduling.memory.tiers import Tier
from worker.errors import ForeignFleetError
from worker.metrics import WorkerMetrics
from worker.process.prefix_changes import PrefixChanges
from worker.process.starting import Progress
from worker.role import WorkerRole

log = structlog.get_logger()

RENEW_S = 1.0
"""Seconds between renewals of the record in Redis, which expires after `TTL_S`."""
TTL_S = 3.0
PIECE = 1000
"""Blocks in one message: packing them holds the event loop for a millisecond."""
MAX_PIECES = 20
"""Messages sent at each renewal, few enough that the next one is not late. To announce a whole pool takes a
few renewals, and a full disk takes more."""


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


@dataclass(frozen=True, slots=True)
class AnnouncedTier:
    """A tier of a worker as the fleet learns of it: its blocks, and what it holds and how fast it is now."""

    changes: PrefixChanges
    describe: Callable[[], TierRecord]


NO_TIERS: Mapping[Tier, AnnouncedTier] = {}
"""A worker keeps no blocks outside of its pool."""


class Registration:
    """Renews the worker's record until stopped. An outage of Redis does not affect running sequences."""

    def __init__(
        self,
        store: Store,
        record: WorkerRecord,
        metrics: WorkerMetrics,
        tiers: Mapping[Tier, AnnouncedTier] = NO_TIERS,
        describe_links: Callable[[], LinkRecord] | None = None,
        describe_lora: Callable[[], LoraRecord] | None = None,
    ) -> None:
        """`tiers` are those beside the pool, the fastest first.

        `describe_links` returns how fast the worker fetches blocks from others, if it does.
        """
        self.prefixes = PrefixChanges()
        self._tiers = tiers
        self._describe_links = describe_links
        self._describe_lora = describe_lora
        self._changed = asyncio.Event()
        self._store = store
        self._record = record
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None
        store.on_new_epoch(self._announce_all_again)

    async def start(self) -> None:
        """Join the fleet. Raises ForeignFleetError or StoreUnavailable."""
        check_fleet(self._record, await self._store.list_workers())
        await self._store.register_worker(self._described(), TTL_S)
        try:  # again: two workers that join at one moment do not see each other before they are registered
            check_fleet(self._record, await self._store.list_workers())
        except ForeignFleetError:
            await self._unregister()
            raise
        await self._publish()  # what a disk has, so that the first prompt finds it
        self._task = asyncio.create_task(self._renew(), name="registration")

    def announce_soon(self) -> None:
        """Renew the record now: routers should know soon what has changed."""
        self._changed.set()

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
            # Not `wait_for`, which before Python 3.12 loses a cancellation at the moment of a change.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._announce()
            except StoreUnavailable as error:
                if reachable:
                    log.warning("redis_lost", reason=str(error))
                reachable = False
                self._announce_all_again()
            except Exception:  # the loop's top: if it ended, a healthy worker would be lost
                self._metrics.loop_errors.labels("registration").inc()
                self._announce_all_again()
                log.exception("registration_failed")
            else:
                if not reachable:
                    log.info("redis_back")
                reachable = True

    async def _announce(self) -> None:
        await self._store.register_worker(self._described(), TTL_S)
        await self._publish()

    async def _publish(self) -> None:
        """Publish what changed, as far as `MAX_PIECES` go; what is in the pool first."""
        num_left = await self._publish_tier(self.prefixes, MAX_PIECES, Tier.POOL)
        for tier, announced in self._tiers.items():
            num_left = await self._publish_tier(announced.changes, num_left, tier)

    async def _publish_tier(self, changes: PrefixChanges, num_pieces: int, tier: Tier) -> int:
        """Return how many of the pieces are left."""
        while num_pieces:
            added, removed = changes.take(PIECE)
            if not added and not removed:
                break
            num_pieces -= 1
            await self._store.publish_prefix(self._record.key, added, removed, tier)
        return num_pieces

    def _described(self) -> WorkerRecord:
        return replace(
            self._record,
            disk=self._describe(Tier.DISK),
            host=self._describe(Tier.HOST),
            link=None if self._describe_links is None else self._describe_links(),
            lora=None if self._describe_lora is None else self._describe_lora(),
        )

    def _describe(self, tier: Tier) -> TierRecord | None:
        announced = self._tiers.get(tier)
        return None if announced is None else announced.describe()

    def _announce_all_again(self) -> None:
        self.prefixes.announce_all_again()
        for announced in self._tiers.values():
            announced.changes.announce_all_again()


def check_fleet(own: WorkerRecord, fleet: Iterable[WorkerRecord]) -> None:
    """Refuse to join workers whose KV differs; an earlier process of this worker does not count.

    So are workers refused that have another adapter under the same name.
    """
    for other in fleet:
        if other.worker_id == own.worker_id:
            continue
        for field, has, others in (
            (
                "--model (its commit on the hub)",
                _describe_commit(own.model_commit),
                _describe_commit(other.model_commit),
            ),
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


def _describe_commit(commit: str) -> str:
    return commit or "none, since it is a folder"


def _describe_digest(digest: str) -> str:
    return f"on, with logits {digest}" if digest else "off"
