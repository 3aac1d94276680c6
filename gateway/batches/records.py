"""Batches in Redis: what is known of each, its lease, and the results of its lines."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from pydantic import BaseModel, Json

from gateway.batches.files import (
    EXPIRIES,
    STORED,
    StoredFile,
    StoreLimits,
    file_key,
    flat,
    hash_at,
    lists_of,
    new_id,
    page_of,
    pieces_key,
)
from gateway.serving.errors import invalid, no_such
from runtime.state import keys
from runtime.state.durable import DurableRedis

LEASE_MS = 6000
"""A batch whose gateway is silent for this long is taken over, while its generations still run."""
KEPT_S = 30 * 86400
"""How long a batch that has ended can be looked up."""
MAX_KEPT = 1000
"""Batches of a tenant that are kept."""


class Status(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class Recorded(IntEnum):
    """The outcome of recording results, as the script returns it."""

    DONE = 1
    LEASE_LOST = 0
    NO_ROOM = -1


class Ended(IntEnum):
    """The outcome of ending a batch, as the script returns it."""

    DONE = 1
    LEASE_LOST = 0
    LINES_MISSING = -1


class Batch(BaseModel, frozen=True):
    """A batch, read from its hash.

    `about` has what its creator said: endpoint, input_file_id, completion_window, metadata.
    `results` and `errors` are the ids of the files for them, which exist once a line has been recorded.
    """

    id: str
    tenant: str
    status: Status
    about: Json[dict[str, Any]]
    results: str
    errors: str
    output_ttl_s: int
    total: int
    completed: int
    failed: int
    fields: Mapping[str, str]

    @property
    def input_file_id(self) -> str:
        return str(self.about["input_file_id"])

    def to_json(self) -> dict[str, Any]:
        fields = self.fields
        times = ("created", "in_progress", "expires", "finalizing", "completed", "failed", "expired",
                 "cancelling", "cancelled")  # fmt: skip
        return {
            "id": self.id,
            "object": "batch",
            **self.about,
            "status": self.status.value,
            "errors": json.loads(fields.get("problems", "null")),
            "output_file_id": fields.get("output_file_id"),
            "error_file_id": fields.get("error_file_id"),
            **{f"{name}_at": int(fields[key]) if (key := f"{name}_at") in fields else None for name in times},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
        }


def batch_key(batch_id: str) -> str:
    """hash: the fields of `Batch`, when each status began, and the fence of the lease."""
    return keys.durable("batch", batch_id)


def done_key(batch_id: str) -> str:
    """bitmap: the lines that have a result, by line number from 0."""
    return keys.durable("done", batch_id)


def index_of(tenant: str) -> str:
    """zset: ids of a tenant's batches."""
    return keys.durable("batches", tenant)


RUNNABLE = keys.durable("runnable")
"""zset: ids of batches that have not ended, scored by when a gateway may take each, in ms."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run a batch, as long as it is renewed."""

    batch: Batch
    fence: int


