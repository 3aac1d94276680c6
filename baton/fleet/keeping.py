"""Keep a fleet running: restart a process that dies, after a pause.

A process that ends with exit code 0 left on request, by a signal or `Drain`, and is not restarted. Redis
always is, since nobody drains it. A process that keeps dying soon after its start ends the fleet.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections import defaultdict
from collections.abc import Callable, Sequence

from baton.fleet.launcher import Fleet, cancel
from baton.fleet.processes.errors import ProcessFailed, ProcessKeepsDying, StartTimeout
from baton.fleet.processes.events import FleetEvent, ProcessDied, ProcessRestarted, ProcessRestarting
from baton.fleet.spec import kind_of

SOON_S = 60.0
"""A process that served for a shorter time died early."""
MAX_EARLY_DEATHS = 5
"""After one more early death in a row, a process is not restarted."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


def pause_s(served_s: Sequence[float]) -> float | None:
    """Return the seconds to wait before the next start of a process, or None if it is not restarted.

    `served_s` lists how long each former process of its name served, the latest last; 0 if it never served.
    """
    num_early = len(list(itertools.takewhile(lambda served: served < SOON_S, reversed(served_s))))
    if num_early > MAX_EARLY_DEATHS:
        return None
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** max(0, num_early - 1))


class Keeper:
    """Restarts processes that die; without `restarts` it only watches. Calls `on_event` with its actions."""

    def __init__(
        self, fleet: Fleet, on_event: Callable[[FleetEvent], None], *, restarts: bool = True
    ) -> None:
        self._fleet = fleet
        self._on_event = on_event
        self._restarts = restarts
        self._served_s: defaultdict[str, list[float]] = defaultdict(list)
        self._returning: set[asyncio.Task[None]] = set()
        self._gone: set[str] = set()
        """Names of processes that ended and are not restarted."""

    async def keep(self) -> None:
        """Watch until the remaining processes cannot serve. Raises `ProcessKeepsDying`."""
        dying = asyncio.create_task(self._fleet.next_death())
        try:
            while self._is_useful():
                await asyncio.wait({dying, *self._returning}, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in self._returning if task.done()]:
                    self._returning.discard(task)
                    task.result()
                if dying.done():
                    self._handle(dying.result())
                    dying = asyncio.create_task(self._fleet.next_death())
        finally:
            await cancel([dying, *self._returning])

    def _is_useful(self) -> bool:
        processes = self._fleet.processes
        names = [process.name for process in processes if process.running or process.name not in self._gone]
        return all(any(name.startswith(kind) for name in names) for kind in ("router-", "decode-"))

    def _handle(self, death: ProcessDied) -> None:
        left_on_request = death.exit_code == 0 and kind_of(death.name) != "redis"
        if self._restarts and not left_on_request:
            self._returning.add(asyncio.create_task(self._revive(death)))
        else:
            self._gone.add(death.name)

    async def _revive(self, death: ProcessDied) -> None:
        name = death.name
        served_s = self._served_s[name]
        served_s.append(self._fleet.process(name).served_s)
        while True:
            wait_s = pause_s(served_s)
            if wait_s is None:
                times = MAX_EARLY_DEATHS + 1
                raise ProcessKeepsDying(name, death.log_path, death.tail, death.exit_code, times)
            self._on_event(ProcessRestarting(name, wait_s))
            await asyncio.sleep(wait_s)
            if self._fleet.process(name).running:  # an order has replaced it meanwhile
                return
            try:
                await self._fleet.revive(name)
            except (ProcessFailed, StartTimeout) as error:
                served_s.append(0.0)
                # A start that stands still is ended.
                exit_code = error.exit_code if isinstance(error, ProcessFailed) else -signal.SIGKILL
                death = ProcessDied(name, exit_code, error.log_path, error.tail)
                self._on_event(death)
            else:
                self._on_event(ProcessRestarted(name))
                return
