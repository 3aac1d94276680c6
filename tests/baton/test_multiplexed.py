"""Generations that share a call; tests/vectors and test_stream.py show that a caller sees no difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import grpc
import pytest

from baton import Accepted, AsyncClient, Finished
from baton.errors import StreamCorrupt, Unavailable
from baton.types import ChoiceFinished, Event, Tokens
from baton.types.deltas import Delta
from baton.v1 import inference_pb2
from baton.wire import many
from baton.wire.many import BEYOND_FEW, MultiplexedTransport, Sharing
from baton.wire.transport import GENERATE, RESUME, Response
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
from tests.patience import PATIENCE_S


@pytest.fixture
def gate() -> asyncio.Event:
    return asyncio.Event()


def waiting(gate: asyncio.Event) -> tuple[Step, ...]:
    return accepted(), Wait(gate), tokens(0, 10, 11, 12), ended(3), finished()


def num_writing() -> int:
    """Return how many of grpc.aio's tasks write the requests of a call."""
    return sum("_consume_request_iterator" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_generations_share_a_call_at_once_and_one_after_the_other(gate: asyncio.Event) -> None:
    async with ScriptedRouter(waiting(gate)) as router, AsyncClient(router.address, multiplex=True) as client:
        running = [asyncio.create_task(client.complete(f"prompt {number}")) for number in range(20)]
        await router.until_heard("Generate", 20)
        gate.set()
        completions = await asyncio.gather(*running)
        assert {completion.choices[0].token_ids for completion in completions} == {(10, 11, 12)}
        await client.complete("afterwards")
        assert len(router.calls("GenerateMany")) == 1
        assert not router.calls("GenerateMany over")


async def test_a_call_that_nobody_uses_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "TAKES_NEW_S", 0.2)
    async with ScriptedRouter() as router, AsyncClient(router.address, multiplex=True) as client:
        await client.complete("hello")
        await router.until_heard("GenerateMany over")
        await client.complete("afterwards")
        assert len(router.calls("GenerateMany")) == 2
        await router.until_heard("GenerateMany over", 2)
        async with asyncio.timeout(PATIENCE_S):
            while num_writing() > 0:
                await asyncio.sleep(0.01)


async def test_a_generation_on_its_way_to_a_call_that_ends_is_sent_again() -> None:
    """A router that leaves ends calls without generations, as far as it knows."""
    async with (
        ScriptedRouter(WHOLE, (FailShared(grpc.StatusCode.UNAVAILABLE),), WHOLE) as router,
        AsyncClient(router.address, multiplex=True) as client,
    ):
        await client.complete("hello")
        completion = await client.complete("on its way")
        assert completion.choices[0].token_ids == (10, 11, 12)


async def test_an_old_call_takes_no_more(monkeypatch: pytest.MonkeyPatch, gate: asyncio.Event) -> None:
    monkeypatch.setattr(many, "TAKES_NEW_S", 0.0)
    async with ScriptedRouter(waiting(gate)) as router, AsyncClient(router.address, multiplex=True) as client:
        running = []
        for number in range(3):
            running.append(asyncio.create_task(client.complete("hello")))
            await router.until_heard("Generate", number + 1)
        gate.set()
        await asyncio.gather(*running)
    assert len(router.calls("GenerateMany")) == 3


async def test_few_generations_are_alone_on_a_call_and_further_ones_share(
    gate: asyncio.Event,
) -> None:
    async with ScriptedRouter(waiting(gate)) as router:
        transport = MultiplexedTransport(router.address, sharing=Sharing(num_alone=2, most=3))
        request = inference_pb2.GenerateRequest(text="hello")
        running = []
        for number, num_shared in enumerate((0, 0, 1, 1, 1, 2, 2)):
            running.append(asyncio.create_task(_all_of(transport.stream(GENERATE, request))))
            await router.until_heard("Generate", number + 1)
            assert len(router.calls("GenerateMany")) == num_shared
        gate.set()
        for responses in await asyncio.gather(*running):
            assert responses[-1].event.HasField("finished")
        await transport.close()


