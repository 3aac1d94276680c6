"""The fleet's shared state: who lives, who waits, what is bound and what is leased.

Every operation is one Lua script, atomic and, but for tenants' charges, idempotent by id. Redis keeps a copy
for the fleet to agree on; the workers have the last word on memory, and nothing here is on the token path.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, ItemsView, Iterable, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Self

from scheduling.admission.budgets import Budget, Levels, Taken
from scheduling.admission.shares import Standing, check_charge
from state import keys
from state.access import IN_THE_CLEAR, RedisAccess
from state.connection import Connection
from state.errors import QueueFull
from state.records import (
    PREFIX_TTL_MS,
    START_TTL_MS,
    DecodeRoom,
    Grant,
    Granted,
    Hold,
    Notice,
    Nudge,
    PrefillRoom,
    QueueEntry,
    QueuePlace,
    QueueStatus,
    Settled,
    Settlement,
    Starting,
    StartingRecord,
    WorkerRecord,
)

CONNECT_TIMEOUT_S = 5.0
PREFIX_QUESTIONS = 1024
"""Blocks asked of all workers together in one message about a prompt's prefix."""
LEAST_PIECE = 16
"""Blocks asked of each, however many workers there are."""

_Row = tuple[str, *tuple[str | int, ...]]
"""A worker, and what is to be said of its ledger."""


