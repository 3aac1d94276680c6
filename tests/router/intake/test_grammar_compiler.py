"""Formats from outside: whoever asks for costly ones waits for them, and hears the same the second time."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from model_output.grammar.grammar import Grammars
from model_output.grammar.refusal import GrammarRefused
from router.errors import Overloaded
from router.intake.grammar_compiler import FairTurns, GrammarCompiler
from router.intake.helpers.helper import Helper
from router.intake.model_facts import read_model_facts
from tests.fleets import DEMO_MODEL
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(read_model_facts(DEMO_MODEL))
    yield made
    made.close()


def huge(prefix: str) -> str:
    """A schema that takes more of a processor than one may."""
    names = [f"{prefix}{place}" for place in range(6000)]
    return json.dumps({"type": "object", "properties": {name: {"type": "string"} for name in names}})


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Future[str]]:
    """Record the work that processes are given."""
    found: list[asyncio.Future[str]] = []
    inner = Helper.submit

    def submit(helper: Helper, work: Callable[..., str], *arguments: Any) -> asyncio.Future[str]:
        found.append(inner(helper, work, *arguments))
        return found[-1]

    monkeypatch.setattr(Helper, "submit", submit)
    return found


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.005)


async def test_a_caller_that_leaves_a_costly_format_harms_no_other(
    compiler: GrammarCompiler, submitted: list[asyncio.Future[str]]
) -> None:
    left = asyncio.create_task(compiler.compile("a", "json_schema", huge("p")))
    await until(lambda: bool(submitted))
    left.cancel()
    assert await compiler.compile("b", "choice", '["yes"]')
    with pytest.raises(GrammarRefused, match="does not compile within"):
        await compiler.compile("a", "json_schema", huge("p"))
    assert len(submitted) == 3, "the costly one twice, and once the usual one"


async def test_a_format_whose_process_is_killed_from_outside_compiles(
    compiler: GrammarCompiler, submitted: list[asyncio.Future[str]]
) -> None:
    others = set(multiprocessing.active_children())
    asked = asyncio.create_task(compiler.compile("a", "choice", '["yes"]'))
    await until(lambda: bool(submitted))
    for process in set(multiprocessing.active_children()) - others:
        process.kill()
    assert await asked
    assert len(submitted) == 2


async def test_a_tenant_with_costly_formats_delays_others_by_one_of_them(compiler: GrammarCompiler) -> None:
    ended: list[str] = []

    async def ask(tenant: str, name: str, kind: str, text: str) -> None:
        try:
            await compiler.compile(tenant, kind, text)
        except GrammarRefused as refused:
            ended.append(f"{name}: {refused}")
        else:
            ended.append(name)

    attack = [ask("a", f"costly {place}", "json_schema", huge(f"p{place}_")) for place in range(2)]
    await asyncio.gather(*attack, ask("b", "usual", "choice", '["yes"]'))
    assert ended.index("usual") <= 1
    costly = [end for end in ended if end != "usual"]
    assert all("does not compile within" in end for end in costly)
    # The answer is known now: no process is ended for it again.
    helper = compiler._helper
    with pytest.raises(GrammarRefused, match="does not compile within"):
        await compiler.compile("a", "json_schema", huge("p0_"))
    assert compiler._helper is helper


async def test_a_format_that_many_ask_for_is_compiled_once(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    inner = compiler._compile

    async def counted(*words: str) -> str | GrammarRefused:
        asked.append(words[2])
        return await inner(*words)

    monkeypatch.setattr(compiler, "_compile", counted)
    found = await asyncio.gather(*(compiler.compile("a", "choice", '["yes"]') for _ in range(20)))
    assert len(set(found)) == len(asked) == 1


@pytest.mark.parametrize(
    ("kind", "text", "around"),
    [
        ("choice", '["yes"]', ""),
        ("json_schema", '{"type": "boolean"}', ""),
        ("json_schema", '{"type": "boolean"}', 'start: "so " @format'),
        ("grammar", 'root ::= "a"', ""),
        ("grammar", 'start: "a"', 'start: "so " @format'),
        ("regex", "a+", ""),
    ],
)
async def test_nothing_that_is_kept_of_a_format_is_shared_by_tenants(
    compiler: GrammarCompiler, submitted: list[asyncio.Future[str]], kind: str, text: str, around: str
) -> None:
    found = [await compiler.compile(tenant, kind, text, around) for tenant in ("", "a", "b", "a", "b")]
    assert len(submitted) == 3
    # Workers and routers keep grammars by their texts.
    assert len(set(found)) == 3
    assert found[1:3] == found[3:]
    facts = read_model_facts(DEMO_MODEL)
    grammars = Grammars(facts.tokenizer_file, facts.vocab_size, facts.eos_token_ids)
    masks = {grammars.compiled(grammar).begin().allowed_after(()) for grammar in found}
    assert len(masks) == 1
    assert None not in masks


async def test_a_tenant_may_have_so_many_waiting(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_turns", FairTurns(max_waiting=4))
    asks = [compiler.compile("a", "choice", json.dumps([f"text {place}"])) for place in range(12)]
    found = await asyncio.gather(*asks, compiler.compile("b", "choice", '["yes"]'), return_exceptions=True)
    assert sum(isinstance(each, Overloaded) for each in found[:-1]) >= 7
    assert isinstance(found[-1], str)
