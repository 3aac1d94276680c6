"""A real fleet with something of ours between any two of its parts.

Where it can be done, each process has a network of its own, in which the kernel loses packets between it and
another one; elsewhere the proxies hold messages up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from baton import AsyncClient, Timeout
from baton.errors import BatonError
from baton.fleet import Fleet, FleetSpec, ManagedProcess
from baton.fleet.joining import wait_until_connected
from baton.fleet.processes.errors import FleetError, ProcessFailed, StartTimeout
from baton.fleet.processes.events import ProcessDied
from baton.fleet.processes.process import ProcessSpec
from baton.fleet.processes.reaper import Reaper
from baton.security.credentials import UNENCRYPTED
from benchmarks.doors.http import OpenAIClient
from tests.chaos.callers import ByTheirSockets
from tests.chaos.limits import Limit, Recording
from tests.chaos.links import Link, Way
from tests.chaos.network import CLIENT, HUB, Network
from tests.chaos.plan import Kind, Place, ends
from tests.chaos.proxies import MessageProxy, TcpProxy
from tests.chaos.redis_clock import RedisClock
from tests.chaos.watch import Watch
from tests.fleet.driving import children_of
from tests.forked import Zygote
from tests.ports import free_port
from tests.redis_server import RedisServer
from tests.zygote import NETWORK

CHECKOUT = Path(__file__).parents[2]
WORKER_ARGS = ("--dtype", "float64", "--num-blocks", "192", "--max-num-seqs", "8", "--token-budget", "64")
ROUTERS = ("router-0", "router-1")
GATEWAYS = ("gateway-0", "gateway-1")
WORKERS = ("prefill-0", "prefill-1", "prefill-2", "decode-0", "decode-1", "decode-2")
OVER_GRPC = ("decode-1", "decode-2")
"""They share no memory with who prefills: blocks come as messages, which can be damaged."""
_PARTS = ("--tensor-parallel", "2", "--threads", "2")
_STAGES = ("--pipeline-parallel", "2", "--threads", "2")
OF_TWO = {"prefill-0": _PARTS, "decode-0": _PARTS, "prefill-1": _STAGES, "decode-1": _STAGES}
"""Two processes compute the steps of these, and either of them may be killed."""
CONNECT_S = 30.0
DRAIN_S = 20.0
OVERRUN_S = 10.0
"""A process that has been told to leave has ended this long after its time, on a machine that starves too."""
TOLD_S = 3.0
LOOPBACK = "127.0.0.1"
NEEDY_S = 5.0
"""A process that was short of something may still die of it for this long."""
START_TRIES = 20
"""A process that starts while Redis is away ends at once and is started again, as by any supervisor."""


class Arena:
    """Two gateways, two routers, three prefill and three decode workers, a Redis.

    Every connection but those of HTTP clients goes through a proxy.
    """

    def __init__(
        self, run_dir: Path, placement: str = "disaggregated", network: Network | None = None
    ) -> None:
        """Each process is in its own network of `network`; None: all share this process's."""
        self._run_dir, self._placement, self._network = run_dir, placement, network
        self._hub = LOOPBACK if network is None else HUB
        self._made: dict[str, ManagedProcess] = {}
        self._naming = ByTheirSockets(self._pids).name if network is None else network.name
        self._works: dict[str, asyncio.Task[bool]] = {}
        """Processes that are being replaced, or told to leave by a call."""
        self._stack = AsyncExitStack()
        self._limits: dict[str, Limit] = {}
        self._needy_until: dict[str, float] = {}
        self._reviving = {name: asyncio.Lock() for name in (*GATEWAYS, *ROUTERS, *WORKERS)}
        self._killed: set[int] = set()
        self._told: dict[str, int] = {}
        """The pids of processes that were told to leave."""
        self.num_deaths: Counter[str] = Counter()
        self.links: dict[str, Link] = {}
        self.recordings: dict[str, Recording] = {}
        self.watch = Watch()
        self.watch.peers = {
            Place.ROUTER: ROUTERS,
            Place.PREFILL: tuple(name for name in WORKERS if name.startswith("prefill")),
            Place.DECODE: tuple(name for name in WORKERS if name.startswith("decode")),
            Place.REDIS: ("redis",),
            Place.GATEWAY: GATEWAYS,
        }
        self.on_death: Callable[[ProcessDied, bool], None] = lambda _death, _in_need: None
        """Told of processes that nobody killed, and whether they were short of something."""

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
        self._run_dir.mkdir(parents=True, exist_ok=True)
        zygote = self._stack.enter_context(Zygote(CHECKOUT, self._run_dir / "zygote.log"))
        self._clock = RedisClock(Path(folder))
        self.redis = RedisServer(folder, environment=self._clock.environment)
        self.redis.start()
        self._stack.callback(self.redis.stop, kill=True)
        to_redis = await self._stack.enter_async_context(
            TcpProxy(f"{folder}/redis.sock", self._hub, self._naming)
        )
        self.links["redis"] = to_redis
        extra: dict[str, tuple[str, ...]] = {"prefill": WORKER_ARGS, "decode": WORKER_ARGS}
        for name in WORKERS:
            extra[name] = await self._behind_a_proxy(name)
        for name in OVER_GRPC:
            extra[name] += ("--transport", "grpc")
        for name, flags in OF_TWO.items():
            extra[name] += flags
        for name in ROUTERS:
            recording = Path(folder) / f"{name}.recording"
            self.recordings[name] = Recording(recording)
            self._stack.callback(self.recordings[name].close)
            extra[name] = ("--listen", self._address_for(name), "--record", str(recording))
        doors = {extra[name][1]: await self._door(name, extra[name][1]) for name in ROUTERS}
        extra["gateway"] = ("--connect-s", str(CONNECT_S))
        for name in GATEWAYS:
            extra[name] = ("--listen", self._address_for(name))
        if self._network is not None:
            for name in (*GATEWAYS, *ROUTERS, *WORKERS):
                extra[name] += ("--insecure-listen",)
        spec = FleetSpec(
            model=CHECKOUT / "demo_model",
            prefill=3,
            decode=3,
            routers=2,
            gateways=2,
            redis_url=f"redis://{self._hub}:{to_redis.port}/0",
            placement=self._placement,
            drain_s=DRAIN_S,
            without_redis="local",  # or newcomers are refused while it is away, as they should be
            threads=1,
            extra_args=extra,
            run_dir=self._run_dir,
            checkout=CHECKOUT,
        )

        def make(spec: ProcessSpec, log_path: Path, reaper: Reaper) -> ManagedProcess:
            if spec.name in GATEWAYS:
                spec = replace(spec, command=tuple(doors.get(part, part) for part in spec.command))
            if self._network is not None:
                spec = replace(spec, environment={**spec.environment, NETWORK: self._network.path(spec.name)})
            self._made[spec.name] = zygote.process(spec, log_path, reaper)
            return self._made[spec.name]

        self.fleet = await self._stack.enter_async_context(Fleet(spec, make_process=make))
        self._stack.push_async_callback(_end, asyncio.create_task(self._undertake()))
        self.client = await self._stack.enter_async_context(
            AsyncClient(list(doors.values()), timeout=Timeout(connect_s=CONNECT_S))
        )
        self.http = {
            name: await self._stack.enter_async_context(OpenAIClient(url))
            for name, url in zip(GATEWAYS, self.fleet.gateway_urls, strict=True)
        }

    async def _behind_a_proxy(self, name: str) -> tuple[str, ...]:
        listen, advertise = self._address_for(name), f"{self._hub}:{free_port()}"
        proxy = MessageProxy(name, advertise, listen, self.watch, self._naming)
        self.links[name] = await self._stack.enter_async_context(proxy)
        return ("--listen", listen, "--advertise", advertise)

    async def _door(self, name: str, listen: str) -> str:
        proxy = MessageProxy(name, f"{self._hub}:{free_port()}", listen, self.watch, self._naming)
        self.links[name] = await self._stack.enter_async_context(proxy)
        return proxy.address

    def _address_for(self, name: str) -> str:
        """Return an address that a process can listen on."""
        return f"{LOOPBACK if self._network is None else self._network.host(name)}:{free_port()}"

    def _pids(self) -> dict[int, str]:
        running = {process.pid: name for name, process in self._made.items() if process.running}
        return running | {os.getpid(): CLIENT}

    def part(self, pair: str, ways: tuple[Way, ...]) -> None:
        """Lose what a process and another one that it has dialled send to each other, on these ways."""
        caller, target = ends(pair)
        if self._network is None:
            self.links[target].freeze(caller, ways)
        else:
            self._network.block(caller, self._port(target), ways)

    def join(self, pair: str) -> int:
        """Lose no more, and return how many messages or packets did not arrive."""
        caller, target = ends(pair)
        if self._network is None:
            return self.links[target].heal(caller)
        return self._network.unblock(caller, self._port(target))

    def cut(self, pair: str) -> int:
        """Break what a process has under way at another one, and return how many calls."""
        caller, target = ends(pair)
        return self.links[target].cut(caller)

    def _port(self, target: str) -> int:
        link = self.links[target]
        return link.port if isinstance(link, TcpProxy) else int(self._address(target).rpartition(":")[2])

    def kill(self, name: str) -> None:
        """At once, as a crash would; `revive` brings it back."""
        if name == "redis":
            self.redis.stop(kill=True)
        elif self.fleet.process(name).running:
            process = self.fleet.process(name)
            self._killed.add(process.pid)
            self.num_deaths[name] += 1
            # Every other time the one that only computes. The one that serves ends with it, by itself.
            parts = children_of(process.pid) if name in OF_TWO and self.num_deaths[name] % 2 == 0 else []
            if parts:
                os.kill(parts[0], signal.SIGKILL)
            else:
                process.kill()

    def leave(self, name: str, *, by_call: bool) -> None:
        """Tell a process to leave: by a signal, or a worker by a call as well."""
        self._expect_end(name)
        self._told[name] = self.fleet.process(name).pid
        if by_call and name in WORKERS:
            self._works[name] = asyncio.create_task(self._told_by_call(name))
        else:
            self.fleet.process(name).terminate()

    async def _told_by_call(self, name: str) -> bool:
        """By a signal all the same if no router passes the call on."""
        process = self.fleet.process(name)
        with contextlib.suppress(BatonError, TimeoutError):
            async with asyncio.timeout(TOLD_S):
                await self.client.drain(name)
                return True
        process.terminate()
        return False

    async def has_left(self, name: str) -> bool:
        """Wait until a process that was told to leave has ended, and return whether it did so in order.

        Raises TimeoutError for one that takes longer than it may.
        """
        work = self._works.pop(name, None)
        if work is not None:
            await work
        process = self.fleet.process(name)
        if process.pid != self._told.pop(name):
            return True  # it had ended before the call was over that told it, and another one has its place
        async with asyncio.timeout(DRAIN_S + OVERRUN_S):
            return await process.wait() == 0

    def begin_replacing(self, name: str) -> None:
        """Let the fleet replace a process, as in a rolling restart."""
        self._expect_end(name)
        self._works[name] = asyncio.create_task(self._replace(name))

    async def replaced(self, name: str) -> bool:
        """Wait until a process has been replaced; return False if its successor had to be started again."""
        was_replaced = await self._works.pop(name)
        await self.rejoined(name, NEEDY_S)
        return was_replaced

    async def _replace(self, name: str) -> bool:
        try:
            async with self._reviving[name]:
                await self.fleet.replace(name)
        except FleetError:  # it starts while Redis or a router is away
            failed = self.fleet.process(name)
            if failed.exit_code is not None:
                self._killed.add(failed.pid)
            await self.revive(name)
            return False
        return True

    def _expect_end(self, name: str) -> None:
        self._killed.add(self.fleet.process(name).pid)
        self.num_deaths[name] += 1

    def jump(self, seconds: float) -> None:
        """Set Redis's clock."""
        self._clock.jump(seconds)

    async def has_jumped(self) -> bool:
        """Return whether Redis tells another time than this process."""
        return await self._clock.is_seen(self.redis.url)

    def pause(self, name: str) -> None:
        """Stopped in its tracks until `resume`."""
        self._stoppable(name).pause()

    def resume(self, name: str) -> None:
        self._stoppable(name).resume()

    def _stoppable(self, name: str) -> RedisServer | ManagedProcess:
        return self.redis if name == "redis" else self.fleet.process(name)

    def limit(self, name: str, kind: Kind) -> None:
        """Withhold something from a process until `unlimit`."""
        with contextlib.suppress(ProcessLookupError):
            self._limits[name] = Limit(self.fleet.process(name).pid, kind)

    def unlimit(self, name: str) -> None:
        limit = self._limits.pop(name, None)
        if limit is not None:
            limit.lift()
            self._needy_until[name] = time.monotonic() + NEEDY_S

    async def revive(self, name: str) -> None:
        """A process that has died runs again, at the same address."""
        if name == "redis":
            self.redis.start()
            return
        async with self._reviving[name]:
            if self._is_back(name):
                return
            await self.fleet.process(name).wait()
            for left in reversed(range(START_TRIES)):
                try:
                    await self.fleet.revive(name)
                except (ProcessFailed, StartTimeout):
                    if not left:
                        raise
                    await asyncio.sleep(0.2)
                else:
                    return

    def _is_back(self, name: str) -> bool:
        """Whether it runs although it was struck: it had died by itself just then, and was undertaken."""
        process = self.fleet.process(name)
        return process.running and process.pid not in self._killed

    async def rejoined(self, name: str, limit_s: float) -> None:
        """Routers are connected to it again, or the time is up."""
        if name not in WORKERS:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                address = frozenset((self._address(name),))
                # One that is being revived has no address yet.
                there = [router for router in self.fleet.router_addresses if router]
                await asyncio.gather(
                    *(wait_until_connected(router, address, UNENCRYPTED) for router in there)
                )

    def _address(self, worker: str) -> str:
        proxy = self.links[worker]
        assert isinstance(proxy, MessageProxy), "only Redis is behind another"
        return proxy.address

    async def _undertake(self) -> None:
        """Brings back who died by itself."""
        while True:
            death = await self.fleet.next_death()
            process = self.fleet.process(death.name)
            if process.running or process.pid in self._killed:
                continue
            in_need = death.name in self._limits or time.monotonic() < self._needy_until.get(death.name, 0.0)
            self.num_deaths[death.name] += 1
            self.on_death(death, in_need)
            self.watch.down.add(death.name)
            await self.revive(death.name)
            self.watch.down.discard(death.name)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
