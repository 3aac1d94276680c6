"""Start a fleet in order (Redis, routers and workers, gateways), replace its processes, and stop it.

async with Fleet(FleetSpec(model=Path("demo_model"))) as fleet:
    client = AsyncClient(fleet.router_addresses)
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import os
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Self

from baton.fleet.checkout import check_gateway, find_checkout, find_redis_server
from baton.fleet.hub_names import absolute, hub_name
from baton.fleet.joining import wait_until_connected, wait_until_serving
from baton.fleet.processes import events
from baton.fleet.processes.errors import FleetError, PortUnusable, ProcessFailed, RunDirUnusable, StartTimeout
from baton.fleet.processes.group import MakeProcess, ProcessGroup
from baton.fleet.processes.process import ManagedProcess, ProcessSpec
from baton.fleet.processes.redis import GATEWAY_REDIS, REDIS, redis_process, redis_url
from baton.fleet.rundir import claim, next_run_dir
from baton.fleet.secured import SecuredFleet, secure
from baton.fleet.spec import (
    FleetSpec,
    Surroundings,
    fetching_process,
    gateway_processes,
    kind_of,
    service_processes,
)
from baton.security.credentials import UNENCRYPTED, Credentials

_KEEP_ADDRESS = ("router", "gateway")
"""Kinds whose successors listen at the old address, which clients know."""


class Fleet:
    """The processes of one fleet, for as long as the `async with` block lasts.

    `on_event` is called on the event loop with every `FleetEvent`. A process that dies after its start is
    reported there and by `next_death`; the others go on. `make_process` can start programs in another way
    than by executing them.
    """

    def __init__(
        self,
        spec: FleetSpec,
        on_event: Callable[[events.FleetEvent], None] = lambda _event: None,
        make_process: MakeProcess = ManagedProcess,
    ) -> None:
        self.spec = spec
        self.redis_url = self.gateway_redis_url = spec.redis_url or ""
        self.secured: SecuredFleet | None = None
        self._on_event = on_event
        self._group = ProcessGroup(on_event, make_process, spec.standstill_s)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One lock per name: a process is revived or replaced, never both at once."""
        self.run_dir: Path
        """The folder with the logs, once it has started."""
        self._claim: int | None = None
        """The descriptor that makes the folder this fleet's own."""

    @property
    def processes(self) -> tuple[ManagedProcess, ...]:
        return self._group.processes

    @property
    def router_addresses(self) -> tuple[str, ...]:
        return tuple(self.process(name).address for name in self.spec.router_names)

    @property
    def gateway_urls(self) -> tuple[str, ...]:
        scheme = "http" if self.secured is None else "https"
        return tuple(f"{scheme}://{self.process(name).address}" for name in self.spec.gateway_names)

    @property
    def credentials(self) -> Credentials:
        """The credentials of its clients."""
        return UNENCRYPTED if self.secured is None else self.secured.credentials

    def process(self, name: str) -> ManagedProcess:
        """Return a process: redis, router-0, decode-0, gateway-0. Raises `KeyError` naming all processes."""
        return self._group.process(name)

    async def next_death(self) -> events.ProcessDied:
        """Wait for the next process that ends although nobody stopped it."""
        return await self._group.next_death()

    async def revive(self, name: str) -> None:
        """Restart a process that has ended, at its old address, and wait until it serves.

        Raises `ProcessFailed` or `StartTimeout`; then the new process has ended.
        """
        process = self.process(name)
        async with self._locks[name]:
            if self.process(name) is not process:  # it was replaced meanwhile
                return
            await process.wait()
            await self._group.forget(process)
            try:
                await self._group.start_all([self._successor_spec(process)])
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

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End everything: gateways first, then the other services, then Redis. A second call does nothing."""
        await self._group.stop(self.spec.stop_grace_s)
        if self._claim is not None:
            claim, self._claim = self._claim, None
            os.close(claim)

    async def restart(self) -> None:
        """Replace everything but Redis, one process after another.

        Raises `ProcessFailed` or `StartTimeout` for a successor that does not start; it is ended.
        """
        workers = self.spec.worker_names
        decode_first = sorted(workers, key=lambda name: not name.startswith("decode"))
        for name in (*decode_first, *self.spec.router_names, *self.spec.gateway_names):
            await self.replace(name)

    async def replace(self, name: str) -> None:
        """Replace a running process by a new one.

        The only worker of its kind leaves when its successor serves. A router or gateway leaves first,
        because its successor listens at the same address.
        """
        async with self._locks[name]:
            old, kind, began = self.process(name), kind_of(name), time.monotonic()
            peers = [peer for peer in self.processes if kind_of(peer.name) == kind and peer is not old]
            if kind not in _KEEP_ADDRESS and not any(peer.serving for peer in peers):
                await self._start_successor(old)
                left_s = await self._group.retire(old, self.spec.drain_s)
            else:
                left_s = await self._group.retire(old, self.spec.drain_s)
                await self._start_successor(old)
            self._on_event(events.ProcessReplaced(name, left_s, time.monotonic() - began))

    async def _start_successor(self, old: ManagedProcess) -> None:
        spec = self._successor_spec(old)
        self._group.expect_successor(old)
        try:
            await self._group.start_all([spec])
            if old.name not in self.spec.gateway_names:
                await self._await_connections_of(self.process(old.name))
        except FleetError as error:
            await self._group.restore(old)
            present = self.process(old.name)
            if present is old:
                self._on_event(events.ReplacementFailed(old.name, str(error)))
            else:
                self._group.report_death(present)
            raise
        except BaseException:
            await self._group.restore(old)
            raise

    def _successor_spec(self, old: ManagedProcess) -> ProcessSpec:
        """Return the spec of a successor."""
        listen = ("--listen", old.address)
        keeps_address = kind_of(old.name) in _KEEP_ADDRESS and old.address
        if not keeps_address or old.spec.command[-2:] == listen:
            return old.spec
        return dataclasses.replace(old.spec, command=(*old.spec.command, *listen))

    async def _await_connections_of(self, new: ManagedProcess) -> None:
        routers, workers = self._serving(self.spec.router_names), self._serving(self.spec.worker_names)
        if new.name in self.spec.router_names:
            routers = self._serving([new.name])
        else:
            workers = self._serving([new.name])
        limit_s = self.spec.standstill_s
        try:
            async with asyncio.timeout(limit_s):
                await self._connected(routers, workers)
        except TimeoutError:
            raise StartTimeout(new.name, new.log_path, new.log_tail(), "joining", limit_s) from None

    def _serving(self, names: Sequence[str]) -> list[ManagedProcess]:
        return [process for process in map(self.process, names) if process.serving]

    async def _connected(self, routers: list[ManagedProcess], workers: list[ManagedProcess]) -> None:
        """Wait until each of these routers is connected to all of these workers."""
        addresses = {worker.address for worker in workers}
        await asyncio.gather(
            *(
                wait_until_connected(router.address, addresses, self.credentials, self.spec.router_processes)
                for router in routers
            )
        )

    async def _start(self) -> None:
        checkout = self.spec.checkout or find_checkout()
        redis_server = None if self.spec.redis_url else find_redis_server()
        if self.spec.gateways:
            check_gateway()
        for address in self.spec.fixed_addresses:
            _check_free(*address)
        self.run_dir, self._claim = await self._claim_run_dir(checkout)
        self._group.open(self.run_dir, self._claim)
        if self.spec.secure is not None:
            self.secured = secure(self.spec.secure, dt.datetime.now(dt.UTC))
        model = await self._located("model", self.spec.model, checkout)
        draft = None
        if self.spec.draft_model is not None:
            draft = await self._located("draft", self.spec.draft_model, checkout)
        if redis_server is not None:
            self.redis_url = await self._start_redis(REDIS, redis_server)
            if self.spec.gateways:
                self.gateway_redis_url = await self._start_redis(GATEWAY_REDIS, redis_server)
        around = Surroundings(
            checkout, model, draft, self.redis_url, self.gateway_redis_url, self._shm_folder(), self.secured
        )
        await self._group.start_all(service_processes(self.spec, around))
        await self._group.start_all(gateway_processes(self.spec, around, self.router_addresses))
        if self.spec.await_connections:
            await self._await_connections()

    async def _located(self, name: str, model: Path, checkout: Path) -> str:
        """Return the folder of a model, or a model of the hub at the commit that is fetched for all."""
        hub_model = hub_name(model)
        if hub_model is None:
            return absolute(model)
        return await self._group.run_once(fetching_process(self.spec, checkout, name, hub_model))

    async def _claim_run_dir(self, checkout: Path) -> tuple[Path, int]:
        try:
            folder = self.spec.run_dir or next_run_dir(checkout)
            return folder, await claim(folder)
        except OSError as error:
            path = self.spec.run_dir or checkout
            raise RunDirUnusable(path, os.strerror(error.errno or 0)) from error

    def private_folder(self, parent: str | None = None) -> Path:
        """Make a folder for this user alone, which is removed with the fleet in any case."""
        folder = Path(tempfile.mkdtemp(prefix="baton-", dir=parent))
        self.remove_at_the_end(folder)
        return folder

    def remove_at_the_end(self, path: Path) -> None:
        """Remove a folder or file with the fleet, even if this process is killed."""
        self._group.remove_at_the_end(path.absolute())

    def _shm_folder(self) -> Path | None:
        """Return a new folder in shared memory, where a killed worker's files are removed with the fleet."""
        try:
            return self.private_folder("/dev/shm")  # noqa: S108  (a fresh folder in it, not a known name)
        except OSError:  # without /dev/shm, workers take their default or another transport
            return None

    async def _start_redis(self, name: str, server: Path) -> str:
        """Start a private server and return its URL."""
        password = None if self.secured is None else self.secured.redis_password()
        process = redis_process(name, server, self.private_folder(), password)
        await self._group.start_all([process])
        return redis_url(process, password)

    async def _await_connections(self) -> None:
        limit_s = self.spec.standstill_s
        joining = asyncio.ensure_future(self._joined())
        dying = asyncio.ensure_future(self.next_death())
        try:
            await asyncio.wait((joining, dying), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if dying.done():
                death = dying.result()
                raise ProcessFailed(death.name, death.log_path, death.tail, death.exit_code)
            if not joining.done():
                router = self.process(self.spec.router_names[0])
                doing = "workers joining their routers"
                raise StartTimeout("the fleet", router.log_path, router.log_tail(), doing, limit_s)
            joining.result()
        finally:
            await cancel([joining, dying])
        self._on_event(events.WorkersJoined(self.spec.num_workers))

    async def _joined(self) -> None:
        """Wait until all routers are connected to all workers and serve."""
        await self._connected(
            [self.process(name) for name in self.spec.router_names],
            [self.process(name) for name in self.spec.worker_names],
        )
        await asyncio.gather(
            *(wait_until_serving(address, self.credentials) for address in self.router_addresses)
        )


async def cancel(works: Collection[asyncio.Future[Any]]) -> None:
    """Cancel some tasks and wait until they have ended."""
    for work in works:
        work.cancel()
    await asyncio.gather(*works, return_exceptions=True)


def _check_free(kind: str, host: str, port: int) -> None:
    """Raise `PortUnusable` unless a service could bind the port. The service would report it late."""
    with socket.socket() as probe:
        # The services set this too; without it, a port that was just released would seem to be in use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortUnusable(kind, f"{host}:{port}", os.strerror(error.errno or 0)) from error
