"""Templates are programs from outside: one that does not end harms its own chat, and health tells."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from model_output.text.model_files import FileUnusable
from router.intake.helpers.chat_template import ChatTemplate, TemplateRefused
from router.intake.helpers.tokenizer_pool import TokenizerPool
from router.intake.model_facts import ModelFacts
from router.request import Conversation, Message
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

GUARDED = "{% if messages[0].content == 'go' %}%s{% else %}w5 w6{% endif %}"
HARMLESS = Conversation((Message("user", "stay"),))
HOSTILE = Conversation((Message("user", "go"),))
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
LARGE = "{{ (messages[0].role * 900000000) | length }}"
LONG = "{% for a in range(5000) %}{{ messages[0].role * 9999 }}{% endfor %}"
SEARCH = "{% set u = messages[0].role[0] %}{{ (u * 4000000).rfind(u ~ 'b' ~ u * 1000000) }}"
"""Compares trillions of characters without a look at signals."""


@asynccontextmanager
async def pool_with(facts: ModelFacts, source: str, num_processes: int = 1) -> AsyncIterator[TokenizerPool]:
    pool = TokenizerPool(facts.tokenizer_file, num_processes, ChatTemplate(source, {}))
    try:
        yield pool
    finally:
        pool.close()


def process_ids(pool: TokenizerPool) -> set[int]:
    return {helper.pid for helper in pool._slots}


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("hostile", "why"),
    [(LOOPS, "2 s of a processor"), (LARGE, "1 GiB of memory"), (LONG, "characters of the chat")],
)
async def test_a_template_that_takes_too_much_refuses_its_chat_alone(
    facts: ModelFacts, hostile: str, why: str
) -> None:
    async with pool_with(facts, GUARDED.replace("%s", hostile)) as pool:
        await pool.warm_up()
        before = process_ids(pool)
        with pytest.raises(TemplateRefused, match=why):
            await pool.encode_chat(HOSTILE)
        assert (await pool.encode_chat(HARMLESS)).token_ids == [5, 6]
        assert process_ids(pool) == before, "no process had to end for it"


# As its compiler computes the constant, 200 MB would take a busy machine longer than a template may take.
@pytest.mark.parametrize("said", ["'wrong' * 4000000", "range(99999) | list * 99", r"'\ud800wrong'"])
async def test_what_a_template_says_is_cut_and_can_be_sent(facts: ModelFacts, said: str) -> None:
    async with pool_with(facts, f"{{{{ raise_exception({said}) }}}}") as pool:
        with pytest.raises(TemplateRefused) as refused:
            await pool.encode_chat(HARMLESS)
    assert 1 < len(str(refused.value).encode()) <= 1000
    (traceback,) = refused.value.__notes__
    assert len(traceback) < 10_000


async def test_what_nothing_interrupts_ends_its_own_process_alone(facts: ModelFacts) -> None:
    async with pool_with(facts, GUARDED.replace("%s", SEARCH), num_processes=2) as pool:
        await pool.warm_up()
        hostile = asyncio.create_task(pool.encode_chat(HOSTILE))
        served = 0
        while not hostile.done():
            assert (await pool.encode_chat(HARMLESS)).token_ids == [5, 6]
            served += 1
        with pytest.raises(TemplateRefused, match="without a pause"):
            await hostile
        assert served > 1
        await until(lambda: pool.works)


async def test_what_is_constant_in_a_template_is_computed_within_the_limits(facts: ModelFacts) -> None:
    async with pool_with(facts, "{{ 3 ** 4000000000 }}") as pool:  # the router computes nothing of it
        with pytest.raises(FileUnusable, match="chat template") as refused:
            await pool.warm_up()
        assert refused.value.path == facts.tokenizer_file.parent


async def test_it_is_told_when_no_process_works(facts: ModelFacts, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    shutil.copy(facts.tokenizer_file, file)
    pool = TokenizerPool(file, 1, facts.chat_template)
    try:
        await pool.warm_up()
        assert pool.works
        file.unlink()
        for process_id in process_ids(pool):
            os.kill(process_id, signal.SIGKILL)
        await until(lambda: pool._slots[0].is_lost)
        await asyncio.gather(pool.encode("w5", add_special_tokens=False), return_exceptions=True)
        await until(lambda: not pool.works)
        shutil.copy(facts.tokenizer_file, file)
        await until(lambda: pool.works)
        assert await pool.encode("w5", add_special_tokens=False) == [5]
    finally:
        pool.close()


async def test_a_text_that_hangs_is_no_sign_of_work(
    facts: ModelFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.intake.helpers.tokenizer_pool.HUNG_S", 0.2)
    async with pool_with(facts, "w5") as pool:
        await pool.warm_up()
        (process_id,) = process_ids(pool)
        os.kill(process_id, signal.SIGSTOP)
        asked = asyncio.create_task(pool.encode("w5", add_special_tokens=False))
        await until(lambda: not pool.works)
        os.kill(process_id, signal.SIGCONT)
        assert await asked == [5]
        assert pool.works


async def test_a_chat_names_what_its_process_could_not_read(tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    pool = TokenizerPool(broken, 1, ChatTemplate(GUARDED, {}))
    try:
        with pytest.raises(FileUnusable, match=r"tokenizer\.json"):
            await pool.encode_chat(HARMLESS)
    finally:
        pool.close()
