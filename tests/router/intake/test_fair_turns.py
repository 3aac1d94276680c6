"""Tenants take turns, and a waiter that leaves takes none."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.intake.grammar_compiler import FairTurns
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.asyncio


class Scene:
    def __init__(self) -> None:
        self.turns = FairTurns(max_waiting=8)
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, *names: str) -> None:
        """Each name's first letter is its tenant."""
        for name in names:
            self.tasks.append(asyncio.create_task(self._work(name)))
            await asyncio.sleep(0)

    async def _work(self, name: str) -> None:
        async with self.turns.turn(name[0]):
            self.order.append(name)
            await asyncio.sleep(0)

    async def done(self) -> list[str]:
        await asyncio.gather(*self.tasks, return_exceptions=True)
        return self.order


async def test_a_tenant_waits_for_one_turn_of_each_other_tenant() -> None:
    scene = Scene()
    async with scene.turns.turn("a"):
        await scene.ask("a1", "a2", "a3", "b1", "c1", "b2")
    assert await scene.done() == ["b1", "c1", "a1", "b2", "a2", "a3"]


async def test_tenants_that_wait_share_the_queue() -> None:
    scene = Scene()
    async with scene.turns.turn("x"):
        await scene.ask(*[f"a{place}" for place in range(8)])
        assert scene.turns.is_full("a")
        assert not scene.turns.is_full("b")
        await scene.ask("b1", "b2", "b3")
        assert not scene.turns.is_full("b")
        await scene.ask("b4")
        assert scene.turns.is_full("b")
    assert len(await scene.done()) == 12


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("is_given", [False, True])
async def test_a_waiter_that_leaves_takes_no_turn(place: int, *, is_given: bool) -> None:
    """Also if it leaves in the moment in which it is given one."""
    scene = Scene()
    async with scene.turns.turn("x"):
        await scene.ask("a1", "b1", "a2", "c1")
        if not is_given:
            scene.tasks[place].cancel()
            await asyncio.sleep(0)
    scene.tasks[place].cancel()
    assert len(await scene.done()) in (3, 4)
    async with asyncio.timeout(PATIENCE_S), scene.turns.turn("d"):
        assert not scene.turns.is_full("a")


@given(cancelled=st.sets(st.integers(0, 4)))
async def test_waiters_that_are_cancelled_with_the_holder_keep_no_turn(cancelled: set[int]) -> None:
    """All of them in one moment: the holder gives its turn before they have left."""
    scene = Scene()
    begun = asyncio.Event()

    async def hold() -> None:
        async with scene.turns.turn("x"):
            begun.set()
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold())
    await begun.wait()
    await scene.ask("a1", "b1", "a2", "c1", "x1")
    for task in (holder, *(scene.tasks[place] for place in cancelled)):
        task.cancel()
    await scene.ask("d1")
    async with asyncio.timeout(PATIENCE_S):
        order = await scene.done()
    left = [name for place, name in enumerate(["a1", "b1", "a2", "c1", "x1"]) if place not in cancelled]
    assert sorted(order) == sorted([*left, "d1"])
    async with asyncio.timeout(PATIENCE_S), scene.turns.turn("d"):
        assert not scene.turns.is_full("a")
