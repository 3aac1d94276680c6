"""The errors of the store.

StoreError
├── StoreUnavailable   Redis does not respond: url, reason
└── QueueFull          the bounded queue has no place left: capacity
"""

from __future__ import annotations


class StoreError(Exception):
    """Any failure of the store."""


class StoreUnavailable(StoreError):
    """Redis did not respond."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"Redis at {url} does not answer ({reason}); start one or point --redis at it")
        self.reason = reason


class QueueFull(StoreError):
    """The fleet's queue has reached its capacity."""

    def __init__(self, capacity: int) -> None:
        super().__init__(f"the fleet's queue is full: {capacity} requests are waiting")
        self.capacity = capacity
