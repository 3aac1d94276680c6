"""The handoff of one fence's blocks, without any I/O: who owns a block, and what each side may do with it.

Every block of the sender moves along this line, and only along it:

    ALLOCATED ──fill──▶ FILLED ──offer──▶ OFFERED ──commit──▶ COMMITTED ──acknowledge──▶ RELEASED
        │                  │                 │                    │                         ▲
        └──────────────────┴────break────────┘                    └───────break─────────────┘
                           ▼
                        ABORTED

ALLOCATED   reserved, being computed; only the sender's step thread writes to it
FILLED      its content is final; its checksum is being computed, or the receiver has not opened yet
OFFERED     the receiver may read it; immutable from here on
COMMITTED   readable as before, and the first tokens have been handed over: nothing is missing any more
RELEASED    the sender may reuse it: acknowledged, or the fence was broken after the commit
ABORTED     the sender may reuse it: the fence was broken before the commit

A fence breaks for good: when either side aborts, by a newer attempt, or because a deadline passed (never
opened; committed but not acknowledged). A receiver that is still copying then can do no harm: it copies into
private blocks, checks each against its checksum, and its acknowledgement is refused.

The receiver's view of the same block (`receiver_handoff.py`):

    EXPECTED ──offer──▶ OFFERED ──fetch + checksum──▶ VERIFIED        HELD: had it already, never offered
        └─────hash differs─────┴───checksum differs──▶ CORRUPT

The sequence has one owner: the sender until it accepts the acknowledgement, the receiver from then on. A
sender that is gone need not accept, since it owns nothing any more.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from kvtransfer.errors import FenceBrokenError, LayoutMismatchError, ProtocolError
from kvtransfer.fence import check_source, check_target
from kvtransfer.manifest import Commit, Offer
from scheduling.request import Fence


class BlockState(enum.Enum):
    ALLOCATED = "allocated"
    FILLED = "filled"
    OFFERED = "offered"
    COMMITTED = "committed"
    RELEASED = "released"
    ABORTED = "aborted"


TRANSITIONS: dict[BlockState, frozenset[BlockState]] = {
    BlockState.ALLOCATED: frozenset({BlockState.FILLED, BlockState.ABORTED}),
    BlockState.FILLED: frozenset({BlockState.OFFERED, BlockState.ABORTED}),
    BlockState.OFFERED: frozenset({BlockState.COMMITTED, BlockState.ABORTED}),
    BlockState.COMMITTED: frozenset({BlockState.RELEASED}),
    BlockState.RELEASED: frozenset(),
    BlockState.ABORTED: frozenset(),
}
MAX_OFFERED = 1024
"""Largest number of blocks in one offer: it must not keep either side's event loop busy for long."""
READABLE = frozenset({BlockState.OFFERED, BlockState.COMMITTED})


class End(enum.Enum):
    """How a handoff ended, as the sender sees it."""

    ACKNOWLEDGED = "acknowledged"
    ABORTED = "aborted"
    """The sender aborted it."""
    GIVEN_UP = "given_up"
    """The receiver gave it up."""
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Outcome:
    end: End
    reason: str = ""
    num_corrupt_blocks: int = 0


@dataclass(frozen=True, slots=True)
class SenderLimits:
    """How long a sender keeps blocks for a receiver that does not come, in seconds."""

    open_within_s: float = 30.0
    acknowledge_within_s: float = 30.0


