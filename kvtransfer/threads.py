"""Work on other threads that is never left behind: awaiting it ends only when the work has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

Result = TypeVar("Result")


async def run_to_end(executor: Executor, work: Callable[[threading.Event], Result]) -> Result:
    """Run `work(stop)` on `executor`.

    If the caller is cancelled, `stop` is set, and the cancellation goes on only after `work` has returned:
    the memory that it used may be reused then.
    """
    stop = threading.Event()
    future = asyncio.get_running_loop().run_in_executor(executor, work, stop)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        await _wait_for_end(future)
        raise


async def _wait_for_end(future: asyncio.Future[Result]) -> None:
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:  # the caller gets one cancellation, when nothing runs any more
            continue
    if not future.cancelled():
        future.exception()  # retrieved, so that asyncio does not log it: the caller gets the cancellation
