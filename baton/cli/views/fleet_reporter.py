"""Print the start, the events and the stop of a fleet."""

from __future__ import annotations

import signal
import time
from typing import Self

from rich.console import Console
from rich.text import Text

from baton.fleet import FleetEvent
from baton.fleet.processes import events

_SILENT_S = 10.0
"""Seconds of silence after which a starting process is named."""
_LINES_EVERY_S = 10.0
"""Seconds between reports of a start's progress when there is no terminal."""


class FleetReporter:
    """Takes the launcher's events; shows a spinner for what it waits for, and a line for what is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._awaited: dict[str, str] = {}
        """Starting processes, and the progress of each."""
        self._named: set[str] = set()
        """Processes that were reported as standing still and have not moved since."""
        self._told_at = time.monotonic()
        self._status = console.status("")
        self._stopping = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()
        if self._stopping:  # whatever ended it: the launcher has returned, so it is true
            self._console.print(Text("All processes have stopped."))

    def __call__(self, event: FleetEvent) -> None:
        match event:
            case events.ProcessStarted(name=name):
                self._awaited[name] = ""
                self._wait_for_starts()
            case events.ProcessStarting():
                self._starting(event)
            case events.ProcessReady():
                self._ready(event)
            case events.WorkersJoined(workers=workers):
                counted = "1 worker" if workers == 1 else f"{workers} workers"
                self._line("✓", "green", "fleet", f"{counted} joined")
                self.rest()
            case events.ProcessDied():
                self._died(event)
            case events.ProcessRestarting(name=name, pause_s=pause_s):
                self._line("↻", "yellow", name, f"is started again in {pause_s:g} s")
            case events.ProcessRestarted(name=name):
                self._line("✓", "green", name, "serves again")
                if not self._awaited:
                    self.rest()
            case events.ProcessReplaced(name=name, left_s=left_s):
                self._line("✓", "green", name, f"replaced; the former one left in {left_s:.1f} s")
                self.rest()
            case events.ReplacementFailed(name=name, reason=reason):
                self._awaited.pop(name, None)
                self._line("✗", "red", name, f"not replaced, and serves on: {reason}")
                self.rest()
            case events.FleetStopping(processes=processes):
                self._stopping = True
                self._wait_for(f"stopping {processes} processes")

    def rest(self) -> None:
        """No spinner until the next event that needs one."""
        self._status.stop()

    def _wait_for(self, what: str) -> None:
        if self._console.is_terminal:
            self._status.update(what)
            self._status.start()

    def _ready(self, event: events.ProcessReady) -> None:
        self._awaited.pop(event.name, None)
        self._line("✓", "green", event.name, f"{event.address:<22} {event.took_s:5.1f} s")
        self._wait_for_starts()

    def _wait_for_starts(self) -> None:
        doings = [f"{name} ({doing})" if doing else name for name, doing in self._awaited.items()]
        self._wait_for(f"starting {', '.join(doings)}" if doings else "waiting for workers to join")

    def _starting(self, event: events.ProcessStarting) -> None:
        is_still = event.silent_s > _SILENT_S
        if event.name not in self._awaited:
            return
        doing = f"{event.doing}, no word for {event.silent_s:.0f} s" if is_still else event.doing
        self._awaited[event.name] = doing
        self._wait_for_starts()
        if is_still and event.name not in self._named:
            self._named.add(event.name)
            self._line("!", "yellow", event.name, f"stands still: {doing}")
        elif not is_still:
            self._named.discard(event.name)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._told_at >= _LINES_EVERY_S:
            self._told_at = now
            for name, at in self._awaited.items():
                self._line("…", "dim", name, at)

    def _died(self, event: events.ProcessDied) -> None:
        self._awaited.pop(event.name, None)
        if not self._awaited:
            self.rest()
        self._line("✗", "red", event.name, event.meaning)
        killed = event.exit_code == -signal.SIGKILL  # which leaves no time for last words
        for line in event.tail.splitlines() if not killed else ():
            self._console.print(Text(f"  | {line}", style="dim"), soft_wrap=True)
        self._console.print(Text(f"  its log is {event.log_path}"), soft_wrap=True)

    def _line(self, mark: str, style: str, name: str, rest: str) -> None:
        self._console.print(Text.assemble((mark, style), " ", (f"{name:<10} ", "bold"), rest), soft_wrap=True)
