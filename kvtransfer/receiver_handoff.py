"""The receiver's half of a handoff, without any I/O: here offered hashes and checksums are compared.

Its states are drawn in `handoff.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvtransfer.errors import LayoutMismatchError, ProtocolError
from kvtransfer.manifest import Commit, Manifest, Offer
from scheduling.columns import TokenColumns
from scheduling.request import Fence


class ReceivedState(enum.Enum):
    EXPECTED = "expected"
    OFFERED = "offered"
    VERIFIED = "verified"
    CORRUPT = "corrupt"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One block to fetch, from the sender's pool into ours."""

    index: int
    sender_block: int
    target_block: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A block whose hash or checksum, as `what` says, is wrong."""

    index: int
    what: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class ReceiveTask:
    """The blocks of one sequence to receive; the first `num_held` are held already."""

    fence: Fence
    source_address: str
    blocks: Sequence[int]
    hashes: Sequence[bytes]
    num_held: int
    behind: Any = None
    """The engine's mark: once reached, nothing else writes to the blocks."""
    borrows_s: float | None = None
    """How long to wait for blocks that are borrowed; None: an attempt hands them over."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """The outcome of a loan."""

    num_blocks: int
    """Leading blocks that may be used."""
    num_corrupt_blocks: int
    wait_s: float
    """Seconds until the lender had the blocks, or had said that it has none."""
    transport: str
    error: Exception | None
    """Why not all of the blocks came: a KVTransferError, or a TimeoutError. None if only fewer were there."""


@dataclass(frozen=True, slots=True)
class ReceiveResult:
    num_verified_blocks: int
    """Leading blocks that may be used, held ones included."""
    num_corrupt_blocks: int
    num_bytes: int
    transport: str
    first_tokens: TokenColumns
    total_s: float
    """First fetch to acknowledgement."""
    exposed_s: float
    """The part after the sender was done, which a client would have waited for."""


class ReceiverHandoff:
    """The receiver's half: which blocks to fetch, which came, and how many may be used."""

    def __init__(self, fence: Fence, blocks: Sequence[int], hashes: Sequence[bytes], num_held: int) -> None:
        assert len(blocks) == len(hashes), (len(blocks), len(hashes))
        assert 0 <= num_held <= len(blocks), num_held
        self.fence = fence
        self.num_held = num_held
        self.committed: Commit | None = None
        self.mismatches: list[Mismatch] = []
        self._blocks = blocks
        self._hashes = hashes
        self._states = [ReceivedState.HELD] * num_held + [ReceivedState.EXPECTED] * (len(blocks) - num_held)
        self._first_bad = len(blocks)

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    def state(self, index: int) -> ReceivedState:
        return self._states[index]

    def check_manifest(self, manifest: Manifest, block_size: int, block_bytes: int) -> None:
        """Raise LayoutMismatchError unless both sides mean the same blocks."""
        for field, found, expected in (
            ("num_blocks", manifest.num_blocks, self.num_blocks),
            ("block_size", manifest.block_size, block_size),
            ("block_bytes", manifest.block_bytes, block_bytes),
        ):
            if found != expected:
                raise LayoutMismatchError(field, found, expected)

    def shorten(self, num_blocks: int) -> None:
        """Expect only the first `num_blocks`, as a lender has no more.

        Raises LayoutMismatchError for none, or for more than were wanted.
        """
        if not 1 <= num_blocks <= self.num_blocks:
            raise LayoutMismatchError("num_blocks", num_blocks, f"1 to {self.num_blocks}")
        self._blocks, self._hashes = self._blocks[:num_blocks], self._hashes[:num_blocks]
        self._states, self._first_bad = self._states[:num_blocks], num_blocks

    def take(self, offer: Offer) -> list[BlockCopy]:
        """Take in an offer, in any order, and return the blocks to fetch: none after a bad block."""
        copies: list[BlockCopy] = []
        columns = (offer.indexes, offer.sender_blocks, offer.block_hashes, offer.checksums)
        if len({len(column) for column in columns}) != 1:
            raise ProtocolError(
                f"columns of an offer differ in length: {[len(column) for column in columns]}"
            )
        for index, sender_block, block_hash, checksum in zip(*columns, strict=True):
            self._expect_offer(index)
            if block_hash != self._hashes[index]:
                self._mark_corrupt(index, "hash", self._hashes[index].hex(), block_hash.hex())
                continue
            self._states[index] = ReceivedState.OFFERED
            copies.append(BlockCopy(index, sender_block, self._blocks[index], checksum))
        return [copy for copy in copies if copy.index < self._first_bad]

    def wants(self, copy: BlockCopy) -> bool:
        """Return whether `copy` is still of use."""
        return copy.index < self._first_bad

    def put_checksum(self, copy: BlockCopy, found: int) -> bool:
        """Take in the checksum of the private copy, and return whether it is right."""
        assert self._states[copy.index] is ReceivedState.OFFERED, (copy, self._states[copy.index])
        if found != copy.checksum:
            self._mark_corrupt(copy.index, "checksum", f"{copy.checksum:016x}", f"{found:016x}")
            return False
        self._states[copy.index] = ReceivedState.VERIFIED
        return True

    def commit(self, commit: Commit) -> None:
        """Take in the commit. Raises ProtocolError if blocks are missing or a commit came before."""
        if self.committed is not None:
            raise ProtocolError(f"{self.fence.request_id}: committed twice")
        if ReceivedState.EXPECTED in self._states:
            raise ProtocolError(
                f"block {self._states.index(ReceivedState.EXPECTED)} committed but not offered"
            )
        self.committed = commit

    @property
    def is_settled(self) -> bool:
        """True once nothing is left to wait for: committed, and every block that counts has been checked."""
        return self.committed is not None and ReceivedState.OFFERED not in self._states[: self._first_bad]

    @property
    def num_verified_blocks(self) -> int:
        """Leading blocks with the right content, held ones included."""
        good = (ReceivedState.HELD, ReceivedState.VERIFIED)
        return next((i for i, state in enumerate(self._states) if state not in good), self.num_blocks)

    def _expect_offer(self, index: int) -> None:
        if not 0 <= index < self.num_blocks:
            raise ProtocolError(f"block {index} offered; the sequence has {self.num_blocks}")
        if self._states[index] is not ReceivedState.EXPECTED:
            raise ProtocolError(f"block {index} offered, which is {self._states[index].value}")

    def _mark_corrupt(self, index: int, what: str, expected: str, found: str) -> None:
        self._states[index] = ReceivedState.CORRUPT
        self._first_bad = min(self._first_bad, index)
        self.mismatches.append(Mismatch(index, what, expected, found))
