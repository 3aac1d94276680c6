"""Texts before a real tokenizer process: how many bytes may wait, who goes first, and who leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from router.errors import Overloaded, Unavailable
from router.intake.helpers.helper import Helper
from router.intake.helpers.tokenizer_pool import CALL_BYTES, TokenizerPool
from router.intake.model_facts import ModelFacts
from router.request import Conversation, Message
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

SHORT = "w5 w6"
LONG = "w7 " * 20_000
LIMIT = 10 * len(LONG)


@pytest.fixture
def bounded(facts: ModelFacts) -> Iterator[TokenizerPool]:
    opened = TokenizerPool(facts.tokenizer_file, 1, facts.chat_template, max_waiting_bytes=LIMIT)
    yield opened
    opened.close()


async def encode(pool: TokenizerPool, text: str) -> list[int]:
    return await pool.encode(text, add_special_tokens=False)


async def test_any_number_waits_as_long_as_the_bytes_fit(bounded: TokenizerPool) -> None:
    count = LIMIT // (CALL_BYTES + len(SHORT))
    assert count > 500
    found = await asyncio.gather(*(encode(bounded, SHORT) for _ in range(count)))
    assert found == [[5, 6]] * count


async def test_too_many_waiting_bytes_are_refused_with_a_retry_after(
    bounded: TokenizerPool,
) -> None:
    await bounded.warm_up()
    await encode(bounded, LONG)  # teaches the speed
    found = await asyncio.gather(*(encode(bounded, LONG) for _ in range(40)), return_exceptions=True)
    refused = [action for action in found if isinstance(action, BaseException)]
    assert all(isinstance(action, Overloaded) for action in refused)
    assert len(found) - len(refused) == 1 + LIMIT // (len(LONG) + CALL_BYTES), "one runs, the others wait"
    assert f"exceed the limit of {LIMIT}" in str(refused[0])
    assert isinstance(refused[0], Overloaded)
    assert refused[0].retry_after_s is not None
    assert refused[0].retry_after_s > 0
    assert await encode(bounded, LONG), "there is room again"


async def test_a_text_over_the_bound_is_taken_where_nobody_waits(facts: ModelFacts) -> None:
    pool = TokenizerPool(facts.tokenizer_file, 1, max_waiting_bytes=1)
    try:
        assert await encode(pool, SHORT) == [5, 6]
    finally:
        pool.close()


async def test_a_short_text_passes_the_long_ones_that_came_before(bounded: TokenizerPool) -> None:
    done: list[str] = []

    async def one(text: str) -> None:
        await encode(bounded, text)
        done.append(text)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(one(LONG))
        await asyncio.sleep(0)
        group.create_task(one(SHORT))
    assert SHORT in done[:2]


async def test_the_wait_is_foreseen_from_the_bytes_before(bounded: TokenizerPool) -> None:
    assert bounded.wait_s(len(LONG)) == 0
    await bounded.warm_up()
    await encode(bounded, LONG)
    assert bounded.wait_s(len(LONG)) == 0, "nobody waits"
    tasks = [asyncio.create_task(encode(bounded, LONG)) for _ in range(8)]
    await asyncio.sleep(0)
    assert bounded.wait_s(len(LONG)) >= 7 * bounded.own_s(len(LONG))
    assert bounded.wait_s(len(SHORT)) <= bounded.own_s(len(LONG) + CALL_BYTES)
    await asyncio.gather(*tasks)


async def test_whoever_gives_up_leaves_the_line_and_the_others_are_served(bounded: TokenizerPool) -> None:
    tasks = [asyncio.create_task(encode(bounded, LONG)) for _ in range(8)]
    last = asyncio.create_task(encode(bounded, SHORT))
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    assert await last == [5, 6]
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(action, asyncio.CancelledError) for action in found)
    assert await encode(bounded, SHORT) == [5, 6]
    assert bounded.wait_s(len(SHORT)) == 0


async def test_chats_are_rendered_in_the_process(bounded: TokenizerPool) -> None:
    assert (await bounded.encode_chat(Conversation((Message("user", "w5 w6"),)))).token_ids == [
        100,
        5,
        6,
        101,
    ]


async def test_a_process_that_dies_takes_only_the_text_it_had(bounded: TokenizerPool) -> None:
    await encode(bounded, SHORT)
    process_id = bounded._slots[0].pid
    tasks = [asyncio.create_task(encode(bounded, LONG)) for _ in range(5)]
    await asyncio.sleep(0)
    os.kill(process_id, signal.SIGKILL)
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(action) for action in found if not isinstance(action, list)] == [Unavailable]


async def test_a_text_that_cannot_be_sent_keeps_no_process_busy(
    bounded: TokenizerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router may have no memory for a moment."""

    def submit(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(Helper, "submit", submit)
        with pytest.raises(MemoryError):
            await encode(bounded, SHORT)
    assert await encode(bounded, SHORT) == [5, 6]


async def test_a_lost_process_is_replaced_once_there_are_descriptors_again(
    bounded: TokenizerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bounded.warm_up()

    def start(*_: object) -> None:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(Helper, "__init__", start)
        os.kill(bounded._slots[0].pid, signal.SIGKILL)
        for _ in range(3):
            with pytest.raises(Unavailable):
                await encode(bounded, SHORT)
            with pytest.raises(Unavailable):
                await bounded.encode_chat(Conversation((Message("user", "w5"),)))
    async with asyncio.timeout(PATIENCE_S):
        while not bounded.works:
            await asyncio.sleep(0.01)
    assert await encode(bounded, SHORT) == [5, 6]


async def test_a_process_that_cannot_be_replaced_leaves_the_texts_to_others(
    facts: ModelFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        raise OSError

    pool = TokenizerPool(facts.tokenizer_file, 2)
    try:
        await pool.warm_up()
        with monkeypatch.context() as patched:
            patched.setattr(Helper, "__init__", start)
            os.kill(pool._slots[0].pid, signal.SIGKILL)
            found = await asyncio.gather(*(encode(pool, SHORT) for _ in range(9)), return_exceptions=True)
        assert [each for each in found if isinstance(each, list)], "one at most had the text"
        assert await encode(pool, SHORT) == [5, 6]
    finally:
        pool.close()


async def test_a_full_line_of_one_tenant_keeps_no_other_out(bounded: TokenizerPool) -> None:
    count = LIMIT // (CALL_BYTES + len(LONG))
    tasks = [
        asyncio.create_task(bounded.encode(LONG, add_special_tokens=False, tenant="big"))
        for _ in range(count + 1)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await bounded.encode(LONG, add_special_tokens=False, tenant="big")
    assert await bounded.encode(SHORT, add_special_tokens=False, tenant="small") == [5, 6]
    assert sum(task.done() for task in tasks) <= 3, "the other tenant's texts wait for their turns"
    await asyncio.gather(*tasks)
