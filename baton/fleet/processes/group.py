"""The processes of one fleet by name: start them, notice their deaths, let them leave, stop them all."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

from baton.fleet.processes import events
from baton.fleet.processes.process import ManagedProcess, ProcessSpec
from baton.fleet.processes.reaper import Reaper

MakeProcess = Callable[[ProcessSpec, Path, Reaper], ManagedProcess]

_REPORT_PERIOD_S = 1.0
# Beyond the services' own grace, for their last lines.
_KILL_MARGIN_S = 2.0


class ProcessGroup:
    """Starts and stops processes between `open` and `stop`. `on_event` is called on the event loop."""

    def __init__(
        self, on_event: Callable[[events.FleetEvent], None], make_process: MakeProcess, standstill_s: float
    ) -> None:
        self._on_event = on_event
        self._make_process = make_process
        self._standstill_s = standstill_s
        self._by_name: dict[str, ManagedProcess] = {}
        self._deaths: asyncio.Queue[events.ProcessDied] = asyncio.Queue()
        self._watches: dict[ManagedProcess, asyncio.Task[None]] = {}
        self._leaving: set[ManagedProcess] = set()
        """Processes that are being stopped, and processes whose name a successor has taken."""
        self._stopping = False
        self._reaper: Reaper | None = None
        self._log_dir = Path()

    @property
    def processes(self) -> tuple[ManagedProcess, ...]:
        return tuple(self._by_name.values())

    def process(self, name: str) -> ManagedProcess:
        """Return a process by name. Raises `KeyError` naming the existing ones."""
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(f"no process {name!r}: there are {', '.join(self._by_name)}") from None

    async def next_death(self) -> events.ProcessDied:
        """Wait for the next process that ends without having been stopped."""
        return await self._deaths.get()

    def open(self, log_dir: Path, claim: int) -> None:
        """Start the reaper, which ends the processes even if this one is killed, and then drops a claim."""
        self._log_dir = log_dir
        self._reaper = Reaper(claim)

    def remove_at_the_end(self, folder: Path) -> None:
        """Let the reaper remove a folder after the processes have ended."""
        assert self._reaper is not None, "not open"
        self._reaper.remove_at_the_end(folder)

    async def start_all(self, specs: list[ProcessSpec]) -> None:
        """Start processes and wait until all are ready. The first failure ends the waiting."""
        started = [await self._spawn(spec) for spec in specs]
        waits = [asyncio.create_task(self._wait_ready(process)) for process in started]
        try:
            await asyncio.gather(*waits)
        finally:
            for wait in waits:
                wait.cancel()
        self._watches |= {process: asyncio.create_task(self._watch(process)) for process in started}

    async def run_once(self, spec: ProcessSpec) -> str:
        """Run a process that ends once it is ready. Return the address that it has reported."""
        process = await self._spawn(spec)
        await self._wait_ready(process)
        await process.wait()
        await self.forget(process)
        del self._by_name[spec.name]
        return process.address

    async def retire(self, process: ManagedProcess, grace_s: float) -> float:
        """Let a process leave within `grace_s`, and return the seconds until it had ended."""
        self._leaving.add(process)
        began = time.monotonic()
        await process.stop(grace_s + _KILL_MARGIN_S)
        await self.forget(process)
        return time.monotonic() - began

    async def forget(self, process: ManagedProcess) -> None:
        """Kill what still runs of a process, and forget it once its death has been reported."""
        await process.close()
        watch = self._watches.pop(process, None)
        if watch is not None:  # it has served
            await watch
        self._leaving.discard(process)

    def expect_successor(self, old: ManagedProcess) -> None:
        """Let a successor take the name of a running process, which is still stopped with the group."""
        if old.running:
            self._leaving.add(old)

    async def restore(self, old: ManagedProcess) -> None:
        """End a successor that did not start, and give `old` its name back if it still runs."""
        failed = self.process(old.name)
        self._leaving.discard(old)
        if failed is old:
            return
        self._leaving.add(failed)
        if old.running:
            self._by_name[old.name] = old
        await self.forget(failed)

    def report_death(self, process: ManagedProcess) -> None:
        """Report a process that has ended as an event and by `next_death`."""
        assert process.exit_code is not None
        death = events.ProcessDied(process.name, process.exit_code, process.log_path, process.log_tail())
        self._deaths.put_nowait(death)
        self._on_event(death)

    async def stop(self, grace_s: float) -> None:
        """End everything: gateways first, then the other services, then Redis. A second call does nothing."""
        if self._reaper is None:
            return
        reaper, self._reaper = self._reaper, None
        self._stopping = True
        # Shielded, so that a second Ctrl-C cannot leave half a fleet; the reaper would end it anyway.
        await _finish(asyncio.ensure_future(self._stop_processes(grace_s + _KILL_MARGIN_S)))
        await asyncio.to_thread(reaper.close)

    async def _stop_processes(self, grace_s: float) -> None:
        everything = {*self.processes, *self._leaving}
        running = [process for process in everything if process.running]
        self._on_event(events.FleetStopping(len(running)))
        for _, leaving in itertools.groupby(sorted(running, key=_stops), _stops):
            await asyncio.gather(*(process.stop(grace_s) for process in leaving))
        await asyncio.gather(*(process.close() for process in everything))
        await asyncio.gather(*self._watches.values())

    async def _spawn(self, spec: ProcessSpec) -> ManagedProcess:
        assert self._reaper is not None, "not open"
        process = self._make_process(spec, self._log_dir / f"{spec.name}.log", self._reaper)
        await process.start()
        self._by_name[spec.name] = process
        self._on_event(events.ProcessStarted(spec.name, process.pid))
        return process

    async def _wait_ready(self, process: ManagedProcess) -> None:
        reporting = asyncio.create_task(self._report_progress(process))
        try:
            took_s = await process.wait_ready(self._standstill_s)
        finally:
            reporting.cancel()
        self._on_event(events.ProcessReady(process.name, process.address, took_s))

    async def _report_progress(self, process: ManagedProcess) -> None:
        while True:
            await process.next_progress(_REPORT_PERIOD_S)
            self._on_event(events.ProcessStarting(process.name, process.progress, process.silent_s))

    async def _watch(self, process: ManagedProcess) -> None:
        await process.wait()
        if not self._stopping and process not in self._leaving:
            self.report_death(process)


def _stops(process: ManagedProcess) -> int:
    """Return its turn in a stop: clients of others before those that they call."""
    kind = process.name.partition("-")[0]
    return {"gateway": 0, "redis": 2}.get(kind, 1)


async def _finish(work: asyncio.Future[None]) -> None:
    """Wait for `work` to its end even if cancelled, and pass the cancellation on afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError as cancel:
            cancelled = cancel
    with contextlib.suppress(asyncio.CancelledError):
        work.result()
    if cancelled is not None:
        raise cancelled
