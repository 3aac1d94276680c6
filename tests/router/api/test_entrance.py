"""Calls begin at once while few are prepared; of many, callers take turns, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.entrance import AT_ONCE, TURNS_APART, Entrance
from router.errors import Overloaded, Reason
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.asyncio


class Scene:
    """Calls that are prepared until `over` is set; each name's first letter is its caller."""

    def __init__(self, max_waiting: int = 1000) -> None:
        self.entrance = Entrance(max_waiting)
        self.begun: list[str] = []
        self.over = asyncio.Event()

    def call(self, name: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._prepare(name))

    async def _prepare(self, name: str) -> None:
        async with self.entrance.entered(name[0]):
            self.begun.append(name)
            await self.over.wait()


async def turns_of_the_loop(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_few_calls_begin_in_the_turn_in_which_they_come() -> None:
    scene = Scene()
    calls = [scene.call(f"a{place}") for place in range(AT_ONCE)]
    await turns_of_the_loop(1)
    assert len(scene.begun) == AT_ONCE
    scene.over.set()
    await asyncio.gather(*calls)
    later = scene.call("a")
    await turns_of_the_loop(1)
    assert scene.begun[-1] == "a"
    await later


async def test_further_calls_begin_some_turns_apart() -> None:
    scene = Scene()
    calls = [scene.call(f"a{place}") for place in range(AT_ONCE + 10)]
    await turns_of_the_loop(1)
    counts = []
    async with asyncio.timeout(PATIENCE_S):
        while len(scene.begun) < len(calls):
            counts.append(len(scene.begun))
            await asyncio.sleep(0)
    assert counts[0] == AT_ONCE
    assert all(after - before <= 1 for before, after in itertools.pairwise(counts))
    assert len(counts) >= 10 * TURNS_APART
    scene.over.set()
    await asyncio.gather(*calls)


async def test_a_neighbour_waits_for_one_call_of_a_crowd() -> None:
    scene = Scene()
    calls = [scene.call(f"a{place}") for place in range(AT_ONCE + 100)]
    await turns_of_the_loop(2)
    calls.append(scene.call("b"))
    async with asyncio.timeout(PATIENCE_S):
        while "b" not in scene.begun:
            await asyncio.sleep(0)
    assert len(scene.begun) <= AT_ONCE + 2
    scene.over.set()
    await asyncio.gather(*calls)


async def test_a_caller_with_its_share_of_waiting_calls_is_refused() -> None:
    scene = Scene(max_waiting=10)
    calls = [scene.call(f"a{place}") for place in range(AT_ONCE + 1 + 10)]
    await turns_of_the_loop(1)
    with pytest.raises(Overloaded) as refused:
        await scene.call("a")
    assert refused.value.reason is Reason.ROUTER_BUSY
    assert refused.value.limit == 10
    assert refused.value.retry_after_s
    neighbour = scene.call("b")
    scene.over.set()
    await asyncio.gather(*calls, neighbour)
    assert len(scene.begun) == len(calls) + 1


@given(st.data())
async def test_calls_that_leave_anywhere_hold_up_nobody(data: st.DataObject) -> None:
    scene = Scene()
    names = [f"{data.draw(st.sampled_from('abc'))}{place}" for place in range(AT_ONCE + 8)]
    calls = [scene.call(name) for name in names]
    for leaver in data.draw(st.lists(st.sampled_from(calls), max_size=8)):
        await turns_of_the_loop(data.draw(st.integers(0, 2 * TURNS_APART)))
        leaver.cancel()
    scene.over.set()
    found = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_S)
    assert all(each is None or isinstance(each, asyncio.CancelledError) for each in found)
    stayed = {name for name, each in zip(names, found, strict=True) if each is None}
    assert stayed <= set(scene.begun)
    again = [scene.call(f"d{place}") for place in range(AT_ONCE)]
    await turns_of_the_loop(1)
    assert scene.begun[-AT_ONCE:] == [f"d{place}" for place in range(AT_ONCE)], "nothing is held any more"
    await asyncio.gather(*again)
