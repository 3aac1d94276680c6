"""A process that computes for another: its answers come to those who asked, and its end harms nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator

import pytest

from router.intake.helpers.helper import Helper, HelperLost, _first_message
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration


@pytest.fixture
def helper() -> Iterator[Helper]:
    made = Helper(os.umask, 0o077)
    yield made
    made.close(wait=True)


def doubled(text: str) -> str:
    return 2 * text


def fail(why: str) -> None:
    raise ValueError(why)


class Odd(Exception):
    """An error that cannot be unpickled: it is made with other arguments than it has."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def fail_oddly() -> None:
    raise Odd("a", "b")


async def test_each_caller_gets_its_own_answer(helper: Helper) -> None:
    texts = [str(place) * (1 << place) for place in range(22)]
    assert await asyncio.gather(*(helper.submit(doubled, text) for text in texts)) == [2 * t for t in texts]


async def test_an_error_comes_back_with_its_traceback(helper: Helper) -> None:
    with pytest.raises(ValueError, match="of no use") as error:
        await helper.submit(fail, "of no use")
    assert "in fail" in error.value.__notes__[0]
    with pytest.raises(ValueError, match="xx") as error:
        await helper.submit(fail, "x" * 1_000_000)
    assert len(error.value.__notes__[0]) < 10_000
    assert await helper.submit(doubled, "a") == "aa"


async def test_an_answer_that_cannot_be_read_ends_its_own_call(helper: Helper) -> None:
    with pytest.raises(TypeError):
        await helper.submit(fail_oddly)
    assert await helper.submit(doubled, "a") == "aa"


async def test_a_call_that_cannot_be_sent_leaves_the_others_alone(helper: Helper) -> None:
    waiting = helper.submit(doubled, "a")
    with pytest.raises(Exception, match="pickle"):
        helper.submit(lambda: None)
    assert await helper.submit(doubled, "b") == "bb"
    assert await waiting == "aa"


async def test_large_calls_and_results_come_in_pieces(helper: Helper) -> None:
    text = "x" * 20_000_000
    first, second = helper.submit(doubled, text), helper.submit(len, text)
    assert len(await first) == 40_000_000
    assert await second == 20_000_000


async def test_whoever_leaves_takes_no_answer_of_another(helper: Helper) -> None:
    left = helper.submit(doubled, "left")
    kept = helper.submit(doubled, "kept")
    left.cancel()
    assert await kept == "keptkept"


async def test_its_end_is_told_to_all_who_wait_and_to_later_callers(helper: Helper) -> None:
    await helper.submit(doubled, "a")
    waiting = [helper.submit(time.sleep, 60) for _ in range(3)]
    os.kill(helper.pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in found] == [HelperLost] * 3
        assert helper.is_lost
        with pytest.raises(HelperLost):
            await helper.submit(doubled, "a")


async def test_one_that_cannot_start_is_lost() -> None:
    broken = Helper(fail, "at its start")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(HelperLost):
            await broken.submit(doubled, "a")
    broken.close(wait=True)


async def test_it_can_be_closed_while_it_hangs(helper: Helper) -> None:
    hanging = helper.submit(time.sleep, 600)
    helper.close(wait=True)
    with pytest.raises(HelperLost):
        await hanging


@pytest.mark.parametrize("size", [0, 1, 1 << 31])
def test_a_message_is_found_only_when_it_is_whole(size: int) -> None:
    """From 2 GiB on, `multiprocessing.connection` writes a head of 12 bytes."""
    large = size > 0x7FFFFFFF
    head = b"\xff\xff\xff\xff" + size.to_bytes(8, "big") if large else size.to_bytes(4, "big")
    for cut in range(len(head)):
        assert _first_message(bytearray(head[:cut])) is None
    whole = _first_message(bytearray(head + bytes(min(size, 9))))
    assert whole == (None if large else (4, 4 + size))
