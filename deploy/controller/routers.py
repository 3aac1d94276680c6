"""Watches every router of a fleet."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import grpc
import structlog

from baton.async_client import AsyncClient
from baton.errors import BatonError, NotFound
from baton.security.credentials import Credentials, Options
from baton.types import Timeout
from baton.types.snapshots import FleetSnapshot, WorkerState
from deploy.controller.observed import Fleet, RouterView, Worker

log = structlog.get_logger()

INTERVAL_S = 1.0
STALE_S = 5.0
"""A router that has sent nothing for so long is silent."""
SETTLED_S = 10.0
"""A router that started less than this ago may not have found all workers yet."""
RESOLVE_S = 5.0


class Routers:
    """The views of all routers behind some names. A name may stand for several, as a headless Service does.

    `changed` is called when a router says something new.
    """

    def __init__(self, names: Sequence[str], credentials: Credentials, changed: Callable[[], None]) -> None:
        self._names = names
        self._credentials = credentials
        self._changed = changed
        self._unresolved: dict[str, str] = {}
        self._watches: dict[str, _Watch] = {}

    async def run(self) -> None:
        """Watch until cancelled, and look up the names again and again."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                server_names = await self._resolve()
                for address in set(self._watches) - set(server_names):
                    self._watches.pop(address).task.cancel()
                for address in set(server_names) - set(self._watches):
                    own = self._credentials
                    names = (own.ca, own.cert, own.key, own.api_key_file, server_names[address])
                    credentials = NamedCredentials(*names)
                    watch = _Watch(address, credentials, self._changed)
                    watch.task = tasks.create_task(watch.run())
                    self._watches[address] = watch
                await asyncio.sleep(RESOLVE_S)

    def fleet(self) -> Fleet:
        """Return what routers said last, without those that have been silent for a while."""
        now = time.monotonic()
        watches = sorted(self._watches.values(), key=lambda watch: watch.address)
        views = tuple(watch.view for watch in watches if watch.view and now - watch.heard_at <= STALE_S)
        responsive = {view.address for view in views}
        rest = (watch for watch in watches if watch.address not in responsive)
        silent = (f"{watch.address}: {watch.error or 'nothing heard'}" for watch in rest)
        return Fleet(views, (*self._unresolved.values(), *silent))

    async def drain(self, worker: str) -> None:
        """Have every router drain a worker. One that does not know it has nothing to do."""
        calls = (watch.client.drain(worker) for watch in self._watches.values())
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, NotFound):
                log.warning("drain_failed", worker=worker, error=str(result))

    async def _resolve(self) -> dict[str, str]:
        """Return the name that the certificate of each address has."""
        server_names: dict[str, str] = {}
        for name in self._names:
            host, _, port = name.rpartition(":")
            host = host.strip("[]")
            try:
                infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                self._unresolved[name] = f"{name}: {error.strerror}"
                continue
            self._unresolved.pop(name, None)
            for family, _, _, _, address in infos:
                number = str(address[0])
                host_part = f"[{number}]" if family is socket.AF_INET6 else number
                server_names[f"{host_part}:{port}"] = "" if host == number else host
        return server_names


@dataclass(frozen=True, slots=True)
class NamedCredentials(Credentials):
    """Credentials for a router that is called by its address, while its certificate has `server_name`."""

    server_name: str = ""

    def channel(self, address: str, options: Options) -> grpc.aio.Channel:
        if self.ca is not None and self.server_name:
            options = [*options, ("grpc.ssl_target_name_override", self.server_name)]
        return Credentials.channel(self, address, options)


class _Watch:
    """The watch of one router."""

    task: asyncio.Task[None]

    def __init__(self, address: str, credentials: Credentials, changed: Callable[[], None]) -> None:
        self.address = address
        self.client = AsyncClient(address, credentials=credentials, timeout=Timeout(connect_s=1, total_s=5))
        self.view: RouterView | None = None
        self.heard_at = float("-inf")
        self.error = ""
        self._changed = changed

    async def run(self) -> None:
        """Take in snapshots until cancelled."""
        try:
            while True:
                try:
                    await self._follow()
                except BatonError as error:
                    self.error = str(error)
                await asyncio.sleep(INTERVAL_S)
        finally:
            await self.client.close()

    async def _follow(self) -> None:
        async with aclosing(self.client.watch(INTERVAL_S)) as snapshots:
            async for snapshot in snapshots:
                facts = await self.client.describe()
                view = view_of(self.address, snapshot, facts.fingerprint)
                self.heard_at, self.error = time.monotonic(), ""
                if view != self.view:
                    self.view = view
                    self._changed()


def view_of(address: str, snapshot: FleetSnapshot, fingerprint: str) -> RouterView:
    """Return what of a snapshot decisions depend on."""
    workers = {worker.worker_id: _worker_of(worker) for worker in snapshot.workers}
    return RouterView(address, workers, fingerprint, knows_all=snapshot.uptime_s >= SETTLED_S)


def _worker_of(state: WorkerState) -> Worker:
    tokens = state.context_tokens + state.pending_prefill_tokens
    return Worker(state.draining, tokens, state.cached_blocks)
