"""The lender's side of loans: asks the engine to hold cached blocks, and hands them over like any others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvtransfer.errors import KVTransferError, ProtocolError, describe
from kvtransfer.fence import check_source
from kvtransfer.handoff import SenderLimits
from kvtransfer.manifest import Commit
from kvtransfer.sending.sender import Handoffs
from scheduling.columns import TokenColumns
from scheduling.memory.block_hash import HASH_BYTES
from scheduling.memory.disk_reads import MOST_S
from scheduling.request import Fence

MOST_LOANS = 8
"""Loans at once. A borrower that is refused computes the blocks, as it would without loans."""
MOST_HASHES = 65_536
GRACE_S = 2.0
"""How much longer than the borrower waits its blocks are kept: it may be about to acknowledge them."""


class LoanRefusedError(KVTransferError):
    """The blocks are not lent. The borrower computes them."""


@dataclass(slots=True)
class _Loan:
    fence: Fence
    limit_s: float
    held: asyncio.Future[None]
    """Done once the engine holds the blocks, or has said that it has none."""


class Lending:
    """The loans of one process. Lives on the event loop.

    `hold(handle, hashes, limit_s)` asks the engine for blocks; the caller reports the outcome by `on_held` or
    `on_refused`. `release(handle)` gives them back. Handles are new for each loan.
    """

    def __init__(
        self,
        incarnation: str,
        handoffs: Handoffs,
        new_handle: Callable[[], int],
        hold: Callable[[int, tuple[bytes, ...], float], None],
        release: Callable[[int], None],
    ) -> None:
        self._incarnation = incarnation
        self._handoffs = handoffs
        self._new_handle = new_handle
        self._hold = hold
        self._release = release
        self._loans: dict[int, _Loan] = {}

    def __len__(self) -> int:
        return len(self._loans)

    def __contains__(self, handle: int) -> bool:
        return handle in self._loans

    async def lend(self, fence: Fence, hashes: Sequence[bytes], limit_s: float) -> None:
        """Return once the handoff of a loan can be opened.

        Raises KVTransferError if the blocks are not lent, CancelledError if the borrower has left. Then
        nothing of the loan is left.
        """
        self._check(fence, hashes, limit_s)
        handle, loan = self._new_handle(), _Loan(fence, limit_s, asyncio.get_running_loop().create_future())
        self._loans[handle] = loan
        self._hold(handle, tuple(hashes), limit_s)
        try:
            async with asyncio.timeout(limit_s):
                await loan.held
        except BaseException as error:
            # What the engine reports of it from now on is ignored. A handoff that has begun is over by this.
            self._handoffs.abort(handle, "the borrower has left")
            self.on_over(handle)
            if isinstance(error, TimeoutError):
                raise LoanRefusedError(f"{describe(fence)}: not held within {limit_s:g} s") from error
            raise

    def on_held(self, handle: int, blocks: Sequence[int], hashes: Sequence[bytes], behind: Any) -> None:
        """Take in that the engine holds the blocks of a loan; ignored if the loan is over."""
        loan = self._loans.get(handle)
        if loan is None:
            return
        limits = SenderLimits(GRACE_S, loan.limit_s + GRACE_S)
        self._handoffs.begin(handle, loan.fence, len(blocks), limits)
        self._handoffs.fill(handle, 0, blocks, hashes, behind)
        self._handoffs.commit(handle, Commit(0, TokenColumns()))
        if not loan.held.done():
            loan.held.set_result(None)

    def on_refused(self, handle: int) -> None:
        """Take in that the engine has nothing to lend; ignored if the loan is over."""
        loan = self._loans.pop(handle, None)
        if loan is not None and not loan.held.done():
            loan.held.set_exception(LoanRefusedError(f"{describe(loan.fence)}: none of the blocks is there"))

    def on_over(self, handle: int) -> None:
        """Take in that the handoff of a loan is over: its blocks are given back."""
        if self._loans.pop(handle, None) is not None:
            self._release(handle)

    def _check(self, fence: Fence, hashes: Sequence[bytes], limit_s: float) -> None:
        check_source(fence, self._incarnation)
        if not 1 <= len(hashes) <= MOST_HASHES or any(len(each) != HASH_BYTES for each in hashes):
            raise ProtocolError(
                f"borrowing.block_hashes has {len(hashes)} hashes; accepted: 1 to {MOST_HASHES} of "
                f"{HASH_BYTES} bytes"
            )
        if not 0 < limit_s <= MOST_S:
            raise ProtocolError(f"borrowing.limit_ms is {limit_s * 1000:g}; accepted: 1 to {MOST_S * 1000:g}")
        if self._handoffs.is_known(fence) or any(loan.fence == fence for loan in self._loans.values()):
            raise ProtocolError(f"{describe(fence)} was used before; accepted: a fence for each loan")
        if len(self._loans) >= MOST_LOANS:
            raise LoanRefusedError(f"{len(self._loans)} loans are under way; accepted: under {MOST_LOANS}")
