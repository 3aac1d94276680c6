"""Responses that outlive their request, in Redis: those of one tenant are never shown to another."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gateway.responses.items import Item
from runtime.settings import check_least
from runtime.state import keys
from runtime.state.durable import DurableRedis
from runtime.state.errors import StoreUnavailable

MAX_EXPANSION = 8
"""How many times `response_max_bytes` a response may have before compression, which takes time too."""
AWAY_S = 5.0
"""How long responses are made without Redis, if they can be, after it has failed."""
SECRET = keys.durable("response_secret")
"""string: 32 random bytes."""
SECRET_S = 60.0
"""How long a gateway takes a secret for the fleet's: Redis may lose it."""
_HEAD_BYTES = 33
"""The holder, and whether the response is final, before the compressed record."""


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """How long a response is kept, how large one may be, and how large all of them together.

    Raises `ValueError` naming the flag, its value and what it accepts.
    """

    response_ttl_s: float
    response_max_bytes: int
    responses_max_bytes: int

    def __post_init__(self) -> None:
        check_least(self, 1, "response_ttl_s", "response_max_bytes", "responses_max_bytes")


@dataclass(frozen=True, slots=True)
class Record:
    """A response with all that continuing it needs.

    earlier     the items of the responses before it
    input       its own input items
    request_id  its generation's
    digest      of the request that asked for it
    holder      names whoever makes the response: the same request may run twice at a time
    """

    response: dict[str, Any]
    earlier: list[Item]
    input: list[Item]
    request_id: str
    digest: str
    holder: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def conversation(self) -> list[Item]:
        """The items that the next response continues."""
        return [*self.earlier, *self.input, *self.response["output"]]

    @property
    def is_running(self) -> bool:
        return bool(self.response["status"] == "in_progress")

    @property
    def is_final(self) -> bool:
        """Whether the same request gets this response again."""
        return self.response["status"] in {"completed", "incomplete"}


class ResponseStore:
    """The responses of all tenants. Calls raise `StoreUnavailable`.

    When all of them together are over the limit, the tenant that holds most loses its oldest ones.
    """

    def __init__(self, redis: DurableRedis, limits: ResponseLimits) -> None:
        self._redis = redis
        self._limits = limits
        self._away_until = 0.0
        self._secret, self._secret_until = b"", 0.0

    @property
    def is_away(self) -> bool:
        """Whether Redis has just failed to respond. Do not wait for it again without need."""
        return time.monotonic() < self._away_until

    async def secret(self) -> bytes:
        """Return what the ids of responses are made with, the same for all gateways of this Redis."""
        if time.monotonic() > self._secret_until:
            with self._redis.client() as redis:
                await redis.set(SECRET, secrets.token_bytes(32), nx=True)
                self._secret = await redis.get(SECRET) or b""
            self._secret_until = time.monotonic() + SECRET_S
        return self._secret

    async def find(self, tenant: str, response_id: str) -> Record | None:
        """Return a response; None if the tenant does not have it, or no longer has it."""
        content = await self._run("find_response", _keys(tenant)[:2], [response_id])
        return None if content is None else await asyncio.to_thread(_decoded, content)

    async def keep(
        self, tenant: str, record: Record, ttl_s: float | None = None, *, takes: bool = False
    ) -> bool:
        """Keep a response in place of its holder's last one. Returns False if it is too large.

        What another holder has kept under its id is replaced only if it is not final, and this one is or
        `takes`. Else it stays, which returns True if both are final: they are the same response.
        """
        limits = self._limits
        content = await asyncio.to_thread(_encoded, record, MAX_EXPANSION * limits.response_max_bytes)
        if content is None or len(content) > min(limits.response_max_bytes, limits.responses_max_bytes):
            return False
        ttl_ms = round(1000 * min(limits.response_ttl_s, ttl_s or limits.response_ttl_s))
        args = [tenant, record.response["id"], content, ttl_ms, int(takes or record.is_final)]
        is_kept, total = await self._run("keep_response", _keys(tenant), args)
        while total > limits.responses_max_bytes:
            with self._redis.client() as redis:
                largest: Any = await redis.zrange(_keys(tenant)[2], -1, -1)
            if not largest:
                break  # others have just dropped theirs
            _, total = await self._drop(largest[0].decode())
        return bool(is_kept)

    async def drop(self, tenant: str, response_id: str, holder: str = "") -> bool:
        """Forget a response; with a holder, only if it is that holder's. Return whether there was one."""
        return (await self._drop(tenant, response_id, holder))[0] > 0

    async def _drop(self, tenant: str, response_id: str = "", holder: str = "") -> tuple[int, int]:
        """Forget one, or a tenant's oldest until all fit the limit. Return how many, and the bytes left."""
        args: list[str | int] = [tenant, response_id, self._limits.responses_max_bytes, holder]
        dropped, total = await self._run("drop_responses", _keys(tenant), args)
        return dropped, total

    async def _run(self, script: str, script_keys: list[str], args: Sequence[str | bytes | int]) -> Any:
        try:
            return await self._redis.run(script, script_keys, args)
        except StoreUnavailable:
            self._away_until = time.monotonic() + AWAY_S
            raise


# Megabytes take tens of milliseconds, in which streams would stand still.
def _encoded(record: Record, max_bytes: int) -> bytes | None:
    parts = {part.name: getattr(record, part.name) for part in fields(record)}
    plain = json.dumps(parts, separators=(",", ":")).encode()
    if len(plain) > max_bytes:
        return None
    head = f"{record.holder}{int(record.is_final)}".encode()  # the scripts read it
    return head + zlib.compress(plain, 1)


def _decoded(content: bytes) -> Record:
    return Record(**json.loads(zlib.decompress(content[_HEAD_BYTES:])))


def _keys(tenant: str) -> list[str]:
    """Return the keys in the order in which the scripts expect them."""
    own = [keys.durable(f"responses_{part}", tenant) for part in ("content", "times")]
    return own + [keys.durable(f"responses_{part}") for part in ("bytes", "tenants", "total")]
