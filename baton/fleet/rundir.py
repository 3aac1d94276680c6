"""The folder with one run's logs, which belongs to one fleet at a time.

The fleet holds a lock on the folder's file `lock`, which names its launcher. The reaper holds it too, so the
folder of a launcher that was killed is free once nothing of the fleet is left. Only the fleet's user reads
the logs: they name requests and callers.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from baton.fleet.processes.errors import RunDirInUse, RunDirUnusable
from baton.fleet.processes.reaper import running_group

KEPT_RUNS = 10
_LOCK = "lock"
_ENDING_S = 10.0
"""The time that a fleet whose launcher is gone may take to end."""
_POLL_S = 0.05


async def claim(run_dir: Path) -> int:
    """Make the folder a fleet's own until the returned descriptor, and all copies of it, are closed.

    Wait for a fleet that is ending because its launcher is gone. Raises `RunDirInUse`, `OSError`, and
    `RunDirUnusable` if another user could replace the folder, and so receive logs and secrets.
    """
    _make_own(run_dir)
    give_up = time.monotonic() + _ENDING_S
    while True:
        descriptor = _open_lock(run_dir, os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            if _runs(holder) or time.monotonic() >= give_up:
                raise RunDirInUse(run_dir, holder) from None
            await asyncio.sleep(_POLL_S)
        except BaseException:
            os.close(descriptor)
            raise
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor


def is_claimed(run_dir: Path) -> bool:
    """Return whether a fleet has the folder."""
    try:
        descriptor = _open_lock(run_dir, 0)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _make_own(run_dir: Path) -> None:
    """Make the folder if it is missing. Raises `RunDirUnusable` for one of other users."""
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = run_dir.stat()
    if found.st_uid != os.geteuid():
        raise RunDirUnusable(run_dir, f"it belongs to user {found.st_uid}")
    if found.st_mode & stat.S_IWOTH:
        raise RunDirUnusable(run_dir, f"its mode {stat.S_IMODE(found.st_mode):04o} lets others write to it")


def _open_lock(run_dir: Path, flags: int) -> int:
    return os.open(run_dir / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)


def _runs(pid: str) -> bool:
    return pid.isdecimal() and running_group(Path("/proc", pid, "stat")) is not None


def runs_of(checkout: Path) -> Path:
    """Return the folder that contains the runs whose folder was not chosen by a flag."""
    return checkout / ".baton" / "runs"


def next_run_dir(checkout: Path) -> Path:
    """Create `.baton/runs/<n>`, one above the highest, and keep only the last `KEPT_RUNS` and living ones."""
    return _make_next(checkout, partial(Path.mkdir, mode=0o700))


@contextlib.contextmanager
def listed(checkout: Path, run_dir: Path) -> Iterator[bool]:
    """Keep a run in `.baton/runs`, where clients look for it, while the block lasts: one elsewhere by a link.

    Yields False if no link could be made.
    """
    link: Path | None = None
    is_listed = run_dir.resolve().parent == runs_of(checkout).resolve()
    if not is_listed:
        with contextlib.suppress(OSError):
            link = _make_next(checkout, lambda path: path.symlink_to(run_dir.resolve()))
    try:
        yield is_listed or link is not None
    finally:
        if link is not None:
            link.unlink(missing_ok=True)


def _make_next(checkout: Path, make: Callable[[Path], None]) -> Path:
    runs = runs_of(checkout)
    runs.mkdir(parents=True, exist_ok=True)
    (checkout / ".baton" / ".gitignore").write_text("*\n", encoding="utf-8")
    while True:
        numbers = sorted(int(entry.name) for entry in runs.iterdir() if entry.name.isdigit())
        folder = runs / str(numbers[-1] + 1 if numbers else 1)
        try:
            make(folder)
        except FileExistsError:  # another launch took the number
            continue
        for old in numbers[: -KEPT_RUNS + 1]:
            _remove(runs / str(old))
        return folder


def _remove(run: Path) -> None:
    """Remove a run, unless its fleet still runs."""
    if is_claimed(run):
        return
    if run.is_symlink():
        run.unlink(missing_ok=True)
    else:
        shutil.rmtree(run, ignore_errors=True)
