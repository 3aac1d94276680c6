"""One process of a fleet: started in its own process group, watched until it ends, logged to a file.

STARTING ──ready line──▶ READY ──▶ ENDED
  │  ▲ └─────────────────────────▶ ENDED
  └──┘ a line that reports progress
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from baton.fleet.processes.errors import ProcessFailed, StartTimeout
from baton.fleet.processes.reaper import HELPERS_GRACE_S, Reaper, is_running, signal_group, signal_leader

# Writes its id to the reaper's pipe (its stdin), then becomes the program, so that the reaper misses no
# start.
_ENTRY = 'echo "+$$" >&0; exec "$@" </dev/null'

READY_LINE = re.compile(
    r"^READY (?P<kind>\S+)(?: (?P<id>\S+))? address=(?P<address>\S+)(?: metrics=(?P<metrics>\S+))?"
)
STARTING_LINE = re.compile(r"^STARTING \S+ \S+ done=(?P<done>\d+) total=(?P<total>\d+) phase=(?P<phase>.+)$")

_AT_ONCE_S = 2.0
"""How long a process may take to end when it is told a second time."""
_TAIL_LINES = 15
_PRIVATE = 0o077
"""The umask of the processes: what they write is for the fleet's user alone."""
_LATE_LINES_S = 0.2
"""If the launcher itself was stopped, it reads the lines of that time for this long before it gives up."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """The command of a process.

    `ready` matches the line of stdout which reports that the process serves. Its groups `address` and
    `metrics` are the process's addresses, unless `address` is known beforehand.
    """

    name: str
    command: tuple[str, ...]
    cwd: Path
    ready: re.Pattern[str] = READY_LINE
    address: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def _progress(phase: str, done: int, total: int) -> str:
    """Return the progress of a start in words; `done` of `total` are bytes or steps, 0 if unknown."""
    if not total:
        return phase
    if total < 10_000:
        return f"{phase}, {done} of {total}"
    return f"{phase}, {done / 1e6:.0f} of {total / 1e6:.0f} MB"


def _in_words(line: str) -> str:
    """Return a line of a log as a person reads it; empty for a report of the start and for no error."""
    if READY_LINE.search(line) or STARTING_LINE.search(line):
        return ""
    try:
        entry = json.loads(line)
        is_error = entry["level"] in {"error", "critical"}
    except (ValueError, TypeError, LookupError):  # not of the structured log
        return line.rstrip()
    reasons = str(entry.get("exception") or entry.get("traceback") or entry.get("error", "")).splitlines()
    return ": ".join([str(entry.get("event")), *reasons[-1:]]) if is_error else ""


def _for_this_user(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


class Child(Protocol):
    """A child process."""

    @property
    def pid(self) -> int:
        """The id of the child, which leads its own session."""

    async def wait(self) -> int:
        """Wait for its end and return the exit code; a signal's number is negative."""


