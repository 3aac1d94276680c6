"""End a fleet's processes and remove its folders when the launcher is gone.

The launcher holds the write end of a pipe. Every process writes its id into the pipe before it becomes the
service, so that none is missed even if the launcher is killed. When the pipe closes, the reaper stops all
running groups and removes the private folders. It is a separate program in its own session, so that neither
Ctrl-C nor a kill of the launcher's group reaches it. (A parent-death signal would miss the services' own
children and could not remove folders.)

Lines of the pipe: `+PID` a group started, `-PID` it has ended, `/PATH` a folder or file to remove at the
end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

GRACE_S = 3.0
# A service's helpers outlive it for a moment: multiprocessing's resource tracker ignores SIGTERM, and removes
# a killed parent's semaphores from shared memory once the other helpers are gone.
HELPERS_GRACE_S = 1.0
_POLL_S = 0.02


class Reaper:
    """The launcher's end of the pipe. `close` returns once the reaper has cleaned up.

    The reaper keeps the descriptor `held` open until then.
    """

    def __init__(self, held: int | None = None) -> None:
        read_fd, self.write_fd = os.pipe()
        """`write_fd` is inherited by a starting process, which writes its id into it."""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=read_fd,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=() if held is None else (held,),
                cwd="/",
            )
        finally:
            os.close(read_fd)

    def process_ended(self, pid: int) -> None:
        self._write(f"-{pid}")

    def remove_at_the_end(self, folder: Path) -> None:
        self._write(str(folder))

    def close(self, timeout_s: float = 2 * GRACE_S) -> None:
        os.close(self.write_fd)
        self._process.wait(timeout_s)

    def _write(self, line: str) -> None:
        # A line is shorter than PIPE_BUF, so it arrives whole. A killed reaper is no reason to fail.
        with contextlib.suppress(BrokenPipeError):
            os.write(self.write_fd, f"{line}\n".encode())


def signal_group(pgid: int, number: int) -> bool:
    """Signal every process of a group. Return False if none is left, or none is ours."""
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_running(pgid: int) -> bool:
    """Return whether a process of a group runs. Those that have ended stay in it until init reaps them."""
    stats = Path("/proc").glob("[0-9]*/stat")
    return signal_group(pgid, 0) and any(running_group(stat) == pgid for stat in stats)


def running_group(stat: Path) -> int | None:
    """Return the group of the process of a file of /proc; None if it has ended, reaped or not."""
    try:
        state, _, group = stat.read_bytes().rpartition(b")")[2].split()[:3]
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(group)


def signal_leader(pgid: int, number: int) -> None:
    """Signal the service itself, which may have ended unnoticed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pgid, number)


def _stop_groups(pgids: set[int]) -> None:
    """Stop the services by SIGTERM, then kill them, then kill what is left of their groups."""
    alive = {pgid for pgid in pgids if signal_group(pgid, signal.SIGTERM)}
    for pgid in alive:
        signal_group(pgid, signal.SIGCONT)  # a stopped process would not handle SIGTERM
    alive = _wait_for_groups(alive, GRACE_S)
    for pgid in alive:
        signal_leader(pgid, signal.SIGKILL)
    for pgid in _wait_for_groups(alive, HELPERS_GRACE_S):
        signal_group(pgid, signal.SIGKILL)


def _wait_for_groups(pgids: set[int], grace_s: float) -> set[int]:
    """Return the groups that still run after `grace_s`."""
    alive = pgids
    give_up = time.monotonic() + grace_s
    while (alive := {pgid for pgid in alive if is_running(pgid)}) and time.monotonic() < give_up:
        time.sleep(_POLL_S)
    return alive


def _read(lines: Iterable[str]) -> tuple[set[int], list[str]]:
    groups: set[int] = set()
    folders: list[str] = []
    for line in lines:
        text = line.rstrip("\n")
        if text.startswith("/"):
            folders.append(text)
        elif text.startswith("+"):
            groups.add(int(text[1:]))
        elif text.startswith("-"):
            groups.discard(int(text[1:]))
    return groups, folders


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups, folders = _read(sys.stdin)
    _stop_groups(groups)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it was a folder
            Path(folder).unlink()


if __name__ == "__main__":
    main()
