"""Files in Redis: what is known of each, and its content in compressed pieces."""

from __future__ import annotations

import contextlib
import secrets
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pydantic import BaseModel, Json

from gateway.serving.errors import ApiError, Problem, invalid, no_such, unavailable
from runtime.state import keys
from runtime.state.durable import DurableRedis

FORM_BYTES = 65_536
"""The most that a form may hold beside its file."""
PIECES_A_READ = 16
MAX_PAGE = 1000
UPLOAD_TTL_S = 600
"""A file whose upload breaks off is gone after this."""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The most that files may take, in bytes of their content, and how long they are kept.

    `max_spooled_bytes` is what all files that arrive may take on this gateway's disk.
    """

    max_file_bytes: int
    max_tenant_bytes: int
    max_stored_bytes: int
    max_spooled_bytes: int
    file_ttl_s: int


class StoredFile(BaseModel, frozen=True):
    """A file, read from its hash. `urls` has the first line of each endpoint that its requests name."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int
    lines: int = 0
    urls: Json[dict[str, int]] = {}
    models: Json[list[str]] = [""]

    def to_json(self) -> dict[str, Any]:
        shown = self.model_dump(exclude={"lines", "urls", "models"})
        return shown | {"object": "file", "status": "processed", "status_details": None}


def new_id(prefix: str) -> str:
    """Return an id that sorts by the time it was made."""
    return f"{prefix}{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def file_key(file_id: str) -> str:
    """hash: the fields of `StoredFile`, its tenant, is_ready, and its uses by batches that have not ended."""
    return keys.durable("file", file_id)


def pieces_key(file_id: str) -> str:
    """list: the content in pieces of whole lines, each compressed by zlib."""
    return keys.durable("pieces", file_id)


def lists_of(tenant: str, purpose: str) -> list[str]:
    """zsets: ids of a tenant's files, those of one purpose and all."""
    return [keys.durable("files", name, tenant) for name in (purpose, "")]


STORED = keys.durable("stored")
"""hash: bytes of all files, and of each tenant's."""
EXPIRIES = keys.durable("expiries")
"""zset: ids of files and batches, scored by when they are removed, in ms."""


