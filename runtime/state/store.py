"""The operations on the fleet's shared state: living workers, the queue, grants, credits and leases.

Every operation is one Lua script: atomic, and idempotent by id, except for what adds up (charges, budgets and
demand). Redis keeps a copy for the fleet; workers decide about their memory. None is on the token path.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Container, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Self

from runtime.state import keys
from runtime.state.access import UNENCRYPTED, RedisAccess
from runtime.state.announcements import starting_of, text_of, worker_of
from runtime.state.connection import Connection
from runtime.state.errors import QueueFull
from runtime.state.prefix_walk import PrefixWalk
from runtime.state.records import (
    LEASE_TTL_S,
    MOST_PASSED,
    PREFIX_TTL_MS,
    START_TTL_MS,
    Cancelled,
    DecodeRoom,
    Grant,
    Hold,
    Leading,
    LostHolds,
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
from scheduling.admission.budgets import (
    CALLS_AFTER_END,
    ENDED_RECEIPT_S,
    RECEIPT_CALLS,
    RECEIPT_S,
    Budget,
    Levels,
    Payer,
    Taken,
)
from scheduling.admission.shares import Standing, check_charge
from scheduling.memory.tiers import Tier
from scheduling.scaling.demand import NUM_SLOTS, SLOT_S, Slot, last_slots

CONNECT_TIMEOUT_S = 5.0
PREFIX_LOOKUPS = 1024
"""Blocks of a prompt looked up in one message, over all workers together."""
MIN_LOOKUPS_PER_WORKER = 16
SETS_AT_ONCE = 64
"""Sets of blocks that one script looks into: between scripts, Redis serves others."""
LEDGERS_AT_ONCE = 32
"""One after the other, those of many workers would not be entered within `connection.QUIET_MS`."""
NO_TIERS: Mapping[Tier, Container[str]] = {}
"""No worker has blocks outside of its pool."""

_Row = tuple[str, *tuple[str | int, ...]]
"""A worker key, and the script's arguments for its ledger."""
_Call = tuple[str, list[str], list[str | int]]
"""A worker key, and the script's keys and arguments for its ledger."""