async def test_resumed_generations_count_among_those_alone(gate: asyncio.Event) -> None:
    async with ScriptedRouter(waiting(gate)) as router:
        transport = MultiplexedTransport(router.address, sharing=Sharing(num_alone=1, most=3))
        resumed = asyncio.create_task(_all_of(transport.stream(RESUME, inference_pb2.ResumeRequest())))
        await router.until_heard("Resume")
        begun = asyncio.create_task(
            _all_of(transport.stream(GENERATE, inference_pb2.GenerateRequest(text="hello")))
        )
        await router.until_heard("GenerateMany")
        gate.set()
        await asyncio.gather(resumed, begun)
        await transport.close()


async def test_a_client_shares_calls_beyond_a_few_by_itself(gate: asyncio.Event) -> None:
    async with ScriptedRouter(waiting(gate)) as router, AsyncClient(router.address) as client:
        running = [asyncio.create_task(client.complete("hello")) for _ in range(BEYOND_FEW.num_alone)]
        await router.until_heard("Generate", BEYOND_FEW.num_alone)
        assert not router.calls("GenerateMany")
        running += [asyncio.create_task(client.complete("hello")) for _ in range(32)]
        await router.until_heard("Generate", len(running))
        assert len(router.calls("GenerateMany")) == 1
        gate.set()
        completions = await asyncio.gather(*running)
        assert {completion.choices[0].token_ids for completion in completions} == {(10, 11, 12)}
        await client.complete("afterwards")
        assert len(router.calls("GenerateMany")) == 1
        assert router.calls("GenerateMany over") == []


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED])
async def test_a_router_without_the_call_is_asked_for_it_once(code: grpc.StatusCode) -> None:
    """An older one does not know it, and a proxy may demand a credential of the call itself."""
    async with (
        ScriptedRouter((FailShared(code), *WHOLE)) as router,
        AsyncClient(router.address, multiplex=True) as client,
    ):
        for _ in range(2):
            await client.complete("hello")
    assert (len(router.calls("GenerateMany")), len(router.calls("Generate"))) == (1, 3)


@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL])
async def test_what_one_generation_does_to_a_call_harms_no_other_on_it(
    code: grpc.StatusCode, gate: asyncio.Event
) -> None:
    harmful = accepted(), Wait(gate), FailShared(code), tokens(0, 10, 11, 12), ended(3), finished()
    rest = (accepted(), tokens(0, 10, 11, 12), ended(3), finished())
    async with (
        ScriptedRouter(harmful, waiting(asyncio.Event()), rest) as router,
        AsyncClient(router.address, multiplex=True) as client,
    ):
        streams = [client.generate("harmful"), client.generate("another")]
        events = []
        for stream in streams:
            iterator = aiter(stream)
            assert isinstance(await anext(iterator), Accepted)
            events.append(iterator)
        gate.set()
        for iterator in events:
            assert isinstance([event async for event in iterator][-1], Finished)
    assert [stream.resumes for stream in streams] == [1, 1]
    assert len(router.calls("GenerateMany")) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
async def test_a_call_that_its_router_ends_leaves_no_task(code: grpc.StatusCode, gate: asyncio.Event) -> None:
    harmful = accepted(), Wait(gate), FailShared(code)
    async with (
        ScriptedRouter(harmful, WHOLE) as router,
        AsyncClient(router.address, multiplex=True) as client,
    ):
        generation = asyncio.create_task(client.complete("harmful"))
        await router.until_heard("Generate")
        assert num_writing() == 1
        gate.set()
        await generation
        async with asyncio.timeout(PATIENCE_S):
            while num_writing() > 0:
                await asyncio.sleep(0.01)


async def test_a_generation_without_events_is_sent_again_alone(
    gate: asyncio.Event,
) -> None:
    harmful = accepted(), Wait(gate), FailShared(grpc.StatusCode.INTERNAL)
    async with (
        ScriptedRouter(harmful, (HANG,), WHOLE) as router,
        AsyncClient(router.address, multiplex=True) as client,
    ):
        first = aiter(client.generate("harmful"))
        await anext(first)
        second = client.generate("another")
        collecting = asyncio.create_task(second.collect())
        await router.until_heard("Generate", 2)
        gate.set()
        assert (await collecting).choices[0].token_ids == (10, 11, 12)
        await first.aclose()
    assert (second.resumes, second.retries) == (0, 0)


