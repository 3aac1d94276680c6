"""Number the messages of a stream, so that a lost, repeated or reordered message ends the stream.

gRPC keeps the order while a stream lives. A proxy between two hosts, or a bug of ours, can break it without
notice; a lost command would then leave a request waiting forever on a link that looks healthy. Recovery
handles a stream that ends.
"""

from __future__ import annotations

from collections import deque


class OutOfOrder(Exception):
    """A message has the number `number` where `expected` was due."""

    def __init__(self, number: int, expected: int) -> None:
        super().__init__(
            f"number is {number}; accepted: {expected}, since messages come complete and in order"
        )
        self.number = number
        self.expected = expected


class Incoming:
    """Counts the messages that arrive in one direction."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, number: int) -> None:
        """Count the next one; raises `OutOfOrder`."""
        if number != self.taken + 1:
            raise OutOfOrder(number, self.taken + 1)
        self.taken = number


class Outgoing:
    """Numbers the messages sent in one direction. `now` comes from any clock that never runs backwards."""

    def __init__(self) -> None:
        self._sent = 0
        self._unacknowledged_since: deque[float] = deque()
        self._progressed_at = float("-inf")

    def next(self, now: float) -> int:
        """Return the number of a message that is sent now."""
        self._sent += 1
        self._unacknowledged_since.append(now)
        return self._sent

    def restart_timeout(self, now: float) -> None:
        """Restart the clock: the other side could take nothing until now."""
        self._progressed_at = now

    def acknowledge(self, num_taken: int, now: float) -> None:
        """Record how many messages the other side has taken. An older count changes nothing."""
        while self._unacknowledged_since and self._sent - len(self._unacknowledged_since) < num_taken:
            self._unacknowledged_since.popleft()
            self._progressed_at = now

    def waited(self, now: float) -> float:
        """Return how long a message has waited while no other was taken either; 0 if none waits."""
        if not self._unacknowledged_since:
            return 0.0
        return now - max(self._unacknowledged_since[0], self._progressed_at)

    def lost(self, now: float, timeout: float) -> int | None:
        """Return the number of a message that is lost, or None.

        A message is lost if it was not taken for longer than `timeout`, and no other message was either.
        While messages are taken, however slowly, none is lost: a gap would have ended the stream.
        """
        if self.waited(now) > timeout:
            return self._sent - len(self._unacknowledged_since) + 1
        return None
