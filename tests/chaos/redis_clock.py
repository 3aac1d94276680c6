"""A clock for Redis that jumps while the server runs, as when somebody sets the machine's.

A library that is linked before the server's own adds an offset, which is in a file, to the time of the day.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from pathlib import Path

import redis.asyncio

SOURCE = Path(__file__).with_suffix(".c")
EXACT_S = 0.25
"""Times that two processes read one after the other differ by less."""


def can_jump() -> bool:
    """Return whether there is a C compiler, which makes the library."""
    return shutil.which("cc") is not None


class RedisClock:
    """The clock of servers that run with `environment`; without a C compiler it never jumps."""

    def __init__(self, folder: Path) -> None:
        self._ahead_s = 0.0
        self._file = folder / "clock"
        self._set(0.0)
        self.environment: dict[str, str] = {}
        if can_jump():
            library = folder / "clock.so"
            command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
            subprocess.run(command, check=True)
            self.environment = {"LD_PRELOAD": str(library), "BATON_TESTS_CLOCK": str(self._file)}

    def jump(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self._set(self._ahead_s + seconds)

    def _set(self, ahead_s: float) -> None:
        # In place: servers have mapped the file.
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("@q", round(ahead_s * 1e9)))
        self._ahead_s = ahead_s

    async def is_seen(self, url: str) -> bool:
        """Return whether a server tells the time of this clock, which is not this process's."""
        try:
            async with redis.asyncio.Redis.from_url(url, socket_timeout=1.0) as admin:
                seconds, microseconds = await admin.time()
        # uvloop raises RuntimeError where something is written to a closed transport.
        except (OSError, redis.exceptions.RedisError, RuntimeError):
            return False
        ahead_s = seconds + microseconds / 1e6 - time.time()
        return abs(self._ahead_s) > EXACT_S and abs(ahead_s - self._ahead_s) < EXACT_S
