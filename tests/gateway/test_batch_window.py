"""The window of a gateway's batch lines follows the room that the fleet has."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.window import Outcome, Size, Window, after

OUTCOMES = st.lists(st.tuples(st.sampled_from(Outcome), st.integers(0, 3)))


@given(st.integers(1, 64), OUTCOMES)
def test_the_size_stays_between_one_and_the_most(most: int, outcomes: list[tuple[Outcome, int]]) -> None:
    size = Size(1.0, most)
    for outcome, lag in outcomes:
        before = size
        size = after(size, outcome, max(0, size.shrinks - lag))
        assert 1.0 <= size.lines <= most
        assert (size.lines >= before.lines) or outcome is not Outcome.ROOM


def test_lines_that_ran_together_shrink_it_once() -> None:
    size = Size(16.0, 64)
    for _ in range(16):
        size = after(size, Outcome.REFUSED, 0)
    assert size.lines == 8.0
    assert after(size, Outcome.REFUSED, 1).lines == 4.0


def test_it_doubles_until_it_first_shrinks_and_then_grows_by_one() -> None:
    size = Size(4.0, 64)
    for _ in range(4):
        size = after(size, Outcome.ROOM, 0)
    assert size.lines == 8.0
    size = after(size, Outcome.WAITED, 0)
    for _ in range(6):
        size = after(size, Outcome.ROOM, 1)
    assert 6.5 < size.lines <= 7.0


async def test_no_more_lines_enter_than_it_holds() -> None:
    window = Window(1)
    entered = await window.enter()
    second = asyncio.create_task(window.enter())
    await asyncio.sleep(0)
    assert not second.done()
    window.leave(entered, None)
    window.leave(await second, Outcome.ROOM)
    assert window.running == 0