async def test_a_generation_that_finds_its_call_full_has_one_of_its_own() -> None:
    full = Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", (because("ROUTER_BUSY"), retry_after(1)))
    async with (
        ScriptedRouter((full,), WHOLE) as router,
        AsyncClient(router.address, multiplex=True) as client,
    ):
        await client.complete("hello")
    assert (len(router.calls("GenerateMany")), len(router.calls("Generate"))) == (1, 2)


async def test_a_large_request_has_a_call_of_its_own() -> None:
    async with ScriptedRouter() as router, AsyncClient(router.address, multiplex=True) as client:
        await client.complete("x" * many.MAX_SHARED_BYTES)
    assert (len(router.calls("GenerateMany")), len(router.calls("Generate"))) == (0, 1)


async def test_a_generation_that_is_not_read_leaves_and_others_go_on(gate: asyncio.Event) -> None:
    pieces: list[Step] = [tokens(first, *range(1000)) for first in range(0, 20_000, 1000)]
    unread: tuple[Step, ...] = accepted(), Wait(gate), *pieces, HANG
    async with ScriptedRouter(unread, WHOLE) as router:
        transport = MultiplexedTransport(router.address)
        request = inference_pb2.GenerateRequest(text="slow")
        slow = transport.stream(GENERATE, request)
        await anext(slow)
        gate.set()
        await router.until_heard("Generate let go")
        others = [response async for response in transport.stream(GENERATE, request)]
        assert others[-1].event.HasField("finished")
        received = await _tokens_until_unavailable(slow)
        assert many.MAX_UNREAD_TOKENS <= received < len(pieces) * 1000
        await transport.close()


async def test_a_caller_that_reads_gets_more_at_once_than_may_be_unread() -> None:
    """The router sends a caller who attaches to a long generation all of its tokens in one message."""
    num = 2 * many.MAX_UNREAD_TOKENS
    replayed = (accepted(), tokens(0, *range(num)), ended(num), finished())
    async with ScriptedRouter(replayed) as router, AsyncClient(router.address, multiplex=True) as client:
        stream = client.generate("hello")
        assert len((await stream.collect()).choices[0].token_ids) == num
    assert stream.resumes == 0


async def _tokens_until_unavailable(stream: AsyncIterator[inference_pb2.GenerateResponse]) -> int:
    received = 0
    try:
        async for response in stream:
            received += len(response.event.tokens.token_ids)
    except Unavailable as error:
        assert "unread" in str(error)  # noqa: PT017 -- what came before it counts
        return received
    raise AssertionError("the stream ended without an error")


async def test_closing_the_client_ends_its_generations() -> None:
    async with ScriptedRouter((accepted(), HANG)) as router:
        transport = MultiplexedTransport(router.address)
        stream = transport.stream(GENERATE, inference_pb2.GenerateRequest(text="hello"))
        await anext(stream)
        reading = asyncio.create_task(_next(stream))
        await asyncio.sleep(0)
        await transport.close()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(asyncio.CancelledError):
                await reading


async def _all_of(stream: AsyncIterator[Response]) -> list[Response]:
    return [response async for response in stream]


async def _next(stream: AsyncIterator[inference_pb2.GenerateResponse]) -> inference_pb2.GenerateResponse:
    return await anext(stream)


class Relayed:
    """Takes tokens, as long as it likes."""

    def __init__(self, takes: Callable[[str], bool] = lambda _: True) -> None:
        self.texts: list[str] = []
        self._takes = takes

    def take(self, text: str, deltas: Sequence[Delta], num_tokens: int) -> bool:
        if not self._takes(text):
            return False
        self.texts.append(text)
        return True


