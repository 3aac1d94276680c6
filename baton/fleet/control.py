"""Orders for a running fleet, over a unix socket that only its own user can reach.

    client:   restart
    launcher: {"name": "decode-0", "left_s": 0.3, "took_s": 4.1}    one line for each process replaced
              {"done": true}  or  {"error": "..."}                  the last line

The run's folder contains the socket's path, in a file `control`, and the routers' addresses
(`baton/fleet/running.py`). The fleet carries out one order at a time, even if the client disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from baton.fleet.launcher import Fleet, cancel
from baton.fleet.processes.errors import FleetError, NoFleetRunning, RestartFailed
from baton.fleet.processes.events import FleetEvent, ProcessReplaced
from baton.fleet.running import CONTROL, DESCRIPTION, candidates, described
from baton.security.secret_files import replace_secret

_RESTART = b"restart\n"


class Control:
    """Takes orders for a fleet while `serving`, and forwards the fleet's events."""

    def __init__(self, on_event: Callable[[FleetEvent], None]) -> None:
        self._on_event = on_event
        self._order = asyncio.Lock()
        self._connections: set[asyncio.Task[None]] = set()
        self._client: asyncio.StreamWriter | None = None

    def __call__(self, event: FleetEvent) -> None:
        self._on_event(event)
        if isinstance(event, ProcessReplaced):
            self._send(asdict(event))

    @contextlib.asynccontextmanager
    async def serving(self, fleet: Fleet) -> AsyncIterator[None]:
        """Take orders until the block ends, which cancels an order under way."""
        named = fleet.run_dir / CONTROL
        path = fleet.private_folder() / CONTROL
        server = await asyncio.start_unix_server(partial(self._accept, fleet), path)
        for file in (named, fleet.run_dir / DESCRIPTION):
            fleet.remove_at_the_end(file)
        try:
            with described(fleet.run_dir, fleet.router_addresses, fleet.credentials, fleet.gateway_urls):
                replace_secret(named, str(path).encode())
                yield
        finally:
            named.unlink(missing_ok=True)
            server.close()  # from Python 3.12 on, waiting for it would wait for every client
            await cancel(self._connections)

    def _accept(self, fleet: Fleet, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._serve(fleet, reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, fleet: Fleet, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            if await reader.readline() == _RESTART:
                await self._restart(fleet, writer)

    async def _restart(self, fleet: Fleet, writer: asyncio.StreamWriter) -> None:
        async with self._order:
            self._client = writer
            try:
                await fleet.restart()
            except FleetError as error:
                self._send({"error": str(error)})
            else:
                self._send({"done": True})
            finally:
                self._client = None

    def _send(self, message: dict[str, object]) -> None:
        if self._client is not None and not self._client.is_closing():
            self._client.write(json.dumps(message).encode() + b"\n")


async def ask_restart(run_dirs: Path) -> AsyncGenerator[ProcessReplaced, None]:
    """Order a restart, and yield each process once it is replaced.

    `run_dirs` is one run's folder, or contains them; then the newest with a launcher is restarted. Raises
    `NoFleetRunning` or `RestartFailed`.
    """
    reader, writer = await _connect(run_dirs)
    with contextlib.closing(writer):
        writer.write(_RESTART)
        while line := await reader.readline():
            message = json.loads(line)
            if "error" in message:
                raise RestartFailed(message["error"])
            if "done" in message:
                return
            yield ProcessReplaced(**message)
    raise RestartFailed("the launcher ended")


async def _connect(run_dirs: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for folder in candidates(run_dirs):
        with contextlib.suppress(OSError):
            return await asyncio.open_unix_connection((folder / CONTROL).read_text(encoding="utf-8"))
    raise NoFleetRunning(run_dirs)
