"""An asyncio event loop of one process, in virtual time and on that process's clock.

Tasks, futures, timeouts, events and queues of asyncio run on it unchanged. Work for threads is done on the
loop itself, after a drawn time: whoever hands it over goes on meanwhile, as with a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tests.dst.world.process import Process

T = TypeVar("T")

THREAD_S = (0.0001, 0.002)
"""How long work on a thread takes."""


class ProcessLoop:
    """The loop of one process; all it does stops when the process does.

    It has the methods of `asyncio.AbstractEventLoop` that code without sockets and signals calls.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._self: Any = self
        """Itself, as what asyncio takes for a loop."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._num_timers = 0
        self._woken_for = float("inf")
        """The time on the process's clock for which a wake-up is scheduled."""
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks so far. A process that dies drops its calls; nothing may end its coroutines in order."""
        self.failures: list[dict[str, Any]] = []
        """Errors that nobody took care of, so that they reached the loop's top."""

    # Calls

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._self, context)
        self._process.soon(self._run, handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self._self, context)
        self._num_timers += 1
        heapq.heappush(self._timers, (when, self._num_timers, handle))
        if when < self._woken_for:
            self.set_alarm()
        return handle

    def set_alarm(self) -> None:
        """Have the process woken when the next timer is due; its clock may have jumped meanwhile."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if self._timers:
            self._woken_for = self._timers[0][0]
            self._process.wake_at(self._woken_for, self._ring)
        else:
            self._woken_for = float("inf")

    def _ring(self) -> None:
        now = self.time() + 1e-9
        while self._timers and self._timers[0][0] <= now:
            handle = heapq.heappop(self._timers)[2]
            if not handle.cancelled():
                self._process.soon(self._run, handle)
        self.set_alarm()

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self.within(handle._run)

    def within(self, call: Callable[..., T], *args: Any) -> T:
        """Make a call as if from this loop, and return its result."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._self)  # how a loop makes itself known
        try:
            return call(*args)
        finally:
            asyncio._set_running_loop(before)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        self.call_later(self._process.draw("thread", *THREAD_S), _do, future, func, args)
        return future

    # Tasks and time

    def time(self) -> float:
        return self._process.clock()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self._self, name=name, context=context)
        self.tasks.append(task)
        if len(self.tasks) > 4096:
            self.tasks = [each for each in self.tasks if not each.done()]
        return task

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task that nobody awaits: if it fails, that is a failure of the loop."""
        task = self.create_task(coro)
        task.add_done_callback(self._note_failure)
        return task

    def _note_failure(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.call_exception_handler({"message": f"task {task.get_coro()}", "exception": task.exception()})

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # it is dropped when it comes up

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._process.is_alive:
            self.failures.append(context)

    def dispose(self) -> None:
        """Let go of coroutines that will not go on. What they try to do meanwhile has no effect."""
        for task in self.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # no public name
                with contextlib.suppress(BaseException):
                    self.within(_closing(task))
        self.tasks.clear()
        self._timers.clear()

    async def shutdown_asyncgens(self) -> None:
        pass


def _do(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        func(*args)  # a thread that has begun does not end
        return
    try:
        result = func(*args)
    except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits the future
        future.set_exception(error)
    else:
        future.set_result(result)


def _closing(task: asyncio.Task[Any]) -> Callable[[], None]:
    coroutine: Any = task.get_coro()
    closing: Callable[[], None] = coroutine.close
    return closing
