"""A folder of KV blocks, one file each, whose names are the blocks' hashes.

    folder/<identity>/<first byte of the hash>/<hash>.kv     hash and identity in hex

    magic         8 bytes, the version of this format
    identity     16 bytes, a digest of all that decides on a block's bytes besides its hash
    hash         16 bytes
    block_bytes   8 bytes
    checksum      8 bytes, xxh3 of the block as it was in the pool
    nonce        12 bytes, drawn for each file
    seal         16 bytes, by the folder's key over all of the above and the block (AES-GCM)
    block        `block_bytes` bytes

The checksum finds damage, also in host memory before the file was written. The seal finds a file that nobody
with the key has written, which could have any checksum. A file gets its name when it is complete. Files of
another identity are never read; they are deleted, since the folder belongs to one worker, which has a budget.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import heapq
import hmac
import os
import shutil
import struct
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kvtransfer.pools.host_blocks import checksum
from scheduling.memory.block_hash import HASH_BYTES

_HEADER = struct.Struct("<8s16s16sQQ")
_MAGIC = b"batonkv2"
_NONCE_BYTES, _SEAL_BYTES = 12, 16
HEADER_BYTES = _HEADER.size + _NONCE_BYTES + _SEAL_BYTES
_SUFFIX, _UNFINISHED = ".kv", ".part"
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PAGE = 4096
"""File systems give space in pages."""


class BlockRefusedError(Exception):
    """A file does not hold the block that its name says."""


class BlockFiles:
    """The files of one identity, with blocks of `block_bytes`, sealed by `key`.

    All calls wait for the disk, and raise `OSError` if it fails.
    """

    def __init__(self, folder: Path, key: bytes, identity: str, block_bytes: int) -> None:
        self._parent = folder
        self._identity = hashlib.blake2b(identity.encode(), digest_size=16).digest()
        self.folder = folder / self._identity.hex()
        self._sealing = AESGCM(key)
        self._block_bytes = block_bytes
        self.file_bytes = -(-(HEADER_BYTES + block_bytes) // _PAGE) * _PAGE
        """Space on the disk for a block."""

    def scan(self) -> tuple[list[bytes], int]:
        """Return the hashes of all blocks, the least recently used first, and how many files were refused.

        Delete what was not finished, what has another size, what is of another identity, and links.
        """
        self._delete_others()
        if self.folder.is_symlink():
            self.folder.unlink()
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
                _remove(entry)
        return found, num_refused

    def write(self, block_hash: bytes, data: memoryview, block_sum: int, used_ns: int | None = None) -> None:
        """Write a block, its checksum and a seal; `used_ns` says when it was last used, by default now."""
        path = self.path(block_hash)
        unfinished = path.with_suffix(_UNFINISHED)
        fields = self._fields(block_hash, block_sum)
        nonce = os.urandom(_NONCE_BYTES)
        try:
            with self._create(unfinished) as file:
                file.write(fields + nonce + self._seal(nonce, fields, data))
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
        with open(path, "rb", buffering=0, opener=_open_to_read) as file:
            header = file.read(HEADER_BYTES)
            if file.readinto(data) != self._block_bytes or file.read(1):
                raise BlockRefusedError(f"{path} is not {HEADER_BYTES + self._block_bytes} bytes long")
        fields = self._fields(block_hash, checksum(data))
        nonce, seal = header[len(fields) : -_SEAL_BYTES], header[-_SEAL_BYTES:]
        is_right = header.startswith(fields) and hmac.compare_digest(seal, self._seal(nonce, fields, data))
        if not is_right:
            raise BlockRefusedError(f"{path} does not verify")
        os.utime(path)

    def delete(self, block_hash: bytes) -> None:
        """Delete a block's file, if it exists."""
        self.path(block_hash).unlink(missing_ok=True)

    def path(self, block_hash: bytes) -> Path:
        name = block_hash.hex()
        return self.folder / name[:2] / f"{name}{_SUFFIX}"

    def _fields(self, block_hash: bytes, block_sum: int) -> bytes:
        return _HEADER.pack(_MAGIC, self._identity, block_hash, self._block_bytes, block_sum)

    def _seal(self, nonce: bytes, fields: bytes, data: memoryview) -> bytes:
        """Return the tag of AES-GCM over both: of `fields`, encrypted in vain, and of `data`, as it is."""
        return self._sealing.encrypt(nonce, fields, data)[-_SEAL_BYTES:]

    def _create(self, path: Path) -> contextlib.closing[_File]:
        try:
            return contextlib.closing(_File(path))
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            return contextlib.closing(_File(path))

    def _delete_others(self) -> None:
        with os.scandir(self._parent) as entries:
            others = [e for e in entries if _is_identity(e.name) and e.name != self.folder.name]
        for other in others:
            _remove(other)

    def _folders(self) -> list[str]:
        with os.scandir(self.folder) as entries:
            parts = list(entries)
        for part in parts:
            if not part.is_dir(follow_symlinks=False):
                _remove(part)
            elif part.stat(follow_symlinks=False).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "the folder belongs to another user", part.path)
        return [part.path for part in parts if part.is_dir(follow_symlinks=False)]


class _File:
    """A new file that only this user may read; each write is whole or raises `OSError`."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, _CREATE, 0o600)

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        os.close(self._fd)


def _remove(entry: os.DirEntry[str]) -> None:
    """Delete a file, a link itself, or a folder with what is in it."""
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path)
    else:
        Path(entry.path).unlink()


def _open_to_read(path: str, flags: int) -> int:
    """Open a file, but no link, and no pipe to wait for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _is_identity(name: str) -> bool:
    return len(name) == 2 * 16 and _is_hex(name)


def _hash_of(name: str) -> bytes | None:
    stem, dot, suffix = name.partition(".")
    is_block = f"{dot}{suffix}" == _SUFFIX and len(stem) == 2 * HASH_BYTES and _is_hex(stem)
    return bytes.fromhex(stem) if is_block else None


def _is_hex(name: str) -> bool:
    return all(letter in "0123456789abcdef" for letter in name)
