"""The threads of a worker's engine: one runs its steps, and one in front of it compiles grammars.

Commands come from the event loop through an inbox, and reports go back by callbacks on the event loop. While
a grammar is compiled steps go on, and sequences join them when theirs is ready.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import structlog

from engine.core.commands import Command, Decode, GrammarReady, Prefill, Receive
from engine.core.report import StepReport
from model_output.grammar.grammar import Grammars
from model_output.grammar.refusal import GrammarRefused

log = structlog.get_logger()


class Loop(Protocol):
    """The step loop as its thread sees it; see `engine.execution.step_loop`."""

    def run(
        self,
        drain: Callable[[float], Sequence[Command]],
        emit: Callable[[StepReport], None],
        stop: Callable[[], bool],
    ) -> None: ...


class Inbox:
    """Commands from any thread, drained by the step thread between two steps."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._closed = threading.Event()

    def put(self, command: Command) -> None:
        self._queue.put(command)

    def close(self) -> None:
        """Close the inbox: a waiting `drain` returns."""
        self._closed.set()
        self._queue.put(None)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def drain(self, timeout_s: float) -> list[Command]:
        """Return all commands that have come.

        Wait for the first for `timeout_s`, or until the inbox closes.
        """
        found: list[Command | None] = []
        try:
            if timeout_s > 0 and not self.is_closed:
                found.append(self._queue.get(timeout=min(timeout_s, threading.TIMEOUT_MAX)))
            while True:
                found.append(self._queue.get_nowait())
        except queue.Empty:
            return [command for command in found if command is not None]


class EngineThread:
    """Runs a step loop until stopped. `ended` gets the exception if the loop crashes."""

    def __init__(self, loop: Loop, on_report: Callable[[StepReport], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox = Inbox()
        self._loop = loop
        self._on_report = on_report
        self._events = asyncio.get_running_loop()
        self._num_turns = 0
        self._turn_began_at = 0.0
        self._is_busy = False
        self._thread = threading.Thread(target=self._run, name="step", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def turn(self) -> int | None:
        """Return the number of the turn under way; None while the loop waits for commands, or has ended."""
        return self._num_turns if self._is_busy else None

    def turn_s(self) -> float:
        """Return how long the turn under way has lasted; 0 without one."""
        return time.monotonic() - self._turn_began_at if self._is_busy else 0.0

    def submit(self, command: Command) -> None:
        self._inbox.put(command)

    async def stop(self) -> None:
        """Stop the loop; return when the step under way, if any, is over."""
        self._inbox.close()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._loop.run(self._drain, self._emit, lambda: self._inbox.is_closed)
        except BaseException as caught:  # noqa: BLE001 - the thread's top: the process logs it and ends
            error = caught
        self._is_busy = False
        self._events.call_soon_threadsafe(self._end, error)

    def _drain(self, timeout_s: float) -> list[Command]:
        self._is_busy = False
        commands = self._inbox.drain(timeout_s)
        self._num_turns += 1
        self._turn_began_at = time.monotonic()
        self._is_busy = True
        return commands

    def _emit(self, report: StepReport) -> None:
        self._events.call_soon_threadsafe(self._deliver, report)

    def _deliver(self, report: StepReport) -> None:
        try:
            self._on_report(report)
        except Exception as error:  # noqa: BLE001 - the report would be lost: the process logs it and ends
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if not self.ended.done():
            if error is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)


class GrammarThread:
    """Stands before the engine: passes each command on to `submit`, and behind it the grammar it asks for.

    Routers compile a grammar first, within limits of time and memory, and pass on none that exceeds them.
    """

    def __init__(self, grammars: Grammars, submit: Callable[[Command], None]) -> None:
        self._grammars = grammars
        self._submit = submit
        self._thread = ThreadPoolExecutor(1, "grammars")

    def submit(self, command: Command) -> None:
        self._submit(command)
        if isinstance(command, Prefill | Decode | Receive) and command.spec.sampling.grammar:
            self._thread.submit(self._prepare, command.spec.handle, command.spec.sampling.grammar)

    def stop(self) -> None:
        """Compile nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, handle: int, grammar: str) -> None:
        try:
            ready = GrammarReady(handle, self._grammars.compiled(grammar))
        except GrammarRefused as refused:
            ready = GrammarReady(handle, None, str(refused))
        except Exception as error:
            log.exception("grammar_compiler_failed", handle=handle)
            ready = GrammarReady(handle, None, f"the compiler failed with {type(error).__name__}")
        self._submit(ready)
