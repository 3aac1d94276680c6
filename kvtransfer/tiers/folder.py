"""A folder that one process at a time uses, which no other account can write to, and its key.

Blocks are sealed with the key (`block_files`), so that what others could write there earlier, or on the way
to a remote disk, does not verify. The key stays in the folder, for the worker's successors: only its owner
can read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from pathlib import Path

import structlog

log = structlog.get_logger()

KEY_BYTES = 32
_KEY = "key"
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class FolderRefusedError(Exception):
    """Another account could write to the folder, or read or choose its key."""


class Folder:
    """The folder of a worker's disk. Raises OSError if it cannot be made, and FolderRefusedError."""

    def __init__(self, path: Path) -> None:
        """Make the folder, for this user only, if it is missing."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.resolve()  # a link on the way could lead elsewhere later
        _check_folder(path)
        self.path = path
        self._lock = _open(path / "lock", os.O_RDWR | os.O_CREAT)
        self.key = _key(path)

    def acquire(self) -> None:
        """Wait until no other process has the folder."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("kv_disk_waits", folder=str(self.path), reason="another process uses the folder")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def now_ns(self) -> int:
        """Return the time by which files here are dated."""
        os.utime(self._lock)
        return os.fstat(self._lock).st_mtime_ns

    def release(self) -> None:
        os.close(self._lock)


def _check_folder(path: Path) -> None:
    """Raise FolderRefusedError unless this user alone decides what the folder contains.

    Whoever can write to a folder above could replace it. Those of root are trusted, of any mode: volumes of
    containers are like that.
    """
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise FolderRefusedError(f"which belongs to user {found.st_uid}")
    if found.st_mode & _BY_OTHERS:
        raise FolderRefusedError(f"whose mode {stat.S_IMODE(found.st_mode):04o} lets others write to it")
    for above in path.parents:
        _check_above(above)


def _check_above(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid not in {0, os.geteuid()}:
        raise FolderRefusedError(f"in {str(folder)!r}, which belongs to user {found.st_uid}")
    is_own = found.st_uid == os.geteuid()
    if is_own and found.st_mode & _BY_OTHERS and not found.st_mode & stat.S_ISVTX:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        raise FolderRefusedError(f"in {str(folder)!r}, whose mode {mode} lets others replace it")


def _key(folder: Path) -> bytes:
    """Return the folder's key, which its first process makes."""
    path = folder / _KEY
    if not os.path.lexists(path):
        _make_key(path)
    descriptor = _open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        key = os.read(descriptor, KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(key) != KEY_BYTES:
        raise FolderRefusedError(f"whose file {_KEY!r} is not {KEY_BYTES} bytes long; delete it")
    return key


def _make_key(path: Path) -> None:
    """Write a new key whole, unless another process has just done so."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = _open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(descriptor, secrets.token_bytes(KEY_BYTES))
    finally:
        os.close(descriptor)
    with contextlib.suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()


def _open(path: Path, flags: int) -> int:
    """Open a regular file that only this user can read and write. Raises FolderRefusedError."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if path.is_symlink():
            raise FolderRefusedError(f"whose file {path.name!r} is a link; delete it") from error
        raise
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return descriptor
    os.close(descriptor)
    raise FolderRefusedError(
        f"whose file {path.name!r} is not a regular file that only this user can read; delete it"
    )
