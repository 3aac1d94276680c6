"""The memory and the sockets that a leader gives to each follower, once all have loaded their part."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from engine.group.links import Kind, Link, Meeting, Message

_COUNTS = struct.Struct("<4q")
"""num_blocks, tokens, the numbers of meetings and of hops."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Memory and sockets of one follower, for steps of up to `tokens` tokens over a pool of `num_blocks`.

    The sender keeps its descriptors of memory. Sockets are the follower's alone: `close_sockets` gives up the
    sender's copies.
    """

    num_blocks: int
    tokens: int
    pool_fd: int
    sums_fd: int | None = None
    """The memory in which the parts of its layers meet; None if it computes them whole."""
    meetings: tuple[Meeting, ...] = ()
    """Those with the other parts."""
    slots_fd: int | None = None
    """The memory by which stages pass activations on; None if it computes all layers."""
    hops: tuple[Link, ...] = ()
    """The link from the stage before, and that to the next one if it has to pass steps on."""

    def send(self, link: Link) -> None:
        """Send it to a follower. Raises GroupBrokenError if that is gone."""
        counts = _COUNTS.pack(self.num_blocks, self.tokens, len(self.meetings), len(self.hops))
        sockets = [each.socket.fileno() for each in self._sockets]
        link.send(Kind.OPEN, [counts], (*self._memory, *sockets))

    @classmethod
    def received(cls, message: Message) -> Opening:
        """Return what came in a message; its descriptors are the receiver's."""
        assert message.kind is Kind.OPEN
        num_blocks, tokens, num_meetings, num_hops = _COUNTS.unpack(message.content)
        fds = iter(message.fds)
        return cls(
            num_blocks,
            tokens,
            pool_fd=next(fds),
            sums_fd=next(fds) if num_meetings else None,
            slots_fd=next(fds) if num_hops else None,
            meetings=tuple(Meeting.of(next(fds)) for _ in range(num_meetings)),
            hops=tuple(Link.of(next(fds)) for _ in range(num_hops)),
        )

    def close_memory(self) -> None:
        """Close the descriptors of memory; what is mapped stays."""
        for fd in self._memory:
            os.close(fd)

    def close_sockets(self) -> None:
        for each in self._sockets:
            each.close()

    @property
    def _sockets(self) -> tuple[Link | Meeting, ...]:
        return (*self.meetings, *self.hops)

    @property
    def _memory(self) -> tuple[int, ...]:
        return tuple(fd for fd in (self.pool_fd, self.sums_fd, self.slots_fd) if fd is not None)
