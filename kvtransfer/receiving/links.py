"""How fast blocks come from other workers, by the fetches of the last half minute."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

FORGET_S = 30.0
"""Measurements are forgotten after this time: a slow link may be fast again, and to find out takes no longer
than computing.
"""
MOST_SOURCES = 8
"""Workers whose speed is remembered: those fetched from last."""
# Assumed until something was fetched, and again when nothing was fetched for some time.
ASSUMED_WAIT_S = 0.01
ASSUMED_BYTES_PER_S = 1e9
_ASSUMED_BYTES = 16e6


@dataclass(frozen=True, slots=True)
class LinkState:
    """How fast a worker fetches blocks now."""

    wait_s: float
    """From a request until the first block comes."""
    block_s: float
    """For each block. Both over all sources."""
    by_source: dict[str, tuple[float, float]]
    """The two for each source fetched from lately, by incarnation."""


@dataclass(slots=True, eq=False)
class Fetch:
    """A fetch under way."""

    source: str
    num_blocks: int
    began_at: float
    expected_s: float


class _Speed:
    """The average speed of a link; each measurement halves the weight of all before it."""

    def __init__(self) -> None:
        self._bytes, self._seconds = _ASSUMED_BYTES, _ASSUMED_BYTES / ASSUMED_BYTES_PER_S
        self.wait_s = ASSUMED_WAIT_S
        self.measured_at = float("-inf")

    def observe(self, wait_s: float, num_bytes: int, seconds: float, now: float) -> None:
        self.wait_s = (self.wait_s + wait_s) / 2
        self._bytes = self._bytes / 2 + num_bytes
        self._seconds = self._seconds / 2 + seconds
        self.measured_at = now

    @property
    def seconds_per_byte(self) -> float:
        return self._seconds / self._bytes


class Links:
    """Implements `engine.core.groups.incoming.KVLinks` for blocks of `block_bytes`; for any thread."""

    def __init__(self, block_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._block_bytes = block_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._all = _Speed()
        self._by_source: OrderedDict[str, _Speed] = OrderedDict()
        """The one fetched from last at the end."""
        self._fetches: dict[Fetch, None] = {}

    def fetch_s(self, incarnation: str, num_blocks: int) -> float:
        """Return how long it is expected to take from now on to fetch so many blocks from a process."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            wait_s = self._speed_of(incarnation).wait_s + self._busy_s(now)
            return wait_s + num_blocks * self._block_s(incarnation)

    def state(self) -> LinkState:
        """Return what the fleet is told."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            busy_s, by_source = self._busy_s(now), dict[str, tuple[float, float]]()
            for source, speed in self._by_source.items():
                by_source[source] = speed.wait_s + busy_s, self._block_s(source)
            return LinkState(self._all.wait_s + busy_s, self._block_s(""), by_source)

    def begin(self, source: str, num_blocks: int) -> Fetch:
        """Take in that a fetch begins."""
        expected_s = self.fetch_s(source, num_blocks)
        with self._lock:
            fetch = Fetch(source, num_blocks, self._clock(), expected_s)
            self._fetches[fetch] = None
            return fetch

    def cancel(self, fetch: Fetch) -> None:
        """Take in that a fetch is over which says nothing about the link."""
        with self._lock:
            del self._fetches[fetch]

    def end(self, fetch: Fetch, num_blocks: int, wait_s: float) -> None:
        """Take in that a fetch is over: so many blocks came, the first could be read after `wait_s`."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            del self._fetches[fetch]
            speed = self._by_source.setdefault(fetch.source, _Speed())
            self._by_source.move_to_end(fetch.source)
            if len(self._by_source) > MOST_SOURCES:
                self._by_source.popitem(last=False)
            seconds = max(0.0, now - fetch.began_at - wait_s)
            # A fetch that brought nothing counts as one of a block, so that it says how slow its link is. It
            # says nothing about others.
            speed.observe(wait_s, max(1, num_blocks) * self._block_bytes, seconds, now)
            if num_blocks:
                self._all.observe(wait_s, num_blocks * self._block_bytes, seconds, now)

    def _speed_of(self, source: str) -> _Speed:
        return self._by_source.get(source, self._all)

    def _block_s(self, source: str) -> float:
        return self._block_bytes * self._speed_of(source).seconds_per_byte

    def _busy_s(self, now: float) -> float:
        """Return how long a fetch that begins now is held up by others: they share the link, or one hangs."""
        hung_s = max((now - fetch.began_at - fetch.expected_s for fetch in self._fetches), default=0.0)
        return max(hung_s, sum(fetch.num_blocks * self._block_s(fetch.source) for fetch in self._fetches))

    def _forget(self, now: float) -> None:
        if now - self._all.measured_at > FORGET_S:
            self._all = _Speed()
        while self._by_source:
            source, speed = next(iter(self._by_source.items()))
            if now - speed.measured_at <= FORGET_S:
                break
            del self._by_source[source]
