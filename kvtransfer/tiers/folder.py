"""A folder that one process at a time uses."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import structlog

log = structlog.get_logger()


class Folder:
    """The folder of a worker's disk. Raises OSError if it cannot be made."""

    def __init__(self, path: Path) -> None:
        """Make the folder, for this user only, if it is missing."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self) -> None:
        """Wait until no other process has the folder."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("kv_disk_waits", folder=str(self.path), reason="another process uses the folder")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def now_ns(self) -> int:
        """Return the time by which the files here are dated."""
        os.utime(self._lock)
        return os.fstat(self._lock).st_mtime_ns

    def release(self) -> None:
        os.close(self._lock)
