"""A folder of KV blocks, one file each, whose names are the blocks' hashes.

    folder/<identity>/<first byte of the hash>/<hash>.kv     hash and identity in hex

    magic         8 bytes, the version of this format
    identity     16 bytes, a digest of all that decides on a block's bytes besides its hash
    hash         16 bytes
    block_bytes   8 bytes
    checksum      8 bytes, xxh3 of the block
    header sum    8 bytes, xxh3 of all before
    block        `block_bytes` bytes

A file gets its name when it is complete. Files of another identity are never read; they are deleted, since
the folder belongs to one worker, which has a budget.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import os
import shutil
import struct
from pathlib import Path

from kvtransfer.verify import checksum
from scheduling.memory.block_hash import HASH_BYTES

_HEADER = struct.Struct("<8s16s16sQQ")
_SUM = struct.Struct("<Q")
_MAGIC = b"batonkv1"
HEADER_BYTES = _HEADER.size + _SUM.size
_SUFFIX, _UNFINISHED = ".kv", ".part"
_PAGE = 4096
"""File systems give space in pages."""


class BlockRefusedError(Exception):
    """A file does not hold the block that its name says."""


class BlockFiles:
    """The files of one identity, with blocks of `block_bytes`.

    All calls wait for the disk, and raise `OSError` if it fails.
    """

    def __init__(self, folder: Path, identity: str, block_bytes: int) -> None:
        self._parent = folder
        self._identity = hashlib.blake2b(identity.encode(), digest_size=16).digest()
        self.folder = folder / self._identity.hex()
        self._block_bytes = block_bytes
        self.file_bytes = -(-(HEADER_BYTES + block_bytes) // _PAGE) * _PAGE
        """Space on the disk for a block."""

    def scan(self) -> tuple[list[bytes], int]:
        """Return the hashes of all blocks, the least recently used first, and how many files were refused.

        Delete what was not finished, what has another size, and what is of another identity.
        """
        self._delete_others()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        found: list[list[tuple[int, bytes]]] = []
        num_refused = 0
        for folder in self._folders():
            blocks, num_wrong = self._scan_folder(folder)
            found.append(sorted(blocks))
            num_refused += num_wrong
        # Merged and not sorted as a whole, which would hold the interpreter lock all the time.
        return [block_hash for _, block_hash in heapq.merge(*found)], num_refused

    def _scan_folder(self, folder: str) -> tuple[list[tuple[int, bytes]], int]:
        """Return (time of the last use, hash) of each block, and how many files were refused."""
        found, num_refused = [], 0
        with os.scandir(folder) as entries:
            for entry in entries:
                block_hash, status = _hash_of(entry.name), entry.stat(follow_symlinks=False)
                if block_hash is not None and status.st_size == HEADER_BYTES + self._block_bytes:
                    found.append((status.st_mtime_ns, block_hash))
                    continue
                num_refused += not entry.name.endswith(_UNFINISHED)
                Path(entry.path).unlink()
        return found, num_refused

    def write(self, block_hash: bytes, data: memoryview, block_sum: int, used_ns: int | None = None) -> None:
        """Write a block and its checksum; `used_ns` says when it was last used, by default now."""
        path = self.path(block_hash)
        unfinished = path.with_suffix(_UNFINISHED)
        try:
            with self._create(unfinished) as file:
                file.write(self._header(block_hash, block_sum))
                file.write(data)
            if used_ns is not None:
                os.utime(unfinished, ns=(used_ns, used_ns))
            unfinished.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise

    def read(self, block_hash: bytes, data: memoryview) -> None:
        """Read a block into `data`, `block_bytes` long, and note that it was used.

        Raises BlockRefusedError if the file does not verify. `data` is undefined if anything is raised.
        """
        path = self.path(block_hash)
        with path.open("rb", buffering=0) as file:
            header = file.read(HEADER_BYTES)
            if file.readinto(data) != self._block_bytes or file.read(1):
                raise BlockRefusedError(f"{path} is not {HEADER_BYTES + self._block_bytes} bytes long")
        if header != self._header(block_hash, checksum(data)):
            raise BlockRefusedError(f"{path} does not verify")
        os.utime(path)

    def delete(self, block_hash: bytes) -> None:
        """Delete a block's file, if it exists."""
        self.path(block_hash).unlink(missing_ok=True)

    def path(self, block_hash: bytes) -> Path:
        name = block_hash.hex()
        return self.folder / name[:2] / f"{name}{_SUFFIX}"

    def _header(self, block_hash: bytes, block_sum: int) -> bytes:
        fields = _HEADER.pack(_MAGIC, self._identity, block_hash, self._block_bytes, block_sum)
        return fields + _SUM.pack(checksum(fields))

    def _create(self, path: Path) -> contextlib.closing[_File]:
        try:
            return contextlib.closing(_File(path))
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            return contextlib.closing(_File(path))

    def _delete_others(self) -> None:
        with os.scandir(self._parent) as entries:
            others = [Path(e.path) for e in entries if _is_identity(e.name) and e.name != self.folder.name]
        for other in others:
            shutil.rmtree(other)

    def _folders(self) -> list[str]:
        with os.scandir(self.folder) as parts:
            return [part.path for part in parts if part.is_dir(follow_symlinks=False)]


class _File:
    """A new file that only this user may read; each write is whole or raises `OSError`."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        os.close(self._fd)


def _is_identity(name: str) -> bool:
    return len(name) == 2 * 16 and _is_hex(name)


def _hash_of(name: str) -> bytes | None:
    stem, dot, suffix = name.partition(".")
    is_block = f"{dot}{suffix}" == _SUFFIX and len(stem) == 2 * HASH_BYTES and _is_hex(stem)
    return bytes.fromhex(stem) if is_block else None


def _is_hex(name: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in name)
