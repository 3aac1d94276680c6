"""A process that computes for the router: what it returns, what it raises, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from router.preprocess.helpers import Helper, HelperDied
from tests.patience import PATIENCE_S

BIG = 5_000_000
"""More than a socket takes at once."""


def start(_: str) -> None:
    """Prepare nothing."""


def refuse_to_start() -> None:
    raise ValueError("no tokenizer")


def repeated(text: str, times: int) -> str:
    return text * times


def failing(message: str) -> None:
    raise LookupError(message)


def ending() -> None:
    os._exit(3)


def called(helper: Helper, work: Callable[..., Any], *arguments: object) -> asyncio.Future[Any]:
    return helper.call(asyncio.get_running_loop(), work, *arguments)


@pytest.fixture
async def helper() -> AsyncIterator[Helper]:
    opened = Helper(start, "")
    yield opened
    opened.close()


async def test_results_and_errors_are_of_their_calls(helper: Helper) -> None:
    assert await called(helper, repeated, "ab", 2) == "abab"
    with pytest.raises(LookupError, match="not there") as caught:
        await called(helper, failing, "not there")
    assert "in failing" in caught.value.__notes__[0]
    assert await called(helper, repeated, "x", BIG) == "x" * BIG
    assert len(await called(helper, repeated, "y" * BIG, 1)) == BIG


async def test_a_process_that_stands_still_does_not_hold_up_the_loop(helper: Helper) -> None:
    assert await called(helper, repeated, "", 1) == ""
    assert helper.process_id is not None
    os.kill(helper.process_id, signal.SIGSTOP)
    answer = called(helper, repeated, "y" * BIG, 1)
    await asyncio.sleep(0)
    assert not answer.done()
    os.kill(helper.process_id, signal.SIGCONT)
    assert len(await answer) == BIG


async def test_a_call_fails_when_its_process_ends(helper: Helper) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(HelperDied):
            await called(helper, ending)
    assert not helper.is_alive


async def test_a_process_that_cannot_start_fails_its_first_call() -> None:
    helper = Helper(refuse_to_start)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(HelperDied):
            await called(helper, repeated, "", 1)


async def test_a_call_under_way_fails_when_its_process_is_ended(helper: Helper) -> None:
    answer = called(helper, repeated, "x", BIG)
    helper.close()
    with pytest.raises(HelperDied):
        await answer


def test_calls_may_be_of_one_event_loop_after_the_other() -> None:
    helper = Helper(start, "")
    for times in (2, 3):

        async def call(times: int) -> object:
            return await called(helper, repeated, "ab", times)

        assert asyncio.run(call(times)) == "ab" * times
    helper.close()
