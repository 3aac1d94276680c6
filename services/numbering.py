"""Every message of a stream has a number: one that is lost, repeated or overtaken ends the stream.

gRPC keeps order for as long as a stream lives. What stands between two hosts, or a mistake of ours, can break
that unseen, and then a lost command leaves a request waiting for ever on a link that looks healthy. A stream
that ends is what recovery knows.
"""

from __future__ import annotations

from collections import deque

UNHEARD_S = 6.0
"""A message that the other side has not taken for so long, though it speaks, is lost. Longer than a silence
that is tolerated: who was stopped and wakes says what it had to say, and then reads."""


class OutOfOrder(Exception):
    """A message came where another was due: `found`, `expected`."""

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(
            f"number is {found}; accepted: {expected}, since messages come complete and in order"
        )
        self.found = found
        self.expected = expected


class Incoming:
    """The messages of one direction as they are taken."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, number: int) -> None:
        """Count the next one; raises `OutOfOrder`."""
        if number != self.taken + 1:
            raise OutOfOrder(number, self.taken + 1)
        self.taken = number


class Outgoing:
    """The messages of one direction as they are sent. `now` is in seconds."""

    def __init__(self) -> None:
        self._sent = 0
        self._unheard: deque[float] = deque()

    def next(self, now: float) -> int:
        """The number of a message that leaves now."""
        self._sent += 1
        self._unheard.append(now)
        return self._sent

    def lost(self, taken: int, now: float) -> int | None:
        """The number of a message that is lost, given how many the other side says it has taken."""
        while self._unheard and self._sent - len(self._unheard) < taken:
            self._unheard.popleft()
        if self._unheard and now - self._unheard[0] > UNHEARD_S:
            return self._sent - len(self._unheard) + 1
        return None
