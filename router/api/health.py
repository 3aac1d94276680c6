"""Set the router's health: SERVING if a request sent now could run."""

from __future__ import annotations

from collections.abc import Sequence

from router.links.shell import Shell
from services.rpc.health import WHOLE, Health


class RouterHealth:
    """Keeps the health service up to date.

    The inference service, and the router as a whole, are SERVING while a request could be queued and run. The
    other services are SERVING for as long as the router runs.
    """

    def __init__(self, health: Health, shell: Shell, inference: str, others: Sequence[str]) -> None:
        self._health = health
        self._shell = shell
        self._inference = inference
        self._others = others

    async def run(self) -> None:
        """Update the health at each tick until cancelled."""
        while True:
            await self._shell.ticker.next()
            await self.update()

    async def update(self) -> None:
        """Set the current health."""
        await self._health.set_status((WHOLE, self._inference), serving=self._shell.serves)
        await self._health.set_status(self._others, serving=True)

    async def leave(self) -> None:
        """Report NOT_SERVING from now on: this router takes nothing new."""
        await self._health.leave()
