"""Nobody gets control back, however it was taken from them, while their work still runs."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvtransfer.threads import run_to_end
from tests.patience import PATIENCE_S


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def test_the_result_is_the_works(executor: ThreadPoolExecutor) -> None:
    assert await run_to_end(executor, lambda stop: stop.is_set()) is False


async def test_the_error_is_the_works(executor: ThreadPoolExecutor) -> None:
    def fail(stop: threading.Event) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await run_to_end(executor, fail)


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_a_cancelled_caller_waits_for_the_end_of_the_work(
    cancellations: int, executor: ThreadPoolExecutor
) -> None:
    running, told, may_end = threading.Event(), threading.Event(), threading.Event()
    ended: list[str] = []

    def work(stop: threading.Event) -> None:
        running.set()
        if stop.wait(timeout=PATIENCE_S):
            told.set()
        may_end.wait(timeout=PATIENCE_S)
        ended.append("work")

    async def call() -> None:
        try:
            await run_to_end(executor, work)
        finally:
            ended.append("caller")

    caller = asyncio.create_task(call())
    await asyncio.to_thread(running.wait, PATIENCE_S)
    for _ in range(cancellations):
        caller.cancel()
        await asyncio.to_thread(told.wait, PATIENCE_S)
        assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == ["work", "caller"]


async def test_work_that_has_not_begun_is_still_run_to_its_end(executor: ThreadPoolExecutor) -> None:
    may_end, stops = threading.Event(), list[bool]()
    first = asyncio.create_task(run_to_end(executor, lambda stop: may_end.wait(PATIENCE_S)))
    second = asyncio.create_task(run_to_end(executor, lambda stop: stops.append(stop.is_set())))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    may_end.set()
    await first
    with pytest.raises(asyncio.CancelledError):
        await second
    assert stops == [True], "it was told to stop before it began"
