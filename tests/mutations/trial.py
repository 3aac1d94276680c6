"""One test, run in a process of its own, for so long and no longer; nothing that it started outlives it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from baton.fleet.processes.reaper import GRACE_S, HELPERS_GRACE_S, signal_group

CLEANING_S = 2 * (GRACE_S + HELPERS_GRACE_S)
"""Seconds that a fleet's reaper may take on a busy machine when its launcher is gone."""
_POLL_S = 0.05


class Verdict(Enum):
    PASSED = "passed"
    FAILED = "failed"
    HUNG = "hung"
    NOT_RUN = "not run"
    """Not found, for example, or the code under test could not be imported."""


_BY_EXIT_CODE = {0: Verdict.PASSED, 1: Verdict.FAILED}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`said` is pytest's last word, in one line."""

    verdict: Verdict
    took_s: float
    said: str


class Trial:
    """A test that has been started; `log` is what pytest prints."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log
        self._started_at = time.monotonic()

    def outcome(self, limit_s: float) -> Outcome:
        """Return the outcome, after at most `limit_s` seconds."""
        try:
            verdict = _BY_EXIT_CODE.get(self._process.wait(limit_s), Verdict.NOT_RUN)
        except subprocess.TimeoutExpired:
            verdict = Verdict.HUNG
        return Outcome(verdict, time.monotonic() - self._started_at, self._last_line())

    def _last_line(self) -> str:
        """Which test failed and why, where one did."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
        return (told or lines or [""])[-1]


@contextmanager
def trial(root: Path, test: str) -> Iterator[Trial]:
    """`test` runs in the tree `root` until the block ends, and with it all that it started and its files.

    Byte code is not kept, as a file of `root` may change twice within a second. Who hangs is ours to say:
    pytest's own timeout interrupts a test, not its fixtures, and is taken for a failure.
    """
    with tempfile.TemporaryDirectory(prefix="baton-trial-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "log"
        short = f"--basetemp={folder}/t"  # sockets stand there, whose paths have 107 bytes at the most
        argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=0", short, test]
        told = {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": folder, "COLUMNS": "200"}
        with log.open("wb") as out:
            process = subprocess.Popen(
                argv, cwd=root, env=os.environ | told, stdout=out, stderr=out, process_group=0
            )
        try:
            yield Trial(process, log)
        finally:
            _end(process, folder)


def _end(process: subprocess.Popen[bytes], folder: str) -> None:
    """The group at once; fleets, in sessions of their own, by their reapers, or by force in the end."""
    signal_group(process.pid, signal.SIGKILL)
    process.wait()
    give_up = time.monotonic() + CLEANING_S
    while (left := _started_with(folder)) and time.monotonic() < give_up:
        time.sleep(_POLL_S)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _started_with(folder: str) -> list[int]:
    """The processes whose temporary files go to `folder`, whoever is their parent by now.

    Redis writes its title over its environment and is not seen: it is of the group, or its fleet's reaper's.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if f"TMPDIR={folder}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found
