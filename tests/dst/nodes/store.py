"""Redis, as one process: the simulator's store, its epochs, and the connections that lead to it.

A call that gets no response within a second has failed for its caller, and may be executed all the same, at
any later time: its connection is given up with the call still on it. The next call opens another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from runtime.state.connection import CALL_TIMEOUT_S, QUIET_MS, RECONNECT_S
from runtime.state.errors import QueueFull, StoreUnavailable
from runtime.state.records import (
    LEASE_TTL_S,
    DecodeRoom,
    Grant,
    Hold,
    LostHolds,
    Notice,
    PrefillRoom,
    QueueEntry,
    QueuePlace,
    QueueStatus,
    Settlement,
)
from scheduling.admission.shares import Standing
from sim.store.memory_store import MemoryStore
from tests.dst.world.network import Connection, Network
from tests.dst.world.process import Process

SUBSCRIBE_AGAIN_S = RECONNECT_S
DEAF_S = 2.0
"""A subscriber pings a silent connection after this long, and gives it up after as long again."""
_NONE_WHILE_QUIET: dict[str, object] = {"grant": [], "lease_at_once": False}
"""The calls that give nothing while routers have yet to enter what they hold, with what they return."""


@dataclass(slots=True)
class _Request:
    number: int
    epoch: int
    name: str
    call: Callable[[MemoryStore], Any]
    about: object
    """The call's subject, for a page that shows the run."""
    router_id: str = ""
    peers: tuple[str, ...] = ()
    """With `enter`: the router that enters, and which others it has seen."""


@dataclass
class StoreServer:
    """One process of Redis; what it holds is lost when it dies."""

    process: Process
    epoch: int
    store: MemoryStore = field(init=False)
    quiet_until: float = 0.0
    awaited: dict[str, float] = field(default_factory=dict)
    """Until when nothing is granted for want of each router that has yet to enter what it holds."""
    here: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.process.clock)

    def serve(self, connection: Connection) -> None:
        """Answer the calls of one connection, in order."""
        connection.listen(self.process, lambda request: self._answer(connection, request), _ignore)

    def _answer(self, connection: Connection, request: _Request) -> None:
        result: Any
        if request.name == "enter":
            if request.epoch not in (0, self.epoch):
                self._enter(request)
            result = ("entered", self.epoch)
        elif request.epoch != self.epoch:
            result = ("forgotten", None)
        elif request.name in _NONE_WHILE_QUIET and self.process.clock() < self.quiet_until:
            result = ("result", _NONE_WHILE_QUIET[request.name])
        else:
            try:
                result = ("result", request.call(self.store))
            except QueueFull as full:
                result = ("error", full)
        connection.send(self.process, (request.number, *result), f"{request.name} done")

    def _enter(self, request: _Request) -> None:
        """Wait for the routers that this one has seen and that are not here yet, as in enter.lua."""
        now = self.process.clock()
        for router_id in request.peers:
            if router_id not in self.here:
                self.awaited.setdefault(router_id, now + LEASE_TTL_S)
        if request.router_id:
            self.here.add(request.router_id)
            self.awaited.pop(request.router_id, None)
        self.quiet_until = max(now + QUIET_MS / 1000, *self.awaited.values(), 0.0)

    def subscribe(self, connection: Connection, router_id: str) -> None:
        """Send a router's notices over a connection until it breaks."""

        def hear(notice: Notice) -> None:
            connection.send(self.process, notice, type(notice).__name__)

        end = self.store.subscribe(router_id, hear)
        connection.listen(self.process, _ignore, lambda _: end())


def _ignore(_: Any) -> None:
    pass


def _set(event: asyncio.Event, _: str) -> None:
    event.set()