class Store:
    """A connection to the fleet's Redis; every method may raise `StoreUnavailable`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._run = connection.run

    @classmethod
    async def connect(
        cls, url: str, timeout_s: float = CONNECT_TIMEOUT_S, access: RedisAccess = IN_THE_CLEAR
    ) -> Self:
        """Wait for Redis to answer, at most `timeout_s`; a refusal to let us in ends the wait."""
        connection = Connection(url, access)
        try:
            await connection.wait_until_ready(timeout_s)
        except BaseException:
            await connection.close()
            raise
        return cls(connection)

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    def on_new_epoch(self, call: Callable[[], None]) -> None:
        """`call` whenever Redis turns out to have forgotten what this process once entered."""
        self._connection.on_new_epoch = call

    # Registry

    async def register_worker(self, record: WorkerRecord, ttl_s: float) -> None:
        """Announce a worker; again before `ttl_s` is over, or it counts as gone."""
        await self._run(
            "register_worker",
            [keys.worker_expiries(), keys.worker_records(), keys.prefixes_of(record.key)],
            [record.worker_id, json.dumps(asdict(record)), round(ttl_s * 1000)],
        )

    async def unregister_worker(self, worker_id: str, incarnation: str) -> None:
        """Take the announcement back; that of a younger process of the same worker stays."""
        await self._run(
            "unregister_worker",
            [keys.worker_expiries(), keys.worker_records(), keys.prefixes_of(f"{worker_id}:{incarnation}")],
            [worker_id, incarnation],
        )

    async def list_workers(self) -> list[WorkerRecord]:
        """Every worker whose announcement is alive, by id."""
        found = await self._run("list_workers", [keys.worker_expiries(), keys.worker_records()], [])
        return sorted((WorkerRecord(**json.loads(one)) for one in found), key=lambda one: one.worker_id)

    async def announce_start(self, record: StartingRecord) -> None:
        """Announce a starting worker and its progress; an announcement that is not renewed expires."""
        await self._run(
            "register_worker",
            [keys.starting_expiries(), keys.starting_records(), keys.prefixes_of(record.key)],
            [record.worker_id, json.dumps(asdict(record)), START_TTL_MS],
        )

    async def withdraw_start(self, record: StartingRecord) -> None:
        """Remove the announcement of a start that is over; a younger process of the worker keeps its own."""
        await self._run(
            "unregister_worker",
            [keys.starting_expiries(), keys.starting_records(), keys.prefixes_of(record.key)],
            [record.worker_id, record.incarnation],
        )

    async def list_starting(self) -> list[Starting]:
        """Return every worker that is starting, by id."""
        found = await self._run("list_starting", [keys.starting_expiries(), keys.starting_records()], [])
        pairs = zip(found[::2], found[1::2], strict=True)
        starting = [
            Starting(StartingRecord(**json.loads(one)), max(0, START_TTL_MS - left_ms) / 1000)
            for one, left_ms in pairs
        ]
        return sorted(starting, key=lambda one: one.record.worker_id)

    # Queue

    async def enqueue(self, entry: QueueEntry, capacity: int) -> QueuePlace:
        """Put a request in its place. `QueueFull` when `capacity` others wait.

        Again in its class, it only moves forward, and a grant that is out stands. The work ahead is exact.
        """
        position, ahead = await self._run(
            "enqueue",
            keys.line(),
            [
                entry.request_key,
                entry.router_id,
                entry.slo_class,
                entry.due_in_ms,
                entry.work_tokens,
                entry.blocks,
                capacity,
            ],
        )
        if position < 0:
            raise QueueFull(capacity)
        return QueuePlace(position, ahead)

    async def dequeue(self, request_key: str) -> bool:
        """Take a request out, waiting or granted. False when it was neither."""
        return bool(await self._run("dequeue", keys.line(), [request_key]))

    async def queue_status(self) -> QueueStatus:
        """How many wait, and the work of these and of the granted."""
        waiting, tokens = await self._run("queue_status", keys.line(), [])
        return QueueStatus(waiting, tokens)

    # Tenants' shares

    async def charge_tenant(
        self, tenant: str, tokens: float, lead: float, band: float = math.inf
    ) -> Standing:
        """Charge a request's virtual tokens to its tenant, unless that is ahead by more than `lead`.

        Unlike all else here it is not idempotent: repeated after a lost answer, a request is charged twice.
        """
        check_charge(tokens, lead, band)
        counter, least, others, is_over = await self._run(
            "charge_tenant",
            keys.shares(),
            [tenant, *(repr(float(number)) for number in (tokens, lead, band))],
        )
        return Standing(float(counter), float(least) if least else None, others, bool(is_over))

    async def refund_tenant(self, tenant: str, tokens: float) -> None:
        """Take back the charge of a request that was not admitted in the end."""
        check_charge(tokens)
        await self._run("refund_tenant", keys.shares(), [tenant, repr(float(tokens))])

    # Tenants' budgets

    async def take_budget(self, tenant: str, budget: Budget, requests: int, tokens: int) -> Taken:
        """Take from a tenant's buckets, from both or from none. As `charge_tenant`, it is not idempotent."""
        args: list[str | int] = []
        for rate, cost in ((budget.requests, requests), (budget.tokens, tokens)):
            args += ["", "", cost] if rate is None else [repr(rate.per_s), repr(rate.burst), cost]
        wait_ms, at_ms, *left = await self._run("take_budget", [keys.budget_of(tenant)], args)
        return Taken(wait_ms, Levels(float(left[0]), float(left[1]), at_ms))

    async def return_budget(self, tenant: str, tokens: int) -> None:
        """Give back tokens that were taken and not needed."""
        await self._run("return_budget", [keys.budget_of(tenant)], [tokens])

    # Grants, credits and leases

    async def grant(self, caller: str, worker: PrefillRoom, decoders: Sequence[DecodeRoom]) -> list[Grant]:
        """Give the worker's free capacity to the heads of the queue that some decode worker has room for.

        Room is held there for as long as the grant is out. Returns the grants of `caller`'s own sessions;
        those of other routers reach them as notices. A router that nobody listens for gets none, and its
        request leaves the queue.
        """
        rooms = [part for room in decoders for part in (room.key, room.num_blocks, room.max_seqs)]
        granted: list[str] = await self._run(
            "grant",
            [*keys.line(), keys.credits_of(worker.key), *(keys.leases_of(room.key) for room in decoders)],
            [worker.key, worker.limit_tokens, worker.max_grants, caller, keys.router_channel(""), *rooms],
        )
        pairs = zip(granted[::2], granted[1::2], strict=True)
        return [Grant(request_key, caller, worker.key, decode_key) for request_key, decode_key in pairs]

    async def settle(
        self, request_key: str, prefill_key: str, decoders: Sequence[DecodeRoom], ttl_s: float
    ) -> Settlement:
        """Turn a grant into a lease of the entry's blocks on the first of `decoders` that has room.

        The one that the grant holds room on must be among them: nothing stays held on the others. Asked
        again, it answers the same.
        """
        rooms = [number for room in decoders for number in (room.num_blocks, room.max_seqs)]
        outcome, *taken = await self._run(
            "settle",
            [*keys.line(), keys.credits_of(prefill_key), *(keys.leases_of(room.key) for room in decoders)],
            [request_key, prefill_key, round(ttl_s * 1000), *rooms],
        )
        return Settlement(Settled(outcome), *(decoders[number - 1].key for number in taken))

    async def release_credit(self, request_key: str, prefill_key: str) -> bool:
        """The prompt is computed, or the attempt over. False when no credit was held."""
        return bool(
            await self._run("release", [keys.credits_of(prefill_key)], [request_key, keys.nudge_channel()])
        )

    async def release_lease(self, request_key: str, decode_key: str) -> bool:
        """The request has ended there. False when no lease was held."""
        return bool(
            await self._run("release", [keys.leases_of(decode_key)], [request_key, keys.nudge_channel()])
        )

    async def renew(
        self,
        credits_held: Iterable[tuple[str, str]],
        leases_held: Iterable[tuple[str, str]],
        ttl_s: float,
    ) -> None:
        """Keep `(request_key, worker_key)` credits and leases from expiring."""
        for key, words in _by_ledger(
            ((worker_key, request_key) for request_key, worker_key in credits_held),
            ((worker_key, request_key) for request_key, worker_key in leases_held),
        ):
            await self._run("renew", [key], [round(ttl_s * 1000), *words])

    async def take_holds(
        self, credits_held: Iterable[Hold], leases_held: Iterable[Hold], ttl_s: float
    ) -> None:
        """Enter again what a Redis that came back may have forgotten. What is held already stays as it is."""
        for key, words in _by_ledger(
            ((one.worker_key, one.request_key, one.amount) for one in credits_held),
            ((one.worker_key, one.request_key, one.amount) for one in leases_held),
        ):
            await self._run("take_holds", [key], [round(ttl_s * 1000), *words])

    async def leases(self, worker_key: str) -> dict[str, int]:
        """Blocks leased on a decode worker, by request."""
        return await self._amounts(keys.leases_of(worker_key))

    async def credits(self, worker_key: str) -> dict[str, int]:
        """Prompt tokens bound to a worker, by request."""
        return await self._amounts(keys.credits_of(worker_key))

    async def _amounts(self, key: str) -> dict[str, int]:
        found = iter(await self._run("amounts", [key], []))
        return dict(zip(found, found, strict=True))

    # Prefix directory

    async def publish_prefix(self, worker_key: str, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
        """Say which blocks a worker's prefix cache has gained and lost."""
        key = keys.prefixes_of(worker_key)
        with self._connection.answering() as redis:
            async with redis.pipeline(transaction=True) as pipeline:
                if removed:
                    pipeline.srem(key, *(one.hex() for one in removed))
                if added:
                    pipeline.sadd(key, *(one.hex() for one in added))
                pipeline.pexpire(key, PREFIX_TTL_MS)
                await pipeline.execute()

    async def lookup_prefix(self, worker_keys: Sequence[str], hashes: Iterable[bytes]) -> dict[str, int]:
        """Return how many leading blocks of a prompt each worker holds.

        Asks piece by piece, and only the workers that hold all before it: a long prompt in a large fleet
        would hold up the event loop and Redis otherwise. Takes from `hashes` only as many as it asks for.
        """
        found, left, rest = dict.fromkeys(worker_keys, 0), list(worker_keys), iter(hashes)
        while left:
            most = max(LEAST_PIECE, PREFIX_QUESTIONS // len(left))
            members = [one.hex() for one in islice(rest, most)]
            if not members:
                break
            counts = await self._leading(left, members)
            for worker_key, count in zip(left, counts, strict=True):
                found[worker_key] += count
            left = [key for key, count in zip(left, counts, strict=True) if count == len(members)]
        return found

    async def _leading(self, worker_keys: Sequence[str], members: list[str]) -> list[int]:
        """Return how many of the first of these blocks each worker holds."""
        with self._connection.answering() as redis:
            async with redis.pipeline(transaction=False) as pipeline:
                for worker_key in worker_keys:
                    pipeline.smismember(keys.prefixes_of(worker_key), members)
                answers = await pipeline.execute()
        return [next((i for i, held in enumerate(one) if not held), len(one)) for one in answers]

    # Notices

    async def notices(self, router_id: str) -> AsyncGenerator[Notice, None]:
        """Grants made for this router's sessions, and word of returned capacity, as they come.

        A lost connection is opened again; what was published meanwhile is made up for by one `Nudge`.
        """
        nudges = keys.nudge_channel()
        async for message in self._connection.messages([keys.router_channel(router_id), nudges]):
            if message is None or message[0] == nudges:
                yield Nudge()
            else:
                worker_key, decode_key, request_key = message[1].split(" ", 2)
                yield Granted(Grant(request_key, router_id, worker_key, decode_key))


def _by_ledger(credits_held: Iterable[_Row], leases_held: Iterable[_Row]) -> ItemsView[str, list[str | int]]:
    """All that is to be said of each ledger, at once."""
    words: defaultdict[str, list[str | int]] = defaultdict(list)
    for ledger_of, rows in ((keys.credits_of, credits_held), (keys.leases_of, leases_held)):
        for worker_key, *said in rows:
            words[ledger_of(worker_key)] += said
    return words.items()