class Store:
    """A connection to the fleet's Redis; every method may raise `StoreUnavailable`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._run = connection.run
        self.read_clock_s = connection.read_clock_s
        self._seen_at: dict[str, float] = {}
        """When each router was last seen, by id, on the event loop's clock."""

    @classmethod
    async def connect(
        cls, url: str, timeout_s: float = CONNECT_TIMEOUT_S, access: RedisAccess = UNENCRYPTED
    ) -> Self:
        """Wait at most `timeout_s` for Redis to respond; refused credentials end the wait at once."""
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
        """Set what to call when Redis has lost what this process entered."""
        self._connection.on_new_epoch = call

    # Registry

    async def register_worker(self, record: WorkerRecord, ttl_s: float) -> None:
        """Announce a worker. It counts as gone unless it is announced again within `ttl_s`."""
        await self._announce(keys.workers(), record, round(ttl_s * 1000))

    async def unregister_worker(self, worker_id: str, incarnation: str) -> None:
        """Remove the announcement; a younger process of the worker keeps its own."""
        await self._withdraw(keys.workers(), worker_id, incarnation)

    async def list_workers(self) -> list[WorkerRecord]:
        """Return every worker whose announcement has not expired, by id."""
        found = await self._run("list_workers", keys.workers(), [])
        return sorted(map(worker_of, found), key=lambda record: record.worker_id)

    async def announce_start(self, record: StartingRecord) -> None:
        """Announce a starting worker and its progress; an announcement that is not renewed expires."""
        await self._announce(keys.starting(), record, START_TTL_MS)

    async def withdraw_start(self, record: StartingRecord) -> None:
        """Remove the announcement of a start that is over; a younger process of the worker keeps its own."""
        await self._withdraw(keys.starting(), record.worker_id, record.incarnation)

    async def _announce(
        self, where: Sequence[str], record: WorkerRecord | StartingRecord, ttl_ms: int
    ) -> None:
        args: list[str | int] = [record.worker_id, text_of(record), ttl_ms]
        await self._run("register_worker", [*where, *_directories(record.key)], args)

    async def _withdraw(self, where: Sequence[str], worker_id: str, incarnation: str) -> None:
        script_keys = [*where, *_directories(f"{worker_id}:{incarnation}")]
        await self._run("unregister_worker", script_keys, [worker_id, incarnation])

    async def list_starting(self) -> list[Starting]:
        """Return every worker that is starting, by id."""
        found = await self._run("list_starting", keys.starting(), [])
        workers = [
            Starting(starting_of(text), max(0, START_TTL_MS - left_ms) / 1000)
            for text, left_ms in zip(found[::2], found[1::2], strict=True)
        ]
        return sorted(workers, key=lambda worker: worker.record.worker_id)

    async def watch_routers(self, caller: str) -> None:
        """See which routers there are, as router `caller`; to be called each second.

        Should Redis forget what they hold, nothing is granted until those that were seen have entered it
        again, or `LEASE_TTL_S` is over.
        """
        found: list[str] = await self._run("list_routers", [], [keys.router_channel("")])
        now = asyncio.get_running_loop().time()
        self._seen_at |= dict.fromkeys(found, now)
        self._seen_at = {name: at for name, at in self._seen_at.items() if now - at < LEASE_TTL_S}
        self._connection.router = caller
        self._connection.peers = self._seen_at.keys() - {caller}

    # Queue

    async def enqueue(self, entry: QueueEntry, capacity: int) -> QueuePlace:
        """Put a request in its place. Raise `QueueFull` if `capacity` others wait.

        A request that is enqueued again in its class only moves forward, and keeps its grant if it has one.
        The returned work ahead is exact.
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
                entry.adapter,
                entry.seats,
                entry.share,
                int(not entry.takes_turns),
            ],
        )
        if position < 0:
            raise QueueFull(capacity)
        return QueuePlace(position, ahead)

    async def dequeue(self, request_key: str) -> bool:
        """Remove a waiting or granted request. Return False if it was neither."""
        return bool(await self._run("dequeue", keys.line(), [request_key]))

    async def queue_status(self) -> QueueStatus:
        """Return how many requests wait, and the work of these and of the granted ones."""
        waiting, tokens = await self._run("queue_status", keys.line(), [])
        return QueueStatus(waiting, tokens)

    # Tenants' shares

    async def charge_tenant(
        self, tenant: str, tokens: float, lead: float, band: float = math.inf, request: str = ""
    ) -> Standing:
        """Charge a request's virtual tokens to its tenant, unless the tenant leads by more than `lead`.

        A request with a name is charged once within `CHARGED_MS`, whichever routers ask how often.
        """
        check_charge(tokens, lead, band)
        counter, least, others, is_over = await self._run(
            "charge_tenant",
            _shares_and(request),
            [tenant, *(repr(float(number)) for number in (tokens, lead, band))],
        )
        return Standing(float(counter), float(least) if least else None, others, bool(is_over))

    async def refund_tenant(self, tenant: str, tokens: float, request: str = "") -> None:
        """Undo the charge of a request that was not admitted in the end; once, if it has a name."""
        check_charge(tokens)
        await self._run("refund_tenant", _shares_and(request), [tenant, repr(float(tokens))])

    # Tenants' budgets

    async def take_budget(
        self, tenant: str, budget: Budget, requests: int, tokens: int, payer: Payer | None = None
    ) -> Taken:
        """Take from both of a tenant's buckets, or from neither; from a payer what its request has not paid.

        Without a payer this is not idempotent.
        """
        args: list[str | int] = []
        for rate, cost in ((budget.requests, requests), (budget.tokens, tokens)):
            args += ["", "", cost] if rate is None else [repr(rate.per_s), repr(rate.burst), cost]
        if payer is not None:
            # Whoever is only let in pays nothing that is worth an hour of memory.
            args += [payer.call, RECEIPT_CALLS, 1000 * (ENDED_RECEIPT_S if requests else RECEIPT_S)]
        wait_ms, at_ms, *left, own = await self._run("take_budget", _budget_keys(tenant, payer), args)
        return Taken(wait_ms, Levels(float(left[0]), float(left[1]), at_ms), own)

    async def return_budget(
        self, tenant: str, tokens: int, payer: Payer | None = None, *, is_refused: bool = False
    ) -> None:
        """Return tokens that were taken and not needed.

        A payer's request has ended and needed so many fewer than it could; or its call was refused, and gets
        back what itself has paid, if that was taken at all.
        """
        args: list[str | int] = [tokens]
        if payer is not None:
            call, calls_made = payer.call if is_refused else "", RECEIPT_CALLS - CALLS_AFTER_END
            args += [call, ENDED_RECEIPT_S * 1000, calls_made]
        await self._run("return_budget", _budget_keys(tenant, payer), args)

    # Demand

    async def add_demand(self, asked: Slot) -> None:
        """Add requests to the present slot. Not idempotent, like `charge_tenant`."""
        args: list[str | int] = [round(SLOT_S * 1000), NUM_SLOTS, *map(repr, asked.row)]
        await self._run("add_demand", [keys.demand()], args)

    async def demand(self) -> list[Slot]:
        """Return the last slots of all routers, oldest first, without the present one, which is not over."""
        present, *rows = await self._run("demand", [keys.demand()], [round(SLOT_S * 1000)])
        return last_slots(int(present), rows)

    # Grants, credits and leases

    async def grant(self, caller: str, worker: PrefillRoom, decoders: Sequence[DecodeRoom]) -> list[Grant]:
        """Grant the worker's free capacity to the head of the queue while some decode worker has room.

        Requests whose adapter the worker does not have are passed, as far as they are near the head. The
        grant holds that room until it is settled or expires. Returns the grants of `caller`'s own
        sessions; other routers receive theirs as notices. A router without a subscriber gets no grants, and
        its request leaves the queue.
        """
        rooms = [
            part
            for room in decoders
            for part in (room.key, room.num_blocks, room.max_seqs, " ".join(room.adapters))
        ]
        granted: list[str] = await self._run(
            "grant",
            [*keys.line(), keys.credits_of(worker.key), *(keys.leases_of(room.key) for room in decoders)],
            [
                worker.key,
                worker.limit_tokens,
                worker.max_grants,
                caller,
                keys.router_channel(""),
                " ".join(worker.adapters),
                MOST_PASSED,
                worker.min_prompts,
                *rooms,
            ],
        )
        pairs = zip(granted[::2], granted[1::2], strict=True)
        return [Grant(request_key, caller, worker.key, decode_key) for request_key, decode_key in pairs]

    async def settle(
        self, request_key: str, prefill_key: str, decoders: Sequence[DecodeRoom], ttl_s: float
    ) -> Settlement:
        """Turn a grant into a lease of the entry's blocks on the first of `decoders` with room.

        `decoders` must include the worker on which the grant holds room: all other holds are released. A
        repeated call returns the same.
        """
        rooms = [number for room in decoders for number in (room.num_blocks, room.max_seqs)]
        outcome, *taken = await self._run(
            "settle",
            [*keys.line(), keys.credits_of(prefill_key), *(keys.leases_of(room.key) for room in decoders)],
            [request_key, prefill_key, round(ttl_s * 1000), *rooms],
        )
        return Settlement(Settled(outcome), *(decoders[number - 1].key for number in taken))

    async def lease_at_once(
        self, entry: QueueEntry, worker: PrefillRoom, decoder: DecodeRoom, ttl_s: float
    ) -> bool:
        """Lease a newcomer's blocks without a place in the queue, if nothing waits there and both have room.

        Return True if it holds what a settled grant holds, else False; then it holds nothing.
        """
        held = await self._run(
            "lease_at_once",
            [*keys.line(), keys.credits_of(worker.key), keys.leases_of(decoder.key)],
            [
                entry.request_key,
                entry.router_id,
                entry.work_tokens,
                entry.blocks,
                entry.seats,
                entry.share,
                worker.limit_tokens,
                worker.min_prompts,
                decoder.num_blocks,
                decoder.max_seqs,
                round(ttl_s * 1000),
            ],
        )
        return bool(held)

    async def release_credit(self, request_key: str, prefill_key: str) -> bool:
        """Release the credit of a computed prompt or an ended attempt. Return False if there was none."""
        script_keys = [keys.credits_of(prefill_key), keys.queue()]
        return bool(await self._run("release_credit", script_keys, [request_key, keys.nudge_channel()]))

    async def release_lease(self, request_key: str, decode_key: str) -> bool:
        """Release the lease of a request that has ended there. Return False if there was none."""
        script_keys = [*keys.line(), keys.leases_of(decode_key)]
        return bool(await self._run("release_lease", script_keys, [request_key, keys.nudge_channel()]))

    async def renew(
        self,
        credits_held: Iterable[tuple[str, str]],
        leases_held: Iterable[tuple[str, str]],
        ttl_s: float,
    ) -> LostHolds:
        """Keep credits and leases, each `(request_key, worker_key)`, from expiring; return those not held."""
        credit_rows = ((worker_key, request_key) for request_key, worker_key in credits_held)
        lease_rows = ((worker_key, request_key) for request_key, worker_key in leases_held)
        ttl_ms = round(ttl_s * 1000)
        credit_calls = _for_ledgers(keys.credits_of, credit_rows, (), (ttl_ms,))
        lease_calls = _for_ledgers(keys.leases_of, lease_rows, (keys.seat_expiries(),), (ttl_ms,))
        answers = await self._run_all("renew", credit_calls + lease_calls)
        num_credits = len(credit_calls)
        return LostHolds(
            _missing(credit_calls, answers[:num_credits]), _missing(lease_calls, answers[num_credits:])
        )

    async def take_holds(
        self, credits_held: Iterable[Hold], leases_held: Iterable[Hold], ttl_s: float
    ) -> None:
        """Enter holds again that a restarted Redis may have lost. Existing holds stay as they are."""
        credit_rows, lease_rows = (
            ((hold.worker_key, hold.request_key, hold.amount, hold.seats, hold.share) for hold in holds)
            for holds in (credits_held, leases_held)
        )
        ttl_ms = round(ttl_s * 1000)
        calls = _for_ledgers(keys.credits_of, credit_rows, keys.line(), (ttl_ms, 0))
        calls += _for_ledgers(keys.leases_of, lease_rows, keys.line(), (ttl_ms, 1))
        await self._run_all("take_holds", calls)

    async def _run_all(self, script: str, calls: Sequence[_Call]) -> list[Any]:
        """Run a script for each ledger; return the answers in order."""
        answers: list[Any] = []
        for at in range(0, len(calls), LEDGERS_AT_ONCE):
            part = calls[at : at + LEDGERS_AT_ONCE]
            answers += await asyncio.gather(*(self._run(script, names, args) for _, names, args in part))
        return answers

    async def leases(self, worker_key: str) -> dict[str, int]:
        """Return the blocks leased on a decode worker, by request."""
        return await self._amounts(keys.leases_of(worker_key))

    async def credits(self, worker_key: str) -> dict[str, int]:
        """Return the prompt tokens bound to a worker, by request."""
        return await self._amounts(keys.credits_of(worker_key))

    async def _amounts(self, key: str) -> dict[str, int]:
        found = iter(await self._run("amounts", [key], []))
        return dict(zip(found, found, strict=True))

    # Prefix directory

    async def publish_prefix(
        self, worker_key: str, added: Sequence[bytes], removed: Sequence[bytes], tier: Tier = Tier.POOL
    ) -> None:
        """Publish which blocks a tier of a worker has gained and lost."""
        key = keys.prefixes_of(worker_key, tier)
        with self._connection.client() as redis:
            async with redis.pipeline(transaction=True) as pipeline:
                if removed:
                    pipeline.srem(key, *(block_hash.hex() for block_hash in removed))
                if added:
                    pipeline.sadd(key, *(block_hash.hex() for block_hash in added))
                pipeline.pexpire(key, PREFIX_TTL_MS)
                await pipeline.execute()

    async def lookup_prefix(
        self,
        worker_keys: Sequence[str],
        hashes: Iterable[bytes],
        tiers: Mapping[Tier, Container[str]] = NO_TIERS,
    ) -> dict[str, Leading]:
        """Return how many leading blocks of a prompt each worker has; `tiers` names the workers with each.

        Looks the blocks up in pieces, each only for the workers that have all earlier pieces: a long prompt
        in a large fleet would block the event loop and Redis otherwise. Consumes only as many of `hashes` as
        it looks up.
        """
        walks = {
            key: PrefixWalk(tuple(tier for tier, having in tiers.items() if key in having))
            for key in worker_keys
        }
        candidates, rest = dict(walks), iter(hashes)
        while candidates:
            num_lookups = max(MIN_LOOKUPS_PER_WORKER, PREFIX_LOOKUPS // len(candidates))
            members = [block_hash.hex() for block_hash in islice(rest, num_lookups)]
            if not members:
                break
            await self._walk(candidates, members)
            candidates = {key: walk for key, walk in candidates.items() if walk.goes_on}
        return {key: walk.found for key, walk in walks.items()}

    async def _walk(self, walks: Mapping[str, PrefixWalk], members: list[str]) -> None:
        """Look up the next blocks of some workers, all at once."""
        sets = [keys.prefixes_of(key, tier) for key, walk in walks.items() for tier in walk.asks]
        parts = (sets[at : at + SETS_AT_ONCE] for at in range(0, len(sets), SETS_AT_ONCE))
        found = await asyncio.gather(*(self._run("find_prefix", part, members) for part in parts))
        rows = iter([is_there == "1" for is_there in text] for texts in found for text in texts)
        for walk in walks.values():
            walk.take({tier: next(rows) for tier in walk.asks}, len(members))

    # Notices

    async def publish_cancel(self, caller: str, tenant: str, request_id: str) -> None:
        """Let all other routers end a generation."""
        with self._connection.client() as redis:
            await redis.publish(keys.cancel_channel(), json.dumps([caller, tenant, request_id]))

    async def notices(self, caller: str) -> AsyncGenerator[Notice, None]:
        """Yield what others grant to this router or ask it to end, and a `Nudge` when capacity is released.

        Opens a lost connection again, and yields one `Nudge` for what was published meanwhile.
        """
        nudges, cancels = keys.nudge_channel(), keys.cancel_channel()
        async for message in self._connection.messages([keys.router_channel(caller), nudges, cancels]):
            if message is None or message[0] == nudges:
                yield Nudge()
            elif message[0] == cancels:
                asked, tenant, request_id = json.loads(message[1])
                if asked != caller:
                    yield Cancelled(tenant, request_id)
            else:
                worker_key, decode_key, request_key = message[1].split(" ", 2)
                yield Grant(request_key, caller, worker_key, decode_key)


def _for_ledgers(
    ledger_of: Callable[[str], str],
    rows: Iterable[_Row],
    first_keys: Iterable[str],
    first_args: Iterable[int],
) -> list[_Call]:
    """Return a call for each ledger, which is its last key, with all rows of its worker as arguments."""
    found: dict[str, list[str | int]] = {}
    for worker_key, *row in rows:
        args = found.setdefault(worker_key, [*first_args])
        args += row
    return [(worker_key, [*first_keys, ledger_of(worker_key)], args) for worker_key, args in found.items()]


def _missing(calls: Sequence[_Call], answers: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """Return `(request_key, worker_key)` of what the ledgers did not hold, in order."""
    answered = zip(calls, answers, strict=True)
    return tuple(sorted((request_key, call[0]) for call, missing in answered for request_key in missing))


def _directories(worker_key: str) -> list[str]:
    """Return the keys of the prefix directory that belong to one worker."""
    return [keys.prefixes_of(worker_key, tier) for tier in Tier]


def _shares_and(request: str) -> list[str]:
    """Return the keys of the tenants' counters, and that of a request's charge if it has a name."""
    return [*keys.shares(), keys.charge_of(request)] if request else keys.shares()


def _budget_keys(tenant: str, payer: Payer | None) -> list[str]:
    """Return the keys of a tenant's budget, and of a payer's receipt."""
    own = [keys.budget_of(tenant)]
    return own if payer is None else [*own, keys.receipt_of(tenant, payer.request)]