class BatchStore:
    """The batches of all tenants; every method may raise `StoreUnavailable`."""

    def __init__(self, redis: DurableRedis, limits: StoreLimits) -> None:
        self._redis = redis
        self._limits = limits

    async def create(
        self,
        tenant: str,
        file: StoredFile,
        about: Mapping[str, Any],
        window_s: int,
        output_ttl_s: int,
        problems: Sequence[Mapping[str, Any]],
    ) -> Batch:
        """Enter a batch, which has failed if it has problems.

        Raises `ApiError` if its input is gone, or if the tenant has too many batches that have not ended.
        """
        await self._forget_oldest(tenant)
        batch_id = new_id("batch_")
        fields: dict[str, str | int] = {
            "tenant": tenant,
            "about": json.dumps(about),
            "total": file.lines,
            "results": new_id("file-"),
            "errors": new_id("file-"),
            "output_ttl_s": output_ttl_s,
        }
        if problems:
            fields["problems"] = json.dumps({"object": "list", "data": problems})
        status = Status.FAILED if problems else Status.VALIDATING
        created = await self._redis.run(
            "create_batch",
            [batch_key(batch_id), index_of(tenant), RUNNABLE, file_key(file.id), EXPIRIES],
            [batch_id, window_s, KEPT_S * 1000, status, *flat(fields)],
        )
        if not created:
            raise no_such("file", file.id)
        return await self.find(batch_id, tenant)

    async def find(self, batch_id: str, tenant: str) -> Batch:
        """Return a tenant's batch. Raises `ApiError` if it has none of this id."""
        batch = await self._read(batch_id)
        if batch is None or batch.tenant != tenant:
            raise no_such("batch", batch_id)
        return batch

    async def _read(self, batch_id: str) -> Batch | None:
        fields = await hash_at(self._redis, batch_key(batch_id))
        return _batch_of({"id": batch_id, **fields}) if fields else None

    async def page(self, tenant: str, after: str, limit: int) -> tuple[list[Batch], bool]:
        """Return a page of a tenant's batches, newest first, and whether more follow."""
        rows, has_more = await page_of(self._redis, index_of(tenant), batch_key, after, limit)
        return list(map(_batch_of, rows)), has_more

    async def cancel(self, batch_id: str) -> bool:
        """Ask for a batch's end. Return False if it has ended or is being ended."""
        running = (Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING)
        return await self._move(batch_id, Status.CANCELLING, "", *running)

    async def finalize(self, lease: Lease) -> bool:
        """Say that all lines have a result. Return False if the batch is being cancelled."""
        return await self._move(lease.batch.id, Status.FINALIZING, lease.fence, Status.IN_PROGRESS)

    async def _move(self, batch_id: str, status: Status, fence: int | str, *before: Status) -> bool:
        """Set the status if it is one of those before, and the fence is the lease's or empty."""
        return bool(await self._redis.run("move_batch", [batch_key(batch_id)], [status, fence, *before]))

    async def take(self) -> Lease | None:
        """Take the batch that has waited longest for a gateway; None if none waits."""
        found = await self._redis.run("list_due", [RUNNABLE], [1, 2 * LEASE_MS])
        if not found:
            return None
        batch_id = found[0].decode()
        fence = await self._redis.run("take_batch", [RUNNABLE, batch_key(batch_id)], [batch_id, LEASE_MS])
        batch = await self._read(batch_id) if fence else None
        return None if batch is None else Lease(batch, fence)

    async def renew(self, lease: Lease, ttl_ms: int = LEASE_MS) -> tuple[Status, int] | None:
        """Keep the lease. Return the batch's status and the seconds left; None if the lease is lost."""
        batch_id = lease.batch.id
        own = [RUNNABLE, batch_key(batch_id)]
        found = await self._redis.run("renew_batch", own, [batch_id, lease.fence, ttl_ms])
        return (Status(found[0].decode()), int(found[1])) if found else None

    async def give_back(self, lease: Lease) -> None:
        """Let another gateway take the batch at once."""
        await self.renew(lease, ttl_ms=0)

    async def done(self, batch_id: str) -> bytes:
        """Return the bitmap of lines that have a result."""
        with self._redis.client() as redis:
            found: bytes | None = await redis.get(done_key(batch_id))
        return found or b""

    async def record(
        self, lease: Lease, results: Mapping[int, bytes], *, failed: bool, needs_room: bool = True
    ) -> Recorded:
        """Record the results of lines, by number from 0; a line that has one keeps it."""
        batch, limits = lease.batch, self._limits
        most = (limits.max_tenant_bytes, limits.max_stored_bytes) if needs_room else (math.inf, math.inf)
        file_id = batch.errors if failed else batch.results
        lines: list[int | bytes] = []
        for number, line in results.items():
            lines += [number, len(line), zlib.compress(line)]
        code = await self._redis.run(
            "record_lines",
            [batch_key(batch.id), done_key(batch.id), file_key(file_id), pieces_key(file_id), STORED],
            [lease.fence, "failed" if failed else "completed", batch.tenant, *most, *lines],
        )
        return Recorded(code)

    async def end(self, lease: Lease, status: Status) -> Ended:
        """End the batch and publish its results, if every line has one."""
        batch = lease.batch
        script_keys = [
            batch_key(batch.id),
            done_key(batch.id),
            RUNNABLE,
            file_key(batch.input_file_id),
            EXPIRIES,
            *lists_of(batch.tenant, "batch_output"),
            file_key(batch.results),
            file_key(batch.errors),
        ]
        names = (batch.results, f"{batch.id}_output.jsonl", batch.errors, f"{batch.id}_error.jsonl")
        args: list[str | int] = [batch.id, lease.fence, status, batch.output_ttl_s, KEPT_S, *names]
        code = await self._redis.run("end_batch", script_keys, [*args, batch.tenant])
        return Ended(code)

    async def _forget_oldest(self, tenant: str) -> None:
        """Make room for one more batch of the tenant."""
        with self._redis.client() as redis:
            if await redis.zcard(index_of(tenant)) < MAX_KEPT:
                return
            ids = [member.decode() for member in await redis.zrange(index_of(tenant), 0, -1)]
            async with redis.pipeline(transaction=False) as pipeline:
                for batch_id in ids:
                    pipeline.zscore(RUNNABLE, batch_id)
                scores = await pipeline.execute()
        ended = [batch_id for batch_id, score in zip(ids, scores, strict=True) if score is None]
        if not ended:
            message = f"{len(ids)} batches have not ended; accepted: fewer than {MAX_KEPT} of a tenant"
            raise invalid("", message, status=429, code="too_many_batches")
        await self.forget(ended[0])

    async def forget(self, batch_id: str) -> None:
        """Remove a batch that ended long ago."""
        batch = await self._read(batch_id)
        with self._redis.client() as redis:
            if batch is not None:
                await redis.zrem(index_of(batch.tenant), batch_id)
            await redis.unlink(batch_key(batch_id))
            await redis.zrem(EXPIRIES, batch_id)


def _batch_of(fields: Mapping[str, str]) -> Batch:
    return Batch.model_validate({**fields, "fields": fields})
