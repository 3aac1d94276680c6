"""Orders for a fleet that runs: over a unix socket that only its own user can reach.

    client:   restart
    launcher: {"name": "decode-0", "left_s": 0.3, "took_s": 4.1}    one line for each process replaced
              {"done": true}  or  {"error": "..."}                  the last line

The run's folder says where the socket is, in a file `control`, and where the routers are
(`baton/fleet/running.py`). The fleet goes on with what it was told should
the client go away; one order is carried out at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

from baton.fleet.errors import FleetError, NoFleetRunning, RestartFailed
from baton.fleet.events import FleetEvent, ProcessReplaced
from baton.fleet.launcher import Fleet
from baton.fleet.running import CONTROL, candidates, described
from baton.security.credentials import UNENCRYPTED

_RESTART = b"restart\n"


class Control:
    """Hears a fleet's events, and takes orders for it while `serving`."""

    def __init__(self, on_event: Callable[[FleetEvent], None]) -> None:
        self._on_event = on_event
        self._order = asyncio.Lock()
        self._hearing: set[asyncio.Task[None]] = set()
        self._client: asyncio.StreamWriter | None = None

    def __call__(self, event: FleetEvent) -> None:
        self._on_event(event)
        if isinstance(event, ProcessReplaced):
            self._tell({"name": event.name, "left_s": event.left_s, "took_s": event.took_s})

    @contextlib.asynccontextmanager
    async def serving(self, fleet: Fleet) -> AsyncIterator[None]:
        """Takes orders until the block ends; one that is under way then is called off."""
        folder = Path(tempfile.mkdtemp(prefix="baton-control-"))
        try:
            server = await asyncio.start_unix_server(
                lambda reader, writer: self._accept(fleet, reader, writer), folder / CONTROL
            )
            credentials = UNENCRYPTED if fleet.secured is None else fleet.secured.credentials
            try:
                with described(fleet.run_dir, fleet.router_addresses, credentials):
                    (fleet.run_dir / CONTROL).write_text(str(folder / CONTROL), encoding="utf-8")
                    yield
            finally:
                server.close()  # not waited for: from Python 3.12 on that would be for every client to go
                await self._call_off()
        finally:
            (fleet.run_dir / CONTROL).unlink(missing_ok=True)
            shutil.rmtree(folder)

    def _accept(self, fleet: Fleet, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hearing = asyncio.create_task(self._hear(fleet, reader, writer))
        self._hearing.add(hearing)
        hearing.add_done_callback(self._hearing.discard)

    async def _call_off(self) -> None:
        for one in self._hearing:
            one.cancel()
        await asyncio.gather(*self._hearing, return_exceptions=True)

    async def _hear(self, fleet: Fleet, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            if await reader.readline() == _RESTART:
                await self._restart(fleet, writer)

    async def _restart(self, fleet: Fleet, writer: asyncio.StreamWriter) -> None:
        async with self._order:
            self._client = writer
            try:
                await fleet.restart()
            except FleetError as error:
                self._tell({"error": str(error)})
            else:
                self._tell({"done": True})
            finally:
                self._client = None

    def _tell(self, said: dict[str, object]) -> None:
        if self._client is not None and not self._client.is_closing():
            self._client.write(json.dumps(said).encode() + b"\n")


async def ask_restart(run_dirs: Path) -> AsyncGenerator[ProcessReplaced, None]:
    """Each process as it has been replaced.

    `run_dirs` is one run's folder, or one with many: of these the newest that has a launcher. Raises
    `NoFleetRunning`, or `RestartFailed`.
    """
    reader, writer = await _connect(run_dirs)
    with contextlib.closing(writer):
        writer.write(_RESTART)
        while line := await reader.readline():
            said = json.loads(line)
            if "error" in said:
                raise RestartFailed(said["error"])
            if "done" in said:
                return
            yield ProcessReplaced(said["name"], said["left_s"], said["took_s"])
    raise RestartFailed("the launcher ended")


async def _connect(run_dirs: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for folder in candidates(run_dirs):
        with contextlib.suppress(OSError):
            return await asyncio.open_unix_connection((folder / CONTROL).read_text(encoding="utf-8"))
    raise NoFleetRunning(run_dirs)
