"""Every message of a stream has a number: one that is lost, repeated or overtaken ends the stream.

gRPC keeps order for as long as a stream lives. What stands between two hosts, or a mistake of ours, can break
that unseen, and then a lost command leaves a request waiting for ever on a link that looks healthy. A stream
that ends is what recovery knows.
"""

from __future__ import annotations

from collections import deque


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
    """The messages of one direction as they are sent. `now` is of any clock that never runs backwards."""

    def __init__(self) -> None:
        self._sent = 0
        self._unheard: deque[float] = deque()
        self._moved_at = float("-inf")

    def next(self, now: float) -> int:
        """The number of a message that leaves now."""
        self._sent += 1
        self._unheard.append(now)
        return self._sent

    def excuse(self, now: float) -> None:
        """Restart the clock: the other side could take nothing until now."""
        self._moved_at = now

    def hear(self, taken: int, now: float) -> None:
        """Learn how many messages the other side has taken. An older count changes nothing."""
        while self._unheard and self._sent - len(self._unheard) < taken:
            self._unheard.popleft()
            self._moved_at = now

    def waited(self, now: float) -> float:
        """Return how long a message has waited while no other was taken either; 0 if none waits."""
        return now - max(self._unheard[0], self._moved_at) if self._unheard else 0.0

    def lost(self, now: float, patience: float) -> int | None:
        """Return the number of a message that is lost, or None.

        A message is lost if it was not taken for longer than `patience`, and no other message was either.
        Where messages are taken, however slowly, none is lost: a gap would have ended the stream.
        """
        if self.waited(now) > patience:
            return self._sent - len(self._unheard) + 1
        return None
