"""How a worker handles SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal


class StopSignals:
    """Sets `stop` at the first signal once `serving`; before that a signal ends the process."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.serving = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if not self.serving:
            os._exit(0)
        if self.stop.is_set():
            os._exit(128 + number)  # the second signal ends at once
        self.stop.set()