class ManagedProcess:
    """A started process. Its addresses are set once `wait_ready` has returned."""

    def __init__(self, spec: ProcessSpec, log_path: Path, reaper: Reaper) -> None:
        self.name = spec.name
        self.address = spec.address
        self.metrics_address = ""
        self.log_path = log_path
        self.exit_code: int | None = None
        self.spec = spec
        self._reaper = reaper
        self._process: Child | None = None
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._started_at = 0.0
        self._moved_at = 0.0
        self._log_begins = 0
        """The size of the log before this process."""
        self._ready_at = self._ended_at = 0.0
        self._moved = asyncio.Event()
        self.progress = "starting"
        """The progress of its start in words, by its last report."""

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self.exit_code is None

    async def start(self) -> None:
        self._started_at = self._moved_at = time.monotonic()
        with self._open_log() as log:
            self._log_begins = log.seek(0, os.SEEK_END)
        # Not asyncio's pipe: with that, waiting for the process would wait for its children as well.
        read_fd, write_fd = os.pipe()
        try:
            with self._open_log() as log:
                self._process = await self._launch(write_fd, log, self._reaper.write_fd)
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        copying = asyncio.create_task(self._copy_output(read_fd))
        self._tasks = [copying, asyncio.create_task(self._watch(copying))]

    async def _launch(self, stdout: int, stderr: IO[bytes], register: int) -> Child:
        """Start the child in its own session. It first writes its id to `register`, the reaper's pipe."""
        return await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", _ENTRY, "sh", *self.spec.command,
            stdin=register,
            stdout=stdout,
            stderr=stderr,
            cwd=self.spec.cwd,
            env={**os.environ, **self.spec.environment},
            start_new_session=True,
            umask=_PRIVATE,
        )  # fmt: skip

    @property
    def serving(self) -> bool:
        """Whether it runs and has reported that it is ready."""
        return self.running and self._ready.is_set()

    @property
    def served_s(self) -> float:
        """Seconds from being ready until its end, or now; 0 if it was never ready."""
        if not self._ready.is_set():
            return 0.0
        return (self._ended_at or time.monotonic()) - self._ready_at

    @property
    def silent_s(self) -> float:
        """Seconds since its last report of its start."""
        return time.monotonic() - self._moved_at

    async def wait_ready(self, standstill_s: float) -> float:
        """Wait until it serves, as long as it reports progress, and return the seconds since its start.

        Raises `ProcessFailed`, or `StartTimeout` when it has reported nothing for `standstill_s`.
        """
        waits = [asyncio.ensure_future(event.wait()) for event in (self._ready, self._ended)]
        try:
            looked_again = False
            while not any(wait.done() for wait in waits):
                left_s = standstill_s - self.silent_s
                if left_s <= 0 and looked_again:
                    break
                looked_again = left_s <= 0
                timeout_s = max(left_s, _LATE_LINES_S)
                await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._ready.is_set():
            return time.monotonic() - self._started_at
        if self.exit_code is not None:
            raise ProcessFailed(self.name, self.log_path, self.log_tail(), self.exit_code)
        raise StartTimeout(self.name, self.log_path, self.log_tail(), self.progress, self.silent_s)

    async def next_progress(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until its start has progressed since the last call."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._moved.wait()
        self._moved.clear()

    async def wait(self) -> int:
        """Wait for its end and return the exit code."""
        await self._ended.wait()
        assert self.exit_code is not None
        return self.exit_code

    def terminate(self) -> None:
        """Ask it to stop; it finishes running work within its grace."""
        if self.running:
            signal_leader(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, like a crash."""
        if self.running:
            signal_leader(self.pid, signal.SIGKILL)

    def pause(self) -> None:
        """Stop it, like a hang, until `resume`."""
        if self.running:
            signal_group(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self.running:
            signal_group(self.pid, signal.SIGCONT)

    async def stop(self, grace_s: float) -> int:
        """Ask it to stop, after `grace_s` seconds to stop at once, and then kill it. Return the exit code.

        At the second signal services end what they serve, gateways with an error for each caller.
        """
        self.resume()
        for wait_s in (grace_s, _AT_ONCE_S):
            self.terminate()
            try:
                async with asyncio.timeout(wait_s):
                    return await self.wait()
            except TimeoutError:
                continue
        self.kill()
        return await self.wait()

    async def close(self) -> None:
        """Kill it if it still runs, and wait until its output has been read."""
        self.kill()
        # Shielded: a cancelled caller must not cancel the watching, or its end would never be noticed.
        await asyncio.shield(asyncio.gather(*self._tasks))

    def log_tail(self) -> str:
        """Return its last words: the plain lines and the errors at the end of its part of the log.

        Before that, the log may have what earlier processes of its name said.
        """
        with self.log_path.open(encoding="utf-8", errors="replace") as log:
            log.seek(self._log_begins)
            return "\n".join(filter(None, map(_in_words, deque(log, _TAIL_LINES))))

    def _open_log(self) -> IO[bytes]:
        """Open the log to append to it. Only this user may read it: it names requests and callers."""
        log = open(self.log_path, "ab", buffering=0, opener=_for_this_user)  # noqa: SIM115 -- callers close it
        os.fchmod(log.fileno(), 0o600)  # one that was there already
        return log

    async def _watch(self, copying: asyncio.Task[None]) -> None:
        assert self._process is not None
        exit_code = await self._process.wait()
        await self._sweep_helpers()
        self._reaper.process_ended(self.pid)
        # Its last lines must be in the log before anyone reads it.
        await asyncio.wait([copying], timeout=1.0)
        self._ended_at = time.monotonic()
        self.exit_code = exit_code
        self._ended.set()

    async def _sweep_helpers(self) -> None:
        """End the children that outlive their parent, first by SIGTERM: some of them clean up after it."""
        left = signal_group(self.pid, signal.SIGTERM) and is_running(self.pid)
        give_up = time.monotonic() + HELPERS_GRACE_S
        while left and time.monotonic() < give_up:
            await asyncio.sleep(0.01)
            left = is_running(self.pid)
        if left:
            signal_group(self.pid, signal.SIGKILL)

    async def _copy_output(self, read_fd: int) -> None:
        reader = asyncio.StreamReader()
        source = os.fdopen(read_fd, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), source
        )
        pending = b""
        with contextlib.closing(transport), self._open_log() as log:
            while data := await reader.read(65536):
                # Read on even if the disk is full, or the process would block on the pipe.
                with contextlib.suppress(OSError):
                    log.write(data)
                if not self._ready.is_set():
                    pending = self._read_reports(pending + data)

    def _read_reports(self, data: bytes) -> bytes:
        *lines, rest = data.split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            starting = STARTING_LINE.search(text)
            if starting is not None:
                self._moved_at = time.monotonic()
                self._moved.set()
                self.progress = _progress(starting["phase"], int(starting["done"]), int(starting["total"]))
                continue
            found = self.spec.ready.search(text)
            if found is not None:
                groups = found.groupdict()
                self.address = groups.get("address") or self.address
                self.metrics_address = groups.get("metrics") or ""
                self._ready_at = time.monotonic()
                self._ready.set()
                break
        return rest
