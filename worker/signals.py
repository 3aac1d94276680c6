"""SIGTERM and SIGINT, as a worker takes them."""

from __future__ import annotations

import asyncio
import os
import signal


class StopSignals:
    """`stop` is set by the first signal once `serving`; before that there is nothing to finish."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.serving = False
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_terminate)
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)

    def _on_terminate(self) -> None:
        if not self.serving:
            os._exit(0)
        self.stop.set()

    def _on_interrupt(self) -> None:
        if self.stop.is_set():
            os._exit(130)  # asked twice: at once
        self._on_terminate()