class SenderHandoff:
    """The sender's half. All `now_s` arguments come from one monotonic clock."""

    def __init__(
        self, fence: Fence, num_blocks: int, now_s: float, limits: SenderLimits | None = None
    ) -> None:
        assert num_blocks > 0, num_blocks
        self.fence = fence
        self.num_held = 0
        self.outcome: Outcome | None = None
        self._limits = limits or SenderLimits()
        self.deadline_s: float | None = now_s + self._limits.open_within_s
        """When `expire` breaks the fence; None while the receiver is at work, or once the fence is broken."""
        self._opened = False
        self._commit: Commit | None = None
        self._states = [BlockState.ALLOCATED] * num_blocks
        self._places = [-1] * num_blocks
        self._hashes = [b""] * num_blocks
        self._checksums: list[int | None] = [None] * num_blocks

    @property
    def num_blocks(self) -> int:
        return len(self._states)

    @property
    def is_open(self) -> bool:
        return self._opened and self.outcome is None

    def state(self, index: int) -> BlockState:
        return self._states[index]

    def fill(self, first_index: int, places: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Note that blocks from `first_index` on have their final content.

        Ignored once the fence is broken.
        """
        if self.outcome is not None:
            return
        for index, (place, block_hash) in enumerate(zip(places, hashes, strict=True), first_index):
            self._move(index, BlockState.FILLED)
            self._places[index] = place
            self._hashes[index] = block_hash

    def put_checksums(self, first_index: int, checksums: Sequence[int]) -> None:
        """Set the checksums of filled blocks, which can be offered from then on."""
        if self.outcome is not None:
            return
        for index, checksum in enumerate(checksums, first_index):
            assert self._states[index] is BlockState.FILLED, (index, self._states[index])
            self._checksums[index] = checksum

    def commit(self, commit: Commit) -> None:
        """Set the commit, which the receiver gets after the last offer: the prompt is complete."""
        if self.outcome is None:
            assert self._commit is None, self.fence
            self._commit = commit

    def open(self, fence: Fence, num_held: int) -> None:
        """Open the handoff to a receiver that holds `num_held` blocks.

        Raises KVTransferError if it may not.
        """
        self._check(fence)
        if self._opened:
            raise ProtocolError(f"{self.fence.request_id}: opened twice")
        if num_held > self.num_blocks:
            raise LayoutMismatchError("num_held_blocks", num_held, f"at most {self.num_blocks}")
        self._opened = True
        self.deadline_s = None
        self.num_held = num_held

    def take_offer(self) -> Offer | None:
        """Return up to MAX_OFFERED blocks that can be offered and have not been; None if there are none.

        Call it until it returns None. Blocks that the receiver holds become OFFERED too, but are left out.
        """
        if not self.is_open:
            return None
        ready = [
            index
            for index, state in enumerate(self._states)
            if state is BlockState.FILLED and self._checksums[index] is not None
        ]
        held = [index for index in ready if index < self.num_held]
        offered = [index for index in ready if index >= self.num_held][:MAX_OFFERED]
        for index in held + offered:
            self._move(index, BlockState.OFFERED)
        return self._offer_of(offered)

    def take_commit(self, now_s: float) -> Commit | None:
        """Return the commit, once, when every block has been offered.

        Start the acknowledgement's deadline.
        """
        if not self.is_open or self._commit is None or self._states[0] is BlockState.COMMITTED:
            return None
        if any(state is not BlockState.OFFERED for state in self._states):
            return None
        self._move_all(BlockState.COMMITTED)
        self.deadline_s = now_s + self._limits.acknowledge_within_s
        return self._commit

    def locate(self, fence: Fence, indexes: Sequence[int]) -> list[int]:
        """Return where the blocks are in the pool. Raises KVTransferError if any may not be read now."""
        self._check(fence)
        for index in indexes:
            if not self.num_held <= index < self.num_blocks or self._states[index] not in READABLE:
                raise ProtocolError(f"block {index} of {self.fence.request_id} has not been offered")
        return [self._places[index] for index in indexes]

    def acknowledge(self, fence: Fence, num_corrupt_blocks: int) -> bool:
        """Take the acknowledgement: the receiver owns its copy and reads no more. False if it is a repeat.

        Raises KVTransferError if the receiver may not own the sequence (any more, or yet).
        """
        if self.outcome is not None and self.outcome.end is End.ACKNOWLEDGED and fence == self.fence:
            return False
        self._check(fence)
        if self._states[0] is not BlockState.COMMITTED:
            raise ProtocolError(f"{self.fence.request_id}: acknowledged before it was committed")
        self._end(Outcome(End.ACKNOWLEDGED, num_corrupt_blocks=num_corrupt_blocks))
        return True

    def abort(self, reason: str, end: End = End.ABORTED) -> bool:
        """Break the fence. Return False if the handoff was already over."""
        if self.outcome is not None:
            return False
        self._end(Outcome(end, reason))
        return True

    def expire(self, now_s: float) -> bool:
        """Break the fence if its deadline has passed, and return whether it did."""
        if self.outcome is not None or self.deadline_s is None or now_s < self.deadline_s:
            return False
        committed = self._states[0] is BlockState.COMMITTED
        self._end(Outcome(End.EXPIRED, "not acknowledged in time" if committed else "never opened"))
        return True

    def _offer_of(self, indexes: list[int]) -> Offer | None:
        if not indexes:
            return None
        checksums = [checksum for index in indexes if (checksum := self._checksums[index]) is not None]
        assert len(checksums) == len(indexes)
        return Offer(
            indexes=indexes,
            sender_blocks=[self._places[index] for index in indexes],
            block_hashes=[self._hashes[index] for index in indexes],
            checksums=checksums,
        )

    def _check(self, fence: Fence) -> None:
        check_source(fence, self.fence.source_incarnation)
        check_target(fence, self.fence.target_incarnation)
        assert fence == self.fence, (fence, self.fence)
        if self.outcome is not None:
            raise FenceBrokenError(fence, self.outcome.reason or self.outcome.end.value)

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.deadline_s = None
        committed = self._states[0] is BlockState.COMMITTED
        self._move_all(BlockState.RELEASED if committed else BlockState.ABORTED)

    def _move_all(self, state: BlockState) -> None:
        for index in range(self.num_blocks):
            self._move(index, state)

    def _move(self, index: int, state: BlockState) -> None:
        assert state in TRANSITIONS[self._states[index]], (self.fence, index, self._states[index], state)
        self._states[index] = state