async def _wait(event: asyncio.Event, limit_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()


class StoreClient:
    """Implements what a router uses of `Store`, over the network. Runs on its process's loop."""

    def __init__(self, process: Process, network: Network, server: Callable[[], StoreServer | None]) -> None:
        self._process = process
        self._network = network
        self._router_id = ""
        self._seen_at: dict[str, float] = {}
        """When each router was seen last."""
        self._server = server
        self._connection: Connection | None = None
        self._epoch = 0
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._entering: asyncio.Future[None] | None = None
        self.on_new_epoch: Callable[[], None] = lambda: None

    # Calls

    async def _call(self, name: str, call: Callable[[MemoryStore], Any], about: object = None) -> Any:
        try:
            async with asyncio.timeout(2 * CALL_TIMEOUT_S):
                if not self._epoch:
                    await self._enter(0)
                while True:
                    epoch = self._epoch
                    request = _Request(next(self._numbers), epoch, name, call, about)
                    kind, result = await self._send(request)
                    if kind == "error":
                        raise result
                    if kind == "result":
                        return result
                    await self._enter(epoch)
        except TimeoutError:
            raise StoreUnavailable("redis", "no response") from None

    async def _enter(self, last: int) -> None:
        if self._epoch != last:
            return
        if self._entering is None:
            self._entering = asyncio.ensure_future(self._entered(last))
            self._entering.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._entering)

    async def _entered(self, last: int) -> None:
        try:
            peers = tuple(sorted(self._seen_at.keys() - {self._router_id}))
            entry = _Request(next(self._numbers), last, "enter", _ignore, None, self._router_id, peers)
            _, epoch = await self._send(entry)
            self._epoch = epoch
        finally:
            self._entering = None
        if last:
            self.on_new_epoch()

    async def _send(self, request: _Request) -> tuple[str, Any]:
        connection, number = self._connected(), request.number
        future = self._waiting[number] = self._process.loop.create_future()
        connection.send(self._process, request, request.name)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                result: tuple[str, Any] = await future
                return result
        except TimeoutError:
            # What is on the old connection may still be executed, at any time.
            if self._connection is connection:
                self._connection = None
            raise StoreUnavailable("redis", f"no response within {CALL_TIMEOUT_S:g} s") from None
        finally:
            self._waiting.pop(number, None)

    def _connected(self) -> Connection:
        if self._connection is None or not self._connection.is_open:
            server = self._server()
            made = None
            if server is not None:
                made = self._network.connect(self._process, server.process, ("store", self._process.name))
            if server is None or made is None:
                raise StoreUnavailable("redis", "connection refused")
            server.serve(made)
            made.listen(self._process, self._hear, lambda reason: self._broken(made, reason))
            self._connection = made
        return self._connection

    def _hear(self, answer: Any) -> None:
        number, *result = answer
        future = self._waiting.get(number)
        if future is not None and not future.done():
            future.set_result(tuple(result))

    def _broken(self, connection: Connection, reason: str) -> None:
        if self._connection is connection:
            self._connection = None
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(StoreUnavailable("redis", reason))

    async def listen(self, router_id: str, hear: Callable[[Notice], None]) -> None:
        """Hear a router's notices for as long as the process lives."""
        while True:
            server = self._server()
            made = None
            if server is not None:
                made = self._network.connect(self._process, server.process, ("notices", self._process.name))
            if server is not None and made is not None:
                broken = asyncio.Event()
                made.listen(self._process, hear, partial(_set, broken))
                server.subscribe(made, router_id)
                while not broken.is_set():
                    await _wait(broken, DEAF_S)
                    both = (self._process.name, server.process.name)
                    if not self._network.flows(*both) or not self._network.flows(*both[::-1]):
                        await _wait(broken, DEAF_S)  # its ping is not answered either
                        made.close(self._process)
                        break
            await asyncio.sleep(SUBSCRIBE_AGAIN_S)

    async def watch_routers(self, router_id: str) -> None:
        """See each second which routers there are, as `Store.watch_routers` does."""
        while True:
            with contextlib.suppress(StoreUnavailable):
                found = await self._call("list_routers", lambda store: list(store._ears))
                now = self._process.clock()
                self._router_id = router_id
                seen = self._seen_at | dict.fromkeys(found, now)
                self._seen_at = {name: at for name, at in seen.items() if now - at < LEASE_TTL_S}
            await asyncio.sleep(1.0)

    # The operations

    async def enqueue(self, entry: QueueEntry, capacity: int) -> QueuePlace:
        place: QueuePlace = await self._call("enqueue", lambda store: store.enqueue(entry, capacity), entry)
        return place

    async def lease_at_once(
        self, entry: QueueEntry, worker: PrefillRoom, decoder: DecodeRoom, ttl_s: float
    ) -> bool:
        is_leased: bool = await self._call(
            "lease_at_once", lambda store: store.lease_at_once(entry, worker, decoder, ttl_s), entry
        )
        return is_leased

    async def dequeue(self, request_key: str) -> None:
        await self._call("dequeue", lambda store: store.dequeue(request_key), request_key)

    async def grant(self, caller: str, worker: PrefillRoom, decoders: Sequence[DecodeRoom]) -> list[Grant]:
        grants: list[Grant] = await self._call("grant", lambda store: store.grant(caller, worker, decoders))
        return grants

    async def settle(
        self, request_key: str, prefill_key: str, decoders: Sequence[DecodeRoom], ttl_s: float
    ) -> Settlement:
        settled: Settlement = await self._call(
            "settle", lambda store: store.settle(request_key, prefill_key, decoders, ttl_s), request_key
        )
        return settled

    async def release_credit(self, request_key: str, worker_key: str) -> None:
        await self._call(
            "release_credit", lambda store: store.release_credit(request_key, worker_key), request_key
        )

    async def release_lease(self, request_key: str, worker_key: str) -> None:
        await self._call(
            "release_lease", lambda store: store.release_lease(request_key, worker_key), request_key
        )

    async def renew(
        self, credits_held: Iterable[tuple[str, str]], leases_held: Iterable[tuple[str, str]], ttl_s: float
    ) -> LostHolds:
        lost: LostHolds = await self._call(
            "renew", lambda store: store.renew(credits_held, leases_held, ttl_s)
        )
        return lost

    async def take_holds(
        self, credits_held: Iterable[Hold], leases_held: Iterable[Hold], ttl_s: float
    ) -> None:
        await self._call("take_holds", lambda store: store.take_holds(credits_held, leases_held, ttl_s))

    async def queue_status(self) -> QueueStatus:
        status: QueueStatus = await self._call("queue_status", lambda store: store.queue_status())
        return status

    async def charge_tenant(
        self, tenant: str, tokens: float, lead: float, band: float, request: str
    ) -> Standing:
        standing: Standing = await self._call(
            "charge_tenant", lambda store: store.charge_tenant(tenant, tokens, lead, band, request)
        )
        return standing

    async def refund_tenant(self, tenant: str, tokens: float, request: str) -> None:
        await self._call("refund_tenant", lambda store: store.refund_tenant(tenant, tokens, request))
