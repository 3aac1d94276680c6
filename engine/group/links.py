"""The sockets between the processes of a group, and the messages on them.

Each follower has one to the leader. Parts of the same layers have another one to the first of them, on which
they meet, a byte at a time. Stages of a pipeline have one from each to the next. If either side dies, the
other reads the end of the stream.
"""

from __future__ import annotations

import enum
import select
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import GroupBrokenError

_HEADER = struct.Struct("<BQ")
_MOST_FDS = 253
"""Linux's own limit for a message."""
Bytes = bytes | bytearray | memoryview


class Kind(enum.IntEnum):
    """Kinds of messages, in the order in which a group first sends them."""

    READY = 1
    """From a follower: its part is loaded. Contains the fingerprint of the weights."""
    REFUSED = 2
    """From a follower, in place of READY: the reason."""
    OPEN = 3
    """From the leader: the memory that all share, as descriptors."""
    STEP = 4
    """From the leader, or from the stage before: a step's batch."""
    PASSED = 5
    """From the last stage to the leader: a step has passed all stages."""
    LOAD = 6
    """From the leader, at any time: an adapter to load into a slot."""
    LOADED = 7
    """From a follower, after LOAD: that adapter is there, or why it cannot be."""
    BLOCKS = 8
    """From a leader that shares no memory with its followers, before STEP: blocks, whose KV comes next."""
    TENSOR = 9
    """Between the same: the bytes of a tensor that the other side expects."""
    END = 10
    """From that leader, at last: it ends in order."""


@dataclass(frozen=True, slots=True)
class Message:
    kind: Kind
    content: bytearray
    fds: tuple[int, ...] = ()
    """Descriptors, which the receiver has to close."""


@dataclass(frozen=True, slots=True)
class Link:
    """One end of a socket for messages."""

    socket: socket.socket

    @classmethod
    def pair(cls) -> tuple[Link, Link]:
        """Return the two ends."""
        one, other = socket.socketpair()
        return cls(one), cls(other)

    @classmethod
    def of(cls, fd: int) -> Link:
        """Return the end with this descriptor, which it owns from now on."""
        return cls(socket.socket(fileno=fd))

    def send(self, kind: Kind, content: Sequence[Bytes], fds: Sequence[int] = ()) -> None:
        """Send a message. Raises GroupBrokenError if the other side is gone."""
        header = _HEADER.pack(kind, sum(len(part) for part in content))
        try:
            if fds:
                socket.send_fds(self.socket, [header], list(fds))
                header = b""
            self.socket.sendall(b"".join((header, *content)))
        except OSError as error:
            raise GroupBrokenError(f"a process of the group is gone ({error.strerror})") from error

    def receive(self) -> Message | None:
        """Wait for a message; return None at the end of the stream."""
        header, fds = self._receive_header()
        if len(header) < _HEADER.size:
            return None
        kind, length = _HEADER.unpack(header)
        content = _read(self.socket, length)
        return None if len(content) < length else Message(Kind(kind), content, tuple(fds))

    def _receive_header(self) -> tuple[Bytes, Sequence[int]]:
        if self.socket.family != socket.AF_UNIX:
            return _read(self.socket, _HEADER.size), ()
        try:
            header, fds, _, _ = socket.recv_fds(self.socket, _HEADER.size, _MOST_FDS)
        except OSError:
            return b"", ()
        header += _read(self.socket, _HEADER.size - len(header)) if header else b""
        return header, fds

    def has_message(self) -> bool:
        """Return True if `receive` would find a message, or the end of the stream."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def close(self) -> None:
        self.socket.close()


@dataclass(frozen=True, slots=True)
class Meeting:
    """One end of a socket on which two processes wait for each other, a byte at a time."""

    socket: socket.socket

    @classmethod
    def pair(cls) -> tuple[Meeting, Meeting]:
        """Return the two ends."""
        one, other = socket.socketpair()
        return cls(one), cls(other)

    @classmethod
    def of(cls, fd: int) -> Meeting:
        """Return the end with this descriptor, which it owns from now on."""
        return cls(socket.socket(fileno=fd))

    def arrive(self) -> None:
        """Let the other side go on from `wait`. Raises GroupBrokenError if it is gone."""
        try:
            self.socket.sendall(b".")
        except OSError as error:
            raise GroupBrokenError(f"a process of the group is gone ({error.strerror})") from error

    def wait(self) -> None:
        """Wait until the other side arrives. Raises GroupBrokenError if it is gone."""
        if not _read(self.socket, 1):
            raise GroupBrokenError("a process of the group is gone")

    def close(self) -> None:
        self.socket.close()


def meetings(size: int) -> list[tuple[Meeting, ...]]:
    """Return the meetings of each of `size` processes; the first one has one with each of the others."""
    pairs = [Meeting.pair() for _ in range(1, size)]
    return [tuple(own for own, _ in pairs), *((theirs,) for _, theirs in pairs)]


def _read(source: socket.socket, length: int) -> bytearray:
    """Read so many bytes; fewer if the stream ends."""
    content, at = bytearray(length), 0
    with memoryview(content) as view:
        while at < length:
            try:
                count = source.recv_into(view[at:])
            except OSError:
                count = 0
            if not count:
                break
            at += count
    return content[:at] if at < length else content
