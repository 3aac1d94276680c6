"""Brings a fleet up in order (Redis, then everything else at once) and takes it down without a trace.

async with Fleet(FleetSpec(model=Path("demo_model"))) as fleet:
    client = AsyncClient(fleet.router_addresses)
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import os
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from baton.fleet.checkout import find_checkout, find_redis_server
from baton.fleet.errors import FleetError, PortUnusable, ProcessFailed, RunDirUnusable, StartTimeout
from baton.fleet.events import (
    FleetEvent,
    FleetStopping,
    ProcessDied,
    ProcessReady,
    ProcessReplaced,
    ProcessStarted,
    ProcessStarting,
    ReplacementFailed,
    WorkersJoined,
)
from baton.fleet.joining import wait_until_connected, wait_until_joined
from baton.fleet.processes.process import ManagedProcess, ProcessSpec
from baton.fleet.processes.reaper import Reaper
from baton.fleet.rundir import next_run_dir
from baton.fleet.secured import REDIS_USER, SecuredFleet, secure
from baton.fleet.spec import FleetSpec, Surroundings, redis_process, service_processes
from baton.security.credentials import UNENCRYPTED

_REDIS_PORT_TRIES = 3
_TELL_S = 1.0
# Beyond the services' own grace, for their last words.
_KILL_MARGIN_S = 2.0


def _say_nothing(event: FleetEvent) -> None:
    """For callers that do not watch."""


class Fleet:
    """The processes of one fleet, for as long as the `async with` block lasts.

    `on_event` is called on the event loop with every `FleetEvent`. A process that dies after its start is
    reported there and by `next_death`; the others go on. `make_process` is for another way to start a program
    than executing it.
    """

    def __init__(
        self,
        spec: FleetSpec,
        on_event: Callable[[FleetEvent], None] = _say_nothing,
        make_process: Callable[[ProcessSpec, Path, Reaper], ManagedProcess] = ManagedProcess,
    ) -> None:
        self.spec = spec
        self.redis_url = spec.redis_url or ""
        self.secured: SecuredFleet | None = None
        self._say = on_event
        self._make_process = make_process
        self._processes: dict[str, ManagedProcess] = {}
        self._deaths: asyncio.Queue[ProcessDied] = asyncio.Queue()
        self._watches: dict[ManagedProcess, asyncio.Task[None]] = {}
        self._leaving: set[ManagedProcess] = set()
        """Whose end is wanted, and those whose name another one has."""
        self._changing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock for each name: a process is revived or replaced, never both at once."""
        self._stopping = False
        self._reaper: Reaper | None = None
        self._run_dir: Path | None = None

    @property
    def run_dir(self) -> Path:
        """Where the logs are."""
        assert self._run_dir is not None, "not started"
        return self._run_dir

    @property
    def processes(self) -> tuple[ManagedProcess, ...]:
        return tuple(self._processes.values())

    @property
    def router_addresses(self) -> tuple[str, ...]:
        return tuple(self._processes[name].address for name in self.spec.router_names)

    def process(self, name: str) -> ManagedProcess:
        """By name: redis, router-0, prefill-0, decode-0. Raises `KeyError` naming those there are."""
        try:
            return self._processes[name]
        except KeyError:
            raise KeyError(f"no process {name!r}: there are {', '.join(self._processes)}") from None

    async def next_death(self) -> ProcessDied:
        """The next process that ends although nobody stopped the fleet."""
        return await self._deaths.get()

    async def revive(self, name: str) -> None:
        """Restart a process that has ended, at its old address, and wait until it serves.

        Raises `ProcessFailed` or `StartTimeout`; a process that did not start has ended by then.
        """
        process = self.process(name)
        async with self._changing[name]:
            if self.process(name) is not process:  # it was replaced meanwhile
                return
            await process.wait()
            await self._see_off(process)
            try:
                await self._start_all([self._spec_after(process)])
            except FleetError:
                await self.process(name).close()
                raise

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Ends everything: services first, Redis last. A second call does nothing."""
        if self._reaper is None:
            return
        reaper, self._reaper = self._reaper, None
        self._stopping = True
        # Shielded, so that an impatient Ctrl-C cannot leave half a fleet; the reaper would end it anyway.
        await _finish(asyncio.ensure_future(self._stop_processes()))
        await asyncio.to_thread(reaper.close)

    async def restart(self) -> None:
        """Replaces everything but Redis, one process after another; each serves before the next has to leave.

        Raises `ProcessFailed` or `StartTimeout` for a successor that does not come up, which is ended.
        """
        workers = self.spec.worker_names
        decode_first = sorted(workers, key=lambda name: not name.startswith("decode"))
        for name in (*decode_first, *self.spec.router_names):
            await self.replace(name)

    async def replace(self, name: str) -> None:
        """Puts a new process in the place of one that runs.

        A worker that is the only one of its kind leaves when its successor serves. A router leaves first: its
        successor listens where it did.
        """
        async with self._changing[name]:
            await self._replace(self.process(name))

    async def _replace(self, old: ManagedProcess) -> None:
        name, began = old.name, time.monotonic()
        kind = name.partition("-")[0]
        peers = [one for one in self.processes if one.name.startswith(f"{kind}-") and one is not old]
        if kind != "router" and not any(one.serving for one in peers):
            await self._start_in_place_of(old)
            left_s = await self._retire(old)
        else:
            left_s = await self._retire(old)
            await self._start_in_place_of(old)
        self._say(ProcessReplaced(name, left_s, time.monotonic() - began))

    async def _retire(self, process: ManagedProcess) -> float:
        """Seconds until it had ended."""
        self._leaving.add(process)
        began = time.monotonic()
        await process.stop(self.spec.drain_s + _KILL_MARGIN_S)
        await self._see_off(process)
        return time.monotonic() - began

    async def _see_off(self, process: ManagedProcess) -> None:
        """Kills what still runs of it, and forgets it once its end has been told where that is news."""
        await process.close()
        watch = self._watches.pop(process, None)
        if watch is not None:  # it has served
            await watch
        self._leaving.discard(process)

    async def _start_in_place_of(self, old: ManagedProcess) -> None:
        spec = self._spec_after(old)
        if old.running:
            self._leaving.add(old)  # it loses its name, and is stopped with the fleet all the same
        try:
            await self._start_all([spec])
            await self._await_connections_of(self.process(old.name))
        except FleetError as error:
            await self._put_back(old)
            now = self.process(old.name)
            if now is old:
                self._say(ReplacementFailed(old.name, str(error)))
            else:
                self._tell_death(now)
            raise
        except BaseException:
            await self._put_back(old)
            raise

    def _spec_after(self, old: ManagedProcess) -> ProcessSpec:
        """A router listens where the one before it did: clients know the address."""
        listen = ("--listen", old.address)
        if old.name not in self.spec.router_names or not old.address or old.spec.command[-2:] == listen:
            return old.spec
        return dataclasses.replace(old.spec, command=(*old.spec.command, *listen))

    async def _put_back(self, old: ManagedProcess) -> None:
        """Its successor did not come up: that one ends, and `old` has its name again if it still runs."""
        failed = self.process(old.name)
        self._leaving.discard(old)
        if failed is old:
            return
        self._leaving.add(failed)
        if old.running:
            self._processes[old.name] = old
        await self._see_off(failed)

    async def _await_connections_of(self, new: ManagedProcess) -> None:
        routers = [self.process(name) for name in self.spec.router_names]
        workers = [self.process(name) for name in self.spec.worker_names]
        awaited = [one.address for one in workers if one.serving and (new in routers or one is new)]
        asked = [one.address for one in routers if one.serving and (new in workers or one is new)]
        credentials = UNENCRYPTED if self.secured is None else self.secured.credentials
        connecting = (wait_until_connected(address, frozenset(awaited), credentials) for address in asked)
        limit_s = self.spec.standstill_s
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*connecting)
        except TimeoutError:
            raise StartTimeout(new.name, "joining", limit_s, new.log_path, new.log_tail()) from None

    async def _start(self) -> None:
        checkout = self.spec.checkout or find_checkout()
        redis_server = None if self.spec.redis_url else find_redis_server()
        for address in self.spec.fixed_addresses:
            _refuse_taken(*address)
        self._run_dir = self._made_run_dir(checkout)
        self._reaper = Reaper()
        if self.spec.secure is not None:
            self.secured = secure(self.spec.secure, dt.datetime.now(dt.UTC))
        if redis_server is not None:
            await self._start_redis(redis_server, self._private_folder(None))
        around = Surroundings(checkout, self.redis_url, self._shm_folder(), self.secured)
        await self._start_all(service_processes(self.spec, around))
        if self.spec.await_connections:
            await self._await_connections()

    def _made_run_dir(self, checkout: Path) -> Path:
        try:
            folder = self.spec.run_dir or next_run_dir(checkout)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            path = self.spec.run_dir or checkout
            raise RunDirUnusable(path, os.strerror(error.errno or 0)) from error
        return folder

    def _private_folder(self, parent: str | None) -> Path:
        assert self._reaper is not None
        folder = Path(tempfile.mkdtemp(prefix="baton-", dir=parent))
        self._reaper.remove_at_the_end(folder)
        return folder

    def _shm_folder(self) -> Path | None:
        """A folder in shared memory of our own, so that a killed worker leaves nothing in the common one."""
        try:
            return self._private_folder("/dev/shm")  # noqa: S108  (a fresh folder in it, not a known name)
        except OSError:  # no such place here: the workers take their default, or another transport
            return None

    async def _start_redis(self, server: Path, folder: Path) -> None:
        for attempt in range(_REDIS_PORT_TRIES):
            port = _free_port()
            users = None if self.secured is None else self.secured.write_redis_config(folder)
            process = redis_process(server, port, folder, users)
            try:
                await self._start_all([process])
            except ProcessFailed:  # the port may have been taken in the meantime
                if attempt == _REDIS_PORT_TRIES - 1:
                    raise
                continue
            self.redis_url = (
                f"redis://{process.address}/0" if users is None else f"unix://{REDIS_USER}@{process.address}"
            )
            return

    async def _start_all(self, specs: list[ProcessSpec]) -> None:
        """Starts all, then waits for all; the first that fails cancels the waiting."""
        started = [await self._spawn(spec) for spec in specs]
        waits = [asyncio.create_task(self._wait_ready(process)) for process in started]
        try:
            await asyncio.gather(*waits)
        finally:
            for wait in waits:
                wait.cancel()
        self._watches |= {process: asyncio.create_task(self._watch(process)) for process in started}

    async def _spawn(self, spec: ProcessSpec) -> ManagedProcess:
        assert self._reaper is not None
        process = self._make_process(spec, self.run_dir / f"{spec.name}.log", self._reaper)
        await process.start()
        self._processes[spec.name] = process
        self._say(ProcessStarted(spec.name, process.pid))
        return process

    async def _wait_ready(self, process: ManagedProcess) -> None:
        telling = asyncio.create_task(self._tell_progress(process))
        try:
            took_s = await process.wait_ready(self.spec.standstill_s)
        finally:
            telling.cancel()
        self._say(ProcessReady(process.name, process.address, took_s))

    async def _tell_progress(self, process: ManagedProcess) -> None:
        while True:
            await process.next_word(_TELL_S)
            self._say(ProcessStarting(process.name, str(process.progress), process.silent_s))

    async def _await_connections(self) -> None:
        began = time.monotonic()
        credentials = UNENCRYPTED if self.secured is None else self.secured.credentials
        num_workers = self.spec.num_workers
        joining = asyncio.gather(
            *(wait_until_joined(one, num_workers, credentials) for one in self.router_addresses)
        )
        dying = asyncio.ensure_future(self.next_death())
        try:
            await asyncio.wait(
                (joining, dying), timeout=self.spec.standstill_s, return_when=asyncio.FIRST_COMPLETED
            )
            if dying.done():
                death = dying.result()
                raise ProcessFailed(death.name, death.exit_code, death.log_path, death.tail)
            if not joining.done():
                router = self._processes[self.spec.router_names[0]]
                waited_s = time.monotonic() - began
                log = router.log_path, router.log_tail()
                raise StartTimeout("the fleet", "workers joining their routers", waited_s, *log)
            joining.result()
        finally:
            await _cancel(joining)
            await _cancel(dying)
        self._say(WorkersJoined(self.spec.num_workers, time.monotonic() - began))

    async def _watch(self, process: ManagedProcess) -> None:
        await process.wait()
        if not self._stopping and process not in self._leaving:
            self._tell_death(process)

    def _tell_death(self, process: ManagedProcess) -> None:
        assert process.exit_code is not None
        death = ProcessDied(process.name, process.exit_code, process.log_path, process.log_tail())
        self._deaths.put_nowait(death)
        self._say(death)

    async def _stop_processes(self) -> None:
        everything = {*self.processes, *self._leaving}
        running = [process for process in everything if process.running]
        self._say(FleetStopping(len(running)))
        grace_s = self.spec.stop_grace_s + _KILL_MARGIN_S
        services = [process for process in running if process.name != "redis"]
        await asyncio.gather(*(process.stop(grace_s) for process in services))
        await asyncio.gather(*(process.stop(grace_s) for process in running if process not in services))
        await asyncio.gather(*(process.close() for process in everything))
        await asyncio.gather(*self._watches.values())


async def _cancel(work: asyncio.Future[Any]) -> None:
    work.cancel()
    await asyncio.wait([work])


async def _finish(work: asyncio.Future[None]) -> None:
    """Waits for `work` to its end even when cancelled, and passes the cancellation on afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError as cancel:
            cancelled = cancel
    with contextlib.suppress(asyncio.CancelledError):
        work.result()
    if cancelled is not None:
        raise cancelled


def _refuse_taken(host: str, port: int) -> None:
    """Before anything starts: a service that cannot bind its port says so late and at length."""
    with socket.socket() as probe:
        # As the service itself does, or a port that was just let go of would seem taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortUnusable(f"{host}:{port}", os.strerror(error.errno or 0)) from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
