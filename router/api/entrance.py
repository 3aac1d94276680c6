"""The order in which new calls begin, so that one caller's many calls hold up each other and not everyone.

gRPC hands over calls in the order of their arrival, in each turn of the event loop one. So what the loop
computes for a call delays all that arrived after it, whoever sent them. While many calls are being prepared,
further ones therefore wait: that takes almost nothing of a turn, so a call of another caller is soon handed
over. They then begin one after the other, some turns of the loop apart, with the callers taking turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from router.auth.limits import MAX_UNTAKEN_CALLS
from router.errors import Overloaded, Reason
from router.preprocess.fair_turns import FairTurns

AT_ONCE = 16
"""So many calls are prepared at once before further ones wait."""
TURNS_APART = 8
"""Turns of the event loop before a call that waited begins. In each, gRPC hands over another call, at about a
tenth of what a whole request costs: most of the time then goes to calls that have not been handed over."""
RETRY_S = 1.0


class Entrance:
    """Where calls wait before they are checked and tokenised.

    At most `max_waiting` do, of whom each caller has its share.
    """

    def __init__(self, max_waiting: int = MAX_UNTAKEN_CALLS) -> None:
        self._max_waiting = max_waiting
        self._turns = FairTurns(max_waiting)
        self._num_inside = 0

    @asynccontextmanager
    async def entered(self, caller: str) -> AsyncIterator[None]:
        """Prepare a call in the block, once it is its turn.

        Raises `Overloaded` if too many calls of the caller wait.
        """
        if self._num_inside >= AT_ONCE or self._turns.is_taken:
            await self._wait(caller)
        self._num_inside += 1
        try:
            yield
        finally:
            self._num_inside -= 1

    async def _wait(self, caller: str) -> None:
        if self._turns.is_full(caller):
            why = "too many calls of this caller wait to begin; come back when some have begun"
            raise Overloaded(Reason.ROUTER_BUSY, why, RETRY_S, limit=self._max_waiting)
        async with self._turns.turn(caller):
            for _ in range(TURNS_APART):
                await asyncio.sleep(0)
