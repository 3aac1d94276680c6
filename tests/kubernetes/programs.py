"""The node's long-running programs, each stopped by the pid that was written down when it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path


class Programs:
    """Programs in the background, with their logs and pids in a folder.

    A later process that is given the same folder can stop what an earlier, killed one left.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._logs, self._pids = folder, folder / "logs", folder / "pids"
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        """Start a program in a session of its own, so that Ctrl-C does not reach it before its turn."""
        for folder in (self._logs, self._pids):
            folder.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("wb") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        (self._pids / name).write_text(str(child.pid))
        self._children[name] = child

    def log(self, name: str) -> Path:
        """Return the file that a program writes to."""
        return self._logs / f"{name}.log"

    def pid(self, name: str) -> int | None:
        """Return the pid of a program that runs, or None."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            pid = int((self._pids / name).read_text())
            # It may be another program's by now. All of the node's have the folder in their command lines,
            # and what has ended but was not waited for has an empty one.
            if str(self._folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    def stop(self, name: str, grace_s: float = 20.0) -> None:
        """Ask a program to end; after the grace, end it with all that it started."""
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                wait_until(f"{name} ends", lambda: self.pid(name) is None, grace_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        if name in self._children:
            self._children.pop(name).wait()
        (self._pids / name).unlink(missing_ok=True)


def wait_until(what: str, holds: Callable[[], bool], timeout_s: float) -> None:
    """Wait until a condition holds; raise `TimeoutError` naming it if that takes longer."""
    ends_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > ends_s:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.2)