class FileStore:
    """The files of all tenants; every method may raise `StoreUnavailable`."""

    def __init__(self, redis: DurableRedis, limits: StoreLimits) -> None:
        self.redis = redis
        self.limits = limits

    async def reserve(self, file_id: str, tenant: str, size: int, fields: Mapping[str, str]) -> None:
        """Reserve room for a file of this size. Raises `ApiError` if the stored files leave too little."""
        limits, ttl_ms = self.limits, UPLOAD_TTL_S * 1000
        stored = await self.redis.run(
            "reserve_file",
            [file_key(file_id), STORED, EXPIRIES],
            [file_id, tenant, size, limits.max_tenant_bytes, limits.max_stored_bytes, ttl_ms, *flat(fields)],
        )
        if stored:
            raise self._full(f"a file of {size} bytes", *stored)

    async def room(self, tenant: str) -> int:
        """Return how many bytes a tenant's next file may have now. Raises `ApiError` if that is none."""
        with self.redis.client() as redis:
            found = await redis.hmget(STORED, f"tenant:{tenant}", "all")
        own, all_files = (int(number or 0) for number in found)
        limits = self.limits
        left = min(limits.max_file_bytes, limits.max_tenant_bytes - own, limits.max_stored_bytes - all_files)
        if left <= 0:
            raise self._full("the file", own, all_files)
        return left

    def _full(self, file: str, own: int, all_files: int) -> ApiError:
        limits = self.limits
        message = (
            f"{file} has no room, in bytes: {own} of this tenant and {all_files} of all are stored; accepted "
            f"at most {limits.max_tenant_bytes} for a tenant and {limits.max_stored_bytes} for all. "
            "Delete files, or wait until some expire"
        )
        return invalid("file", message, status=413, code="too_large")

    async def append(self, file_id: str, place: int, lines: bytes) -> None:
        """Keep the next piece of a reserved file. Raises `ApiError` if the file has expired, or is torn."""
        own = [file_key(file_id), pieces_key(file_id)]
        _check_kept(await self.redis.run("append_piece", own, [place, zlib.compress(lines)]))

    async def publish(
        self, file_id: str, tenant: str, purpose: str, ttl_s: int, num_pieces: int, fields: Mapping[str, str]
    ) -> None:
        """Make a reserved file visible, with more of its fields.

        Raises `ApiError` if it has expired, or does not have all of its pieces.
        """
        published = await self.redis.run(
            "publish_file",
            [file_key(file_id), EXPIRIES, *lists_of(tenant, purpose), pieces_key(file_id)],
            [file_id, ttl_s, num_pieces, *flat(fields)],
        )
        _check_kept(published)

    async def find(self, file_id: str, tenant: str, field: str = "file_id") -> StoredFile:
        """Return a tenant's file. Raises `ApiError`, which names `field`, if it has none of this id."""
        fields = await hash_at(self.redis, file_key(file_id))
        if not fields.get("is_ready") or fields["tenant"] != tenant:
            raise no_such("file", file_id, field)
        return StoredFile.model_validate({"id": file_id, **fields})

    async def page(
        self, tenant: str, purpose: str, after: str, limit: int, *, newest_first: bool
    ) -> tuple[list[StoredFile], bool]:
        """Return a page of a tenant's files, and whether more follow."""
        index = lists_of(tenant, purpose)[0]
        rows, has_more = await page_of(self.redis, index, file_key, after, limit, newest_first=newest_first)
        return list(map(StoredFile.model_validate, rows)), has_more

    async def content(self, file_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the content in pieces of whole lines."""
        place = 0
        while pieces := await self.pieces(file_id, place):
            for piece in pieces:
                yield piece
            place += len(pieces)

    async def pieces(self, file_id: str, place: int) -> list[bytes]:
        """Return the next pieces of whole lines; none at the end."""
        with self.redis.client() as redis:
            found = await redis.lrange(pieces_key(file_id), place, place + PIECES_A_READ - 1)
        return [zlib.decompress(piece) for piece in found]

    async def remove_expired(self, file_id: str) -> None:
        """Remove a file of any tenant; later, if a batch uses it."""
        with self.redis.client() as redis:
            tenant, purpose = await redis.hmget(file_key(file_id), "tenant", "purpose")
        with contextlib.suppress(ApiError):
            await self.delete(file_id, (tenant or b"").decode(), (purpose or b"").decode())

    async def delete(self, file_id: str, tenant: str, purpose: str) -> None:
        """Remove a file; nothing happens if it is gone. Raises `ApiError` while a batch uses it."""
        deleted = await self.redis.run(
            "delete_file",
            [file_key(file_id), pieces_key(file_id), STORED, EXPIRIES, *lists_of(tenant, purpose)],
            [file_id, tenant],
        )
        if deleted < 0:
            message = f"file {file_id!r} is the input of a batch that has not ended; cancel the batch first"
            raise invalid("file_id", message, status=409, code="conflict")


async def hash_at(redis: DurableRedis, key: str) -> dict[str, str]:
    """Return the fields of a hash, which is empty if it does not exist."""
    with redis.client() as client:
        return _texts(await client.hgetall(key))


async def page_of(
    redis: DurableRedis,
    index: str,
    key_of: Callable[[str], str],
    after: str,
    limit: int,
    *,
    newest_first: bool = True,
) -> tuple[list[dict[str, str]], bool]:
    """Return up to `limit` hashes after an id of an index, with their ids, and whether more follow."""
    limit = min(limit, MAX_PAGE)
    with redis.client() as client:
        if newest_first:
            found = await client.zrevrangebylex(index, f"({after}" if after else "+", "-", 0, limit + 1)
        else:
            found = await client.zrangebylex(index, f"({after}" if after else "-", "+", 0, limit + 1)
        ids = [member.decode() for member in found[:limit]]
        async with client.pipeline(transaction=False) as pipeline:
            for name in ids:
                pipeline.hgetall(key_of(name))
            rows = await pipeline.execute()
    kept = [{"id": name, **_texts(row)} for name, row in zip(ids, rows, strict=True) if row]
    return kept, len(found) > limit


def flat(fields: Mapping[str, str | int]) -> Iterable[str | int]:
    """Return names and values in turn, as scripts take them."""
    return chain.from_iterable(fields.items())


def _texts(row: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in row.items()}


def _check_kept(code: int) -> None:
    """Raise `ApiError` unless a script has kept what it was given of an upload."""
    if code == 0:
        raise ApiError(Problem(408, "timeout_error", "the upload took too long", code="timeout"))
    if code < 0:
        raise unavailable("Redis, which keeps the files, has lost a part of the upload; send the file again")
