"""Running fleets: how clients find them, and the orders that a launcher takes.

A run's folder names the addresses of its launcher and routers:

    control       the path of the launcher's unix socket, which only its own user can reach
    fleet.json    {"pid": 4711, "addresses": ["127.0.0.1:50051"], "gateways": ["http://127.0.0.1:8000"],
                  "credentials": {"ca": "/…/ca.pem", …}}

`fleet.json` names the files of a secured fleet's credentials and contains no secret. The socket accepts
connections while the fleet serves. Over it goes

    client:   restart
    launcher: {"name": "decode-0", "left_s": 0.3, "took_s": 4.1}    one line for each process replaced
              {"done": true}  or  {"error": "..."}                  the last line

The fleet carries out one order at a time, even if the client disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from baton.fleet.launcher import Fleet, cancel
from baton.fleet.processes.errors import FleetError, NoFleetRunning, RestartFailed
from baton.fleet.processes.events import FleetEvent, ProcessReplaced
from baton.security.credentials import UNENCRYPTED, Credentials
from baton.security.secret_files import replace_secret

CONTROL = "control"
DESCRIPTION = "fleet.json"
_CONNECT_TIMEOUT_S = 1.0
_RESTART = b"restart\n"


@dataclass(frozen=True, slots=True)
class RunningFleet:
    """A fleet of this machine, as its launcher describes it to clients."""

    run_dir: Path
    pid: int
    addresses: tuple[str, ...]
    credentials: Credentials
    gateways: tuple[str, ...] = ()
    """URLs."""


@contextlib.contextmanager
def described(
    run_dir: Path, addresses: Sequence[str], credentials: Credentials, gateways: Sequence[str] = ()
) -> Iterator[None]:
    """Keep the description of this process's fleet in the run's folder while the block lasts."""
    files = {name: str(path) for name, path in asdict(credentials).items() if path is not None}
    content = {
        "pid": os.getpid(),
        "addresses": list(addresses),
        "gateways": list(gateways),
        "credentials": files,
    }
    path = run_dir / DESCRIPTION
    replace_secret(path, (json.dumps(content, indent=1) + "\n").encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def candidates(run_dirs: Path) -> list[Path]:
    """Return the folder itself, then the numbered runs in it, newest first; a link counts as its target."""
    numbered = [folder for folder in run_dirs.glob("*") if folder.name.isdigit()]
    newest_first = sorted(numbered, key=lambda folder: -int(folder.name))
    folders = (folder.readlink() if folder.is_symlink() else folder for folder in newest_first)
    return list(dict.fromkeys([run_dirs, *folders]))


def running_fleets(run_dirs: Path) -> list[RunningFleet]:
    """Return the fleets whose launcher responds, newest first. `run_dirs` is a run's folder, or contains
    them.
    """
    # A launcher that was killed leaves its description behind.
    described = [folder for folder in candidates(run_dirs) if (folder / DESCRIPTION).is_file()]
    return [fleet_of(folder) for folder in described if launcher_answers(folder)]


def launcher_answers(folder: Path) -> bool:
    """Return whether a launcher listens on the socket; a process id could be another process's by now."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as control:
        control.settimeout(_CONNECT_TIMEOUT_S)
        control.connect((folder / CONTROL).read_text(encoding="utf-8"))
        return True
    return False


def fleet_of(folder: Path) -> RunningFleet:
    """Read a description. Raises `ValueError` naming the file."""
    path = folder / DESCRIPTION
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        files = {name: Path(file) for name, file in content["credentials"].items()}
        credentials = Credentials(**files) if files else UNENCRYPTED
        addresses, gateways = (tuple(map(str, content[name])) for name in ("addresses", "gateways"))
        return RunningFleet(folder, int(content["pid"]), addresses, credentials, gateways)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} does not describe a running fleet: {error}") from error


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
            if await reader.readline() != _RESTART:
                return
            async with self._order:
                self._client = writer
                try:
                    await fleet.restart()
                    self._send({"done": True})
                except FleetError as error:
                    self._send({"error": str(error)})
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
