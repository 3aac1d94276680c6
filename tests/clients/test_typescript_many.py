"""Generations of the TypeScript SDK that share calls, at a scripted router.

`tests/vectors` shows that a caller sees no difference, and `test_typescript.py` has a fleet.
"""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.baton.scripted_service import (
    HANG,
    WHOLE,
    Fail,
    FailShared,
    ScriptedRouter,
    Step,
    Wait,
    accepted,
    because,
    ended,
    finished,
    retry_after,
    tokens,
)
from tests.clients.node import SDK
from tests.clients.test_typescript import run, run_tests

pytestmark = [pytest.mark.node, pytest.mark.integration]

MAX_UNREAD_TOKENS = 8192


async def run_test(name: str, router: ScriptedRouter) -> None:
    command = ["node", "--test", "--test-timeout=60000", f"--test-name-pattern=^{name}$", "test/many.test.ts"]
    said = await run(command, SDK, {"BATON_ADDRESSES": router.address})
    assert "pass 1\n" in said, said


def counted(router: ScriptedRouter) -> tuple[int, int]:
    """Return how many shared calls there were, and how many generations began on these and others."""
    return len(router.calls("GenerateMany")), len(router.calls("Generate"))


async def test_the_rule_and_the_messages() -> None:
    await run_tests("sharing", {})


@pytest.mark.parametrize(("multiplex", "num_shared"), [("undefined", 1), ("false", 0), ("true", 1)])
async def test_generations_share_calls_beyond_a_few(multiplex: str, num_shared: int) -> None:
    gate = asyncio.Event()
    script: tuple[Step, ...] = (accepted(), Wait(gate), tokens(0, 10, 11, 12), ended(3), finished())
    async with ScriptedRouter(script) as router:
        running = asyncio.create_task(run_test(f"forty at once with {multiplex}", router))
        await router.until_heard("Generate", 40)
        gate.set()
        await running
    assert counted(router) == (num_shared, 40)


async def test_a_call_is_used_again_and_ends_with_its_client() -> None:
    async with ScriptedRouter() as router:
        await run_test("one after the other", router)
        assert counted(router) == (1, 2)
        await router.until_heard("GenerateMany over")


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED])
async def test_a_router_without_the_call_is_asked_for_it_once(code: grpc.StatusCode) -> None:
    """An older one does not know it, and a proxy may demand a credential of the call itself."""
    async with ScriptedRouter((FailShared(code), *WHOLE)) as router:
        await run_test("one after the other", router)
    assert counted(router) == (1, 3)


async def test_a_generation_that_finds_its_call_full_has_one_of_its_own() -> None:
    full = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", (because("ROUTER_BUSY"), retry_after(1)))
    async with ScriptedRouter((full,), WHOLE) as router:
        await run_test("one after the other", router)
    assert counted(router) == (1, 3)


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL])
async def test_what_one_generation_does_to_a_call_harms_no_other_on_it(code: grpc.StatusCode) -> None:
    gate = asyncio.Event()
    harmful = accepted(), Wait(gate), FailShared(code), tokens(0, 10, 11, 12), ended(3), finished()
    other = accepted(), HANG
    async with ScriptedRouter(harmful, other, WHOLE) as router:
        running = asyncio.create_task(run_test("two at once", router))
        await router.until_heard("Generate", 2)
        gate.set()
        await running
    assert len(router.calls("GenerateMany")) == 1
    assert len(router.calls("Generate")) + len(router.calls("Resume")) == 4


async def test_a_large_request_has_a_call_of_its_own() -> None:
    async with ScriptedRouter() as router:
        await run_test("a large one", router)
    assert counted(router) == (0, 1)


async def test_a_caller_that_reads_gets_more_at_once_than_may_be_unread() -> None:
    num = 2 * MAX_UNREAD_TOKENS
    async with ScriptedRouter((accepted(), tokens(0, *range(num)), ended(num), finished())) as router:
        await run_test("more at once than may be unread", router)
    assert counted(router) == (1, 1)


async def test_a_generation_that_is_not_read_leaves_and_others_go_on() -> None:
    left, gone, piece = asyncio.Event(), asyncio.Event(), 1000
    pieces = [tokens(first, *range(piece)) for first in range(1, 20_000, piece)]
    num = 1 + piece * (MAX_UNREAD_TOKENS // piece + 2)
    rest: tuple[Step, ...] = (accepted(), tokens(num, 7), ended(num + 1), finished())
    slow: tuple[Step, ...] = (accepted(), tokens(0, 1), Wait(left), *pieces, HANG)
    async with ScriptedRouter(slow, (Wait(gone), *WHOLE), rest) as router:
        running = asyncio.create_task(run_test("one that is not read", router))
        await router.until_heard("Generate", 2)
        left.set()
        await router.until_heard("Generate let go")
        gone.set()
        await running
        (received,) = (await router.until_heard("Resume")).received
    assert counted(router) == (1, 2)
    assert len(received.token_ids) == num


async def test_closing_the_client_ends_its_generations() -> None:
    async with ScriptedRouter((accepted(), tokens(0, 1), HANG)) as router:
        await run_test("one that waits while the client is closed", router)
        await router.until_heard("GenerateMany over")


async def test_a_call_that_nobody_uses_ends_after_a_while() -> None:
    gate = asyncio.Event()
    async with ScriptedRouter(WHOLE, (Wait(gate), *WHOLE)) as router:
        running = asyncio.create_task(run_test("a large one after another", router))
        await router.until_heard("Generate", 2)
        assert router.calls("GenerateMany over") == []
        await router.until_heard("GenerateMany over")
        gate.set()
        await running
