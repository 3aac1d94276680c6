"""The errors of the store.

StoreError
├── StoreUnavailable   Redis does not respond: url, reason
│   └── StoreEvicts    Redis may forget keys when its memory is full: url, policy
└── QueueFull          the bounded queue has no place left: capacity
"""

from __future__ import annotations

NO_EVICTION = "noeviction"
"""The only `maxmemory-policy` that never drops a key."""


class StoreError(Exception):
    """Any failure of the store."""


class StoreUnavailable(StoreError):
    """Redis did not respond."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"Redis at {url} does not answer ({reason}); start one or point --redis at it")
        self.reason = reason


class StoreEvicts(StoreUnavailable):
    """Redis would drop keys when its memory is full, and with them what the fleet has agreed on."""

    def __init__(self, url: str, policy: str) -> None:
        self.reason = f"its maxmemory-policy is {policy}; accepted: {NO_EVICTION}"
        StoreError.__init__(self, f"Redis at {url} may evict keys: {self.reason}")


class QueueFull(StoreError):
    """The fleet's queue has reached its capacity."""

    def __init__(self, capacity: int) -> None:
        super().__init__(f"the fleet's queue is full: {capacity} requests are waiting")
        self.capacity = capacity
