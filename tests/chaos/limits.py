"""Withholds things from a process from outside: memory, descriptors, room on its disk, who reads of it."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import resource
import termios
from pathlib import Path

from tests.chaos.plan import Kind

FULL_BYTES = 60_000
"""A pipe holds 64 KiB, and a writer that has more waits."""


class Limit:
    """A limit of the kernel's on a process, until it is lifted."""

    def __init__(self, pid: int, kind: Kind) -> None:
        """Raises ProcessLookupError for a process that has ended, or is about to."""
        self._pid = pid
        match kind:
            case Kind.NO_MEMORY:
                self._what, least = resource.RLIMIT_AS, _address_space(pid)
            case Kind.NO_FILES:
                self._what, least = resource.RLIMIT_NOFILE, _descriptors(pid)
            case _:
                self._what, least = resource.RLIMIT_FSIZE, 0
        soft, hard = resource.prlimit(pid, self._what)
        resource.prlimit(pid, self._what, (least, hard))
        self._usual = soft, hard

    def lift(self) -> None:
        """The process may have died of it."""
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self._pid, self._what, self._usual)


def _descriptors(pid: int) -> int:
    """The descriptors it may have without opening another one: with fewer, even polling is refused."""
    with contextlib.suppress(FileNotFoundError):
        held = [int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()]
        if held:
            return max(held) + 1
    raise ProcessLookupError(pid)


def _address_space(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    return pages * resource.getpagesize()


class Recording:
    """A pipe in the place of the file that a router records into; read and forgotten, unless blocked."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        # Also for writing: so it has no end when a router dies.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._read)

    def _read(self) -> None:
        os.read(self._fd, 65536)

    def block(self) -> None:
        """Nobody reads any more."""
        self._loop.remove_reader(self._fd)

    def release(self) -> bool:
        """Whether it had become full."""
        held = array.array("i", [0])
        fcntl.ioctl(self._fd, termios.FIONREAD, held)
        self._loop.add_reader(self._fd, self._read)
        return held[0] > FULL_BYTES

    def close(self) -> None:
        """The router that wrote has ended."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
