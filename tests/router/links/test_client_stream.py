"""The buffer between the core and one client."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.model.actions import TellChoiceFinished
from router.errors import Overloaded, Reason, Unavailable
from router.links.client_stream import ClientStream, Outbox, TokenBatch
from scheduling.request import FinishReason


def push(stream: ClientStream, choice: int, index: int) -> bool:
    return stream.push_token(choice, index, 100 + index, f"t{index} ", None, free=False)


async def test_client_that_keeps_up_gets_every_token_by_itself() -> None:
    stream = ClientStream()
    for index in range(3):
        push(stream, 0, index)
        (run,) = await stream.take()
        assert isinstance(run, TokenBatch)
        assert (run.first_index, run.token_ids) == (index, [100 + index])


async def test_tokens_a_client_lags_behind_are_merged_by_choice() -> None:
    stream = ClientStream()
    for index in range(5):
        for choice in range(2):
            push(stream, choice, index)
    stream.push(TellChoiceFinished(1, 0, FinishReason.LENGTH, 5))
    first, second, end = await stream.take()
    assert isinstance(first, TokenBatch)
    assert isinstance(second, TokenBatch)
    assert (first.choice, first.token_ids) == (0, [100, 101, 102, 103, 104])
    assert "".join(second.texts) == "t0 t1 t2 t3 t4 "
    assert isinstance(end, TellChoiceFinished)


async def test_what_is_taken_is_not_added_to() -> None:
    stream = ClientStream()
    push(stream, 0, 0)
    (before,) = await stream.take()
    push(stream, 0, 1)
    (after,) = await stream.take()
    assert isinstance(before, TokenBatch)
    assert isinstance(after, TokenBatch)
    assert (before.token_ids, after.first_index) == ([100], 1)


async def test_client_that_does_not_read_is_told_so_and_holds_no_memory() -> None:
    stream = ClientStream(max_pending_tokens=10)
    assert all(push(stream, 0, index) for index in range(10))
    assert not push(stream, 0, 10)
    for index in range(11, 1000):
        push(stream, 0, index)
    with pytest.raises(Overloaded, match="reads too slowly"):
        await stream.take()


async def test_only_what_nobody_took_between_two_looks_is_stalled() -> None:
    stream = ClientStream()
    assert [stream.is_stalled(), stream.is_stalled()] == [False, False]
    push(stream, 0, 0)
    assert not stream.is_stalled(), "it may have come just now"
    await stream.take()
    push(stream, 0, 1)
    assert not stream.is_stalled(), "what waited was taken"
    push(stream, 0, 2)
    assert stream.is_stalled()


async def test_replay_of_what_is_held_anyway_does_not_count_as_lag() -> None:
    stream = ClientStream(max_pending_tokens=10)
    assert all(stream.push_token(0, index, 1, "", None, free=True) for index in range(100))
    (run,) = await stream.take()
    assert isinstance(run, TokenBatch)
    assert len(run.token_ids) == 100


async def test_waiting_client_wakes_for_tokens_and_for_the_end() -> None:
    stream = ClientStream()
    waiting = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    push(stream, 0, 0)
    assert len(await waiting) == 1
    waiting = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    stream.fail(Unavailable(Reason.ROUTER_LEAVING, "over"))
    with pytest.raises(Unavailable):
        await waiting


async def test_what_waits_in_an_outbox_is_bounded_for_all_streams_together() -> None:
    outbox = Outbox(max_tokens=10)
    streams = [ClientStream(outbox=outbox) for _ in range(3)]
    for stream in streams[:2]:
        assert all(push(stream, 0, index) for index in range(5))
    assert not push(streams[2], 0, 0)
    assert [outbox.next(), outbox.next(), outbox.next(), outbox.next()] == [*streams, None]
    with pytest.raises(Overloaded, match="over 10 tokens wait"):
        streams[2].take_now()
    streams[0].take_now()
    assert all(push(streams[0], 0, 5 + index) for index in range(5))
    streams[1].drop()
    assert all(push(streams[0], 0, 10 + index) for index in range(5))
    assert not push(streams[1], 0, 5)


STEPS = st.lists(st.sampled_from(["token of 0", "token of 1", "event of 0", "message"]), max_size=30)


@given(STEPS)
def test_tokens_that_are_rows_and_tokens_that_wait_are_in_order(steps: list[str]) -> None:
    """The first token of a stream for a message is a row, unless something of the stream waits before it."""
    outbox = Outbox()
    streams = [ClientStream(outbox=outbox) for _ in range(2)]
    for row_id, stream in enumerate(streams):
        stream.row_id = row_id
    given: list[list[int]] = [[], []]
    read: list[list[int]] = [[], []]
    for step in [*steps, "message"]:
        if step == "event of 0":
            streams[0].push(TellChoiceFinished(1, 0, FinishReason.LENGTH, 5))
        elif step == "message":
            rows = outbox.take_rows()
            assert len(set(rows.ids)) == len(rows.ids)
            for row_id, index in zip(rows.ids, rows.indexes, strict=True):
                read[row_id].append(index)
            while (ready := outbox.next()) is not None:
                for item in ready.take_now():
                    told = read[streams.index(ready)]
                    if isinstance(item, TokenBatch):
                        told += range(item.first_index, item.first_index + len(item.token_ids))
        else:
            place = int(step[-1])
            index = len(given[place])
            push(streams[place], 0, index)
            given[place].append(index)
    assert read == given


async def test_a_row_wakes_the_writer() -> None:
    outbox = Outbox()
    stream = ClientStream(outbox=outbox)
    stream.row_id = 7
    waiting = asyncio.create_task(outbox.wait())
    await asyncio.sleep(0)
    push(stream, 0, 0)
    await waiting
    assert outbox.take_rows().ids == [7]
    assert outbox.next() is None
