"""Streams of the Python SDK alone; tests/vectors has what all SDKs have in common."""

import asyncio
import gc

import grpc
import pytest
from google.rpc import error_details_pb2

from baton import (
    Accepted,
    AsyncClient,
    Tokens,
)
from baton.errors import (
    Conflict,
    Internal,
    InvalidRequest,
    Superseded,
)
from baton.progress import MAX_TAKEN_BACK
from baton.v1 import inference_pb2
from tests.baton.scripted_service import (
    BREAK,
    HANG,
    WHOLE,
    Fail,
    Pb,
    ScriptedRouter,
    accepted,
    ended,
    finished,
    tokens,
)

TAKEN = Fail(
    grpc.StatusCode.ABORTED,
    "session is 0",
    (error_details_pb2.ErrorInfo(reason="SUPERSEDED", domain="baton.v1", metadata={"session": "3"}),),
)


pytestmark = pytest.mark.parametrize("multiplex", [False, True], ids=["alone", "multiplexed"])


async def test_a_new_call_takes_back_a_resumed_request(*, multiplex: bool) -> None:
    async with (
        ScriptedRouter((TAKEN,), WHOLE) as router,
        AsyncClient(router.address, multiplex=multiplex) as client,
    ):
        completion = await client.complete("hello", request_id="mine")
    assert completion.choices[0].token_ids == (10, 11, 12)
    (resume,) = router.calls("Resume")
    assert (resume.session, list(resume.received)) == (4, [])
    assert resume.request == router.calls("Generate")[0]


async def test_a_break_is_resumed_after_the_session_that_the_router_named(*, multiplex: bool) -> None:
    taken_back = Pb(retrying=inference_pb2.Retrying(session=5))
    scripts = (
        (accepted(), taken_back, tokens(0, 10), BREAK),
        (accepted(), tokens(1, 11), ended(2), finished()),
    )
    async with ScriptedRouter(*scripts) as router, AsyncClient(router.address, multiplex=multiplex) as client:
        completion = await client.complete("hello")
    assert completion.choices[0].token_ids == (10, 11)
    assert [resume.session for resume in router.calls("Resume")] == [6]


async def test_a_request_that_others_keep_taking_is_given_up(*, multiplex: bool) -> None:
    async with ScriptedRouter((TAKEN,)) as router, AsyncClient(router.address, multiplex=multiplex) as client:
        with pytest.raises(Superseded):
            await client.complete("hello", request_id="mine")
    assert (len(router.calls("Generate")), len(router.calls("Resume"))) == (1, MAX_TAKEN_BACK)


async def test_what_an_earlier_caller_sent_and_came_late_is_taken_back_too(*, multiplex: bool) -> None:
    async with (
        ScriptedRouter((TAKEN,), (TAKEN,), WHOLE) as router,
        AsyncClient(router.address, multiplex=multiplex) as client,
    ):
        completion = await client.complete("hello", request_id="mine")
    assert completion.choices[0].token_ids == (10, 11, 12)
    assert [resume.session for resume in router.calls("Resume")] == [4, 5]


async def test_a_resume_that_breaks_is_followed_by_a_session_of_its_own(*, multiplex: bool) -> None:
    """The broken one may still be at work on its router, and the next one go to another."""
    async with (
        ScriptedRouter((TAKEN,), (accepted(), BREAK), WHOLE) as router,
        AsyncClient(router.address, multiplex=multiplex) as client,
    ):
        await client.complete("hello", request_id="mine")
    assert [resume.session for resume in router.calls("Resume")] == [4, 5]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.ALREADY_EXISTS, Conflict),
        (grpc.StatusCode.DATA_LOSS, Internal),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
async def test_what_would_fail_again_is_not_tried_again(
    code: grpc.StatusCode, error: type[Exception], *, begun: bool, multiplex: bool
) -> None:
    script = (accepted(), tokens(0, 1), Fail(code)) if begun else (Fail(code),)
    async with ScriptedRouter(script) as router, AsyncClient(router.address, multiplex=multiplex) as client:
        with pytest.raises(error, match="scripted"):
            await client.complete("hello")
    assert len(router.calls("Generate")) == 1
    assert router.calls("Resume") == []


async def test_breaking_out_of_the_loop_ends_the_generation_on_the_fleet(*, multiplex: bool) -> None:
    script = (accepted(), tokens(0, 10), HANG)
    async with ScriptedRouter(script) as router, AsyncClient(router.address, multiplex=multiplex) as client:
        async for event in client.generate("hello", request_id="mine"):
            if isinstance(event, Tokens):
                break
        gc.collect()
        await router.until_heard("Generate let go")
        assert (await router.until_heard("Cancel")).request_id == "mine"


async def test_leaving_the_block_ends_the_generation_on_the_fleet(*, multiplex: bool) -> None:
    script = (accepted(), tokens(0, 10), HANG)
    async with ScriptedRouter(script) as router, AsyncClient(router.address, multiplex=multiplex) as client:
        async with client.generate("hello", request_id="mine") as stream:
            events = aiter(stream)
            assert isinstance(await anext(events), Accepted)
        assert (await router.until_heard("Cancel")).request_id == "mine"


async def test_a_cancelled_caller_ends_the_generation_on_the_fleet(*, multiplex: bool) -> None:
    script = (accepted(), HANG)
    async with ScriptedRouter(script) as router, AsyncClient(router.address, multiplex=multiplex) as client:
        task = asyncio.create_task(client.complete("hello", request_id="mine"))
        await router.until_heard("Generate")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await router.until_heard("Cancel")).request_id == "mine"


async def test_closing_the_client_lets_the_cancellation_through(*, multiplex: bool) -> None:
    async with ScriptedRouter((accepted(), HANG)) as router:
        async with AsyncClient(router.address, multiplex=multiplex) as client:
            stream = client.generate("hello", request_id="mine")
            async with stream:
                await anext(aiter(stream))
        assert router.calls("Cancel")[0].request_id == "mine"


async def test_a_stream_is_iterated_only_once(*, multiplex: bool) -> None:
    async with ScriptedRouter() as router, AsyncClient(router.address, multiplex=multiplex) as client:
        stream = client.generate("hello")
        await stream.collect()
        with pytest.raises(RuntimeError, match="only once"):
            aiter(stream)