async def until_it_awaits(event: asyncio.Task[Event]) -> None:
    """Wait until everything that has arrived was read."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not event.done()


async def test_tokens_are_relayed_while_their_event_is_awaited(gate: asyncio.Event) -> None:
    gates = [asyncio.Event() for _ in range(2)]
    script = (
        accepted(),
        Wait(gates[0]),
        tokens(0, 10),
        Wait(gates[1]),
        tokens(1, 11, 12),
        ended(3),
        finished(),
    )
    relayed = Relayed()
    async with ScriptedRouter(script) as router, AsyncClient(router.address, multiplex=True) as client:
        stream = client.generate("hello")
        events = aiter(stream)
        assert isinstance(await anext(events), Accepted)
        stream.relay_to(relayed.take)
        following: asyncio.Task[Event] = asyncio.ensure_future(anext(events))
        await until_it_awaits(following)
        gates[0].set()
        async with asyncio.timeout(PATIENCE_S):
            while not relayed.texts:
                await asyncio.sleep(0.001)
        assert not following.done()
        gates[1].set()
        assert isinstance(await following, ChoiceFinished)
        assert relayed.texts == ["<10>", "<11><12>"]
        assert isinstance(await anext(events), Finished)


@pytest.mark.parametrize("kept", ["<10>", "<11>", "<12>"])
async def test_tokens_that_the_relay_leaves_are_events(kept: str) -> None:
    script = (accepted(), tokens(0, 10), tokens(1, 11), tokens(2, 12), ended(3), finished())
    relayed = Relayed(lambda text: text != kept)
    async with ScriptedRouter(script) as router, AsyncClient(router.address, multiplex=True) as client:
        stream = client.generate("hello")
        stream.relay_to(relayed.take)
        told = [event.text async for event in stream if isinstance(event, Tokens)]
    assert kept in told
    assert sorted(told + relayed.texts) == ["<10>", "<11>", "<12>"]


async def test_a_break_is_resumed_with_the_tokens_that_were_relayed(gate: asyncio.Event) -> None:
    broken = (accepted(), Wait(gate), tokens(0, 10, 11), Fail(grpc.StatusCode.UNAVAILABLE))
    rest = (accepted(), tokens(2, 12), ended(3), finished())
    relayed = Relayed()
    async with ScriptedRouter(broken, rest) as router, AsyncClient(router.address, multiplex=True) as client:
        stream = client.generate("hello")
        stream.relay_to(relayed.take)
        events = aiter(stream)
        await anext(events)
        following: asyncio.Task[Event] = asyncio.ensure_future(anext(events))
        await until_it_awaits(following)
        gate.set()
        assert (await following, relayed.texts) == (Tokens(0, 2, (12,), "<12>"), ["<10><11>"])
        (received,) = (await router.until_heard("Resume")).received
        assert list(received.token_ids) == [10, 11]
        assert isinstance([event async for event in events][-1], Finished)


async def test_a_lost_row_is_noticed_and_not_relayed(gate: asyncio.Event) -> None:
    script = (accepted(), Wait(gate), tokens(1, 11), HANG)
    relayed = Relayed()
    async with ScriptedRouter(script) as router, AsyncClient(router.address, multiplex=True) as client:
        stream = client.generate("hello")
        stream.relay_to(relayed.take)
        events = aiter(stream)
        await anext(events)
        following: asyncio.Task[Event] = asyncio.ensure_future(anext(events))
        await until_it_awaits(following)
        gate.set()
        with pytest.raises(StreamCorrupt):
            await following
    assert relayed.texts == []


async def test_a_relay_that_fails_ends_only_its_own_generation(gate: asyncio.Event) -> None:
    def fail(_: str) -> bool:
        raise ValueError("a bug")

    async with ScriptedRouter(waiting(gate)) as router, AsyncClient(router.address, multiplex=True) as client:
        streams = [client.generate("hello") for _ in range(2)]
        for stream, relayed in zip(streams, (Relayed(fail), Relayed()), strict=True):
            stream.relay_to(relayed.take)
        events = [aiter(stream) for stream in streams]
        for iterator in events:
            await anext(iterator)
        following: list[asyncio.Task[Event]] = [asyncio.ensure_future(anext(iterator)) for iterator in events]
        for task in following:
            await until_it_awaits(task)
        gate.set()
        with pytest.raises(ValueError, match="a bug"):
            await following[0]
        assert isinstance(await following[1], ChoiceFinished)
        assert isinstance(await anext(events[1]), Finished)
