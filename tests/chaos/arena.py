"""A real fleet with something of ours between any two of its parts."""

from __future__ import annotations

import socket
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from baton import AsyncClient, Timeout
from baton.fleet import Fleet, FleetSpec
from baton.snapshots import WorkerState
from state.store import Store
from tests.chaos.plan import Place
from tests.chaos.proxies import Link, MessageProxy, TcpProxy
from tests.redis_server import RedisServer

MODEL = Path(__file__).parents[2] / "demo_model"
WORKER_ARGS = ("--dtype", "float64", "--num-blocks", "192", "--max-num-seqs", "6", "--token-budget", "64")


class Arena:
    """Two routers, two prefill and two decode workers, a Redis; every connection goes through a proxy."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._stack = AsyncExitStack()
        self.links: dict[str, Link] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-chaos-"))
        self.redis = RedisServer(folder)
        self.redis.start()
        self._stack.callback(self.redis.stop, kill=True)
        to_redis = await self._stack.enter_async_context(TcpProxy(f"{folder}/redis.sock"))
        self.links["redis"] = to_redis
        extra: dict[str, tuple[str, ...]] = {"prefill": WORKER_ARGS, "decode": WORKER_ARGS}
        for name in ("prefill-0", "prefill-1", "decode-0", "decode-1"):
            extra[name] = await self._behind_a_proxy(name)
        extra["decode-1"] += ("--transport", "grpc")
        doors = {}
        for name in ("router-0", "router-1"):
            listen, doors[name] = f"127.0.0.1:{_free_port()}", f"127.0.0.1:{_free_port()}"
            self.links[name] = await self._stack.enter_async_context(MessageProxy(doors[name], listen))
            extra[name] = ("--listen", listen)
        spec = FleetSpec(
            model=MODEL,
            prefill=2,
            decode=2,
            routers=2,
            redis_url=f"redis://127.0.0.1:{to_redis.port}/0",
            placement="disaggregated",
            without_redis="local",  # or newcomers are refused while it is away, as they should be
            extra_args=extra,
            run_dir=self._run_dir,
        )
        self.fleet = await self._stack.enter_async_context(Fleet(spec))
        patient = Timeout(connect_s=30.0)
        self.client = await self._stack.enter_async_context(
            AsyncClient(list(doors.values()), timeout=patient)
        )

    async def _behind_a_proxy(self, name: str) -> tuple[str, ...]:
        listen, advertise = (f"127.0.0.1:{_free_port()}" for _ in range(2))
        self.links[name] = await self._stack.enter_async_context(MessageProxy(advertise, listen))
        return ("--listen", listen, "--advertise", advertise)

    def names_of(self, place: Place) -> list[str]:
        """Processes of a kind."""
        if place is Place.REDIS:
            return ["redis"]
        return [f"{place}-0", f"{place}-1"]

    async def busy(self, place: Place) -> str:
        """The process of a kind that has most to do."""
        if place is Place.REDIS:
            return "redis"
        if place is Place.ROUTER:
            loads = {name: await self._sessions(name) for name in self.names_of(place)}
        else:
            loads = dict.fromkeys(self.names_of(place), 0)
            for one in await self._workers():
                if one.worker_id in loads:
                    loads[one.worker_id] = one.running + one.waiting
        return max(sorted(loads), key=lambda name: loads[name])

    async def _sessions(self, router: str) -> int:
        async with AsyncClient(self.fleet.process(router).address) as direct:
            watch = direct.watch(0.1)
            try:
                return (await anext(watch)).queue.running_sessions
            finally:
                await watch.aclose()

    async def _workers(self) -> tuple[WorkerState, ...]:
        async with AsyncClient(self.fleet.router_addresses) as direct:
            watch = direct.watch(0.1)
            try:
                return (await anext(watch)).workers
            finally:
                await watch.aclose()

    async def revive(self, name: str) -> None:
        """A process that was killed runs again, at the same address."""
        if name == "redis":
            self.redis.start()
        else:
            await self.fleet.revive(name)

    async def held(self) -> dict[str, int]:
        """What is held though nothing runs: blocks, leases, credits, entries. Empty when all is free."""
        found: dict[str, int] = {}
        for one in await self._workers():
            used = one.num_blocks - one.free_blocks
            if one.connected and used + one.running + one.waiting:
                found[f"blocks of {one.worker_id}"] = used
        store = await Store.connect(self.redis.url)
        for record in await store.list_workers():
            for what, amounts in (
                ("leases", await store.leases(record.key)),
                ("credits", await store.credits(record.key)),
            ):
                if amounts:
                    found[f"{what} of {record.worker_id}"] = sum(amounts.values())
        status = await store.queue_status()
        if status.waiting_tokens:
            found["queue"] = status.waiting_tokens
        await store.close()
        return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
