"""All handoffs that a process sends: takes in the engine's reports and serves the receivers.

Lives on the event loop, except for the checksums, which are computed on a thread of their own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from kvtransfer.errors import (
    FenceBrokenError,
    UnknownFenceError,
    describe,
)
from kvtransfer.fence import ChoiceKey, FenceGuard, RouterKey, check_source, choice_key, router_key
from kvtransfer.handoff import End, Outcome, SenderHandoff, SenderLimits
from kvtransfer.manifest import Commit, Offer, SenderAbort
from kvtransfer.pools.pool import BlockSource, Publication
from runtime.process.threads import started_executor
from scheduling.request import Fence

log = structlog.get_logger()

AttemptKey = tuple[ChoiceKey, RouterKey, int, int, int]
REMEMBERED_OUTCOMES = 4096
"""Outcomes kept so that a repeated or late acknowledgement is not taken for an unknown one."""


@dataclass(slots=True)
class Sending:
    """A handoff that is not over, and the engine's handle of its sequence."""

    handle: int
    handoff: SenderHandoff
    source: BlockSource | None = None
    """Where its blocks are read from, once known."""
    unpublished: list[Publication] = field(default_factory=list)
    """Publications that wait for `source`."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    timer: asyncio.TimerHandle | None = None


def _attempt_key(fence: Fence) -> AttemptKey:
    return (choice_key(fence, fence.choice), router_key(fence), fence.session, fence.run, fence.attempt)


class Handoffs:
    """`on_over(handle, outcome)` is called once per handoff, when the sender may free its blocks.

    Receivers that reach the source `on_device`, if there is one, read from it. Which source a receiver reads
    is then known only when it opens the handoff, and nothing is published before.
    """

    def __init__(
        self,
        incarnation: str,
        source: BlockSource,
        guard: FenceGuard,
        on_over: Callable[[int, Outcome], None],
        limits: SenderLimits | None = None,
        on_device: BlockSource | None = None,
    ) -> None:
        self._incarnation = incarnation
        self._source = source
        self._on_device = on_device
        self._guard = guard
        self._on_over = on_over
        self._limits = limits or SenderLimits()
        self._loop = asyncio.get_running_loop()
        self._by_handle: dict[int, Sending] = {}
        self._by_attempt: dict[AttemptKey, Sending] = {}
        self._ended: OrderedDict[AttemptKey, tuple[Fence, Outcome]] = OrderedDict()
        self._executor = started_executor(1, "kv-checksum")

    def __len__(self) -> int:
        return len(self._by_handle)

    def close(self) -> None:
        for handle in list(self._by_handle):
            self.abort(handle, "the sender stops")
        for source in filter(None, (self._source, self._on_device)):
            source.close()
        self._executor.shutdown(cancel_futures=True)

    # The engine's side.

    def begin(self, handle: int, fence: Fence, num_blocks: int, limits: SenderLimits | None = None) -> None:
        """Begin the handoff of a sequence of `num_blocks` blocks, under other limits if some are given."""
        entry = Sending(handle, SenderHandoff(fence, num_blocks, self._loop.time(), limits or self._limits))
        self._by_handle[handle] = entry
        self._by_attempt[_attempt_key(fence)] = entry
        if self._on_device is None:
            self._choose_source(entry, self._source)
        self._arm(entry)

    def fill(
        self,
        handle: int,
        first_index: int,
        blocks: Sequence[int],
        hashes: Sequence[bytes],
        behind: Any = None,
    ) -> None:
        """Take in blocks that have their final content, once the mark `behind` is reached if it is given.

        They are offered once their source is known, they can be read, and their checksums are computed.
        """
        entry = self._by_handle.get(handle)
        if entry is None:
            return
        ready = partial(self._on_readable, entry, first_index, hashes)
        publication = Publication(first_index, blocks, behind, ready, partial(self._on_failed, entry))
        if entry.source is None:
            entry.unpublished.append(publication)
        else:
            entry.source.publish(handle, publication)

    def commit(self, handle: int, commit: Commit) -> None:
        """Take in the commit: the prompt is complete and its first tokens are known."""
        entry = self._by_handle.get(handle)
        if entry is not None:
            entry.handoff.commit(commit)
            entry.changed.set()

    def abort(self, handle: int, reason: str) -> None:
        """Abort a handoff; do nothing if it is already over."""
        entry = self._by_handle.get(handle)
        if entry is not None and entry.handoff.abort(reason):
            self._conclude(entry)

    # The receiver's side; every method raises FenceError for an attempt that is not valid here.

    def open(self, fence: Fence, num_held: int, *, reaches_device: bool = False) -> Sending:
        entry = self.find(fence)
        entry.handoff.open(fence, num_held)
        self._arm(entry)
        if entry.source is None:
            source = self._on_device if reaches_device else self._source
            assert source is not None, fence
            self._choose_source(entry, source)
        return entry

    async def events(self, entry: Sending) -> AsyncIterator[Offer | Commit | SenderAbort]:
        """Yield the events of an opened handoff as they come, until its commit or abort."""
        while True:
            entry.changed.clear()
            while (offer := entry.handoff.take_offer()) is not None:
                yield offer
            if entry.handoff.outcome is not None:
                yield SenderAbort(entry.handoff.outcome.reason)
                return
            if (commit := entry.handoff.take_commit(self._loop.time())) is not None:
                self._arm(entry)
                yield commit
                return
            await entry.changed.wait()

    def acknowledge(self, fence: Fence, num_corrupt_blocks: int) -> None:
        """Take in an acknowledgement; a repeat is ignored."""
        ended = self._ended.get(_attempt_key(fence))
        if ended is not None and ended[0] == fence and ended[1].end is End.ACKNOWLEDGED:
            return
        entry = self.find(fence)
        if entry.handoff.acknowledge(fence, num_corrupt_blocks):
            self._conclude(entry)

    def give_up(self, fence: Fence, reason: str) -> None:
        """End a handoff that the receiver gives up; a repeated or late call is ignored."""
        if _attempt_key(fence) in self._ended:
            return
        entry = self.find(fence)
        entry.handoff.locate(fence, ())  # raises if it is not the receiver's call
        if entry.handoff.abort(reason, End.GIVEN_UP):
            self._conclude(entry)

    def is_known(self, fence: Fence) -> bool:
        """Return whether this fence has, or lately had, a handoff here."""
        key = _attempt_key(fence)
        return key in self._by_attempt or key in self._ended

    def find(self, fence: Fence) -> Sending:
        check_source(fence, self._incarnation)
        key = _attempt_key(fence)
        if key in self._ended:
            _, outcome = self._ended[key]
            raise FenceBrokenError(fence, outcome.reason or outcome.end.value)
        if key in self._by_attempt:
            return self._by_attempt[key]
        self._guard.check(fence)
        raise UnknownFenceError(fence)

    def _choose_source(self, entry: Sending, source: BlockSource) -> None:
        """Read the handoff's blocks from `source`; what waited for that is published now."""
        entry.source = source
        source.begin(entry.handle, entry.handoff.num_blocks)
        unpublished, entry.unpublished = entry.unpublished, []
        for publication in unpublished:
            source.publish(entry.handle, publication)

    def _on_readable(
        self, entry: Sending, first_index: int, hashes: Sequence[bytes], places: Sequence[int]
    ) -> None:
        assert entry.source is not None, entry.handle
        entry.handoff.fill(first_index, places, hashes)
        checksums = self._loop.run_in_executor(self._executor, entry.source.checksums, tuple(places))
        checksums.add_done_callback(lambda done: self._on_checksums(entry, first_index, done))

    def _on_checksums(self, entry: Sending, first_index: int, done: asyncio.Future[list[int]]) -> None:
        if done.cancelled() or entry.handoff.outcome is not None:
            return
        error = done.exception()
        if error is not None:
            self._on_failed(entry, error)
            return
        entry.handoff.put_checksums(first_index, done.result())
        entry.changed.set()

    def _on_failed(self, entry: Sending, error: BaseException) -> None:
        log.error("kv_offer_failed", fence=describe(entry.handoff.fence), exc_info=error)
        self.abort(entry.handle, f"its blocks cannot be offered: {error}")

    def _arm(self, entry: Sending) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
        deadline_s = entry.handoff.deadline_s
        entry.timer = None if deadline_s is None else self._loop.call_at(deadline_s, self._on_deadline, entry)

    def _on_deadline(self, entry: Sending) -> None:
        if entry.handoff.expire(self._loop.time()):
            self._conclude(entry)
        else:
            self._arm(entry)

    def _conclude(self, entry: Sending) -> None:
        outcome = entry.handoff.outcome
        assert outcome is not None, entry.handle
        self._arm(entry)
        entry.changed.set()
        key = _attempt_key(entry.handoff.fence)
        del self._by_handle[entry.handle], self._by_attempt[key]
        self._ended[key] = entry.handoff.fence, outcome
        if len(self._ended) > REMEMBERED_OUTCOMES:
            self._ended.popitem(last=False)
        if entry.source is not None:
            entry.source.end(entry.handle)
        self._on_over(entry.handle, outcome)
