import asyncio
import gc

import grpc
import pytest
from google.rpc import error_details_pb2

from baton import (
    Accepted,
    AsyncClient,
    ChoiceFinished,
    Finished,
    FinishReason,
    Queued,
    Sampling,
    Stop,
    Timeout,
    Tokens,
)
from baton.errors import (
    Conflict,
    GenerationFailed,
    Internal,
    InvalidRequest,
    StreamCorrupt,
    TimedOut,
    Unavailable,
)
from baton.types import Event
from baton.v1 import generation_pb2
from tests.baton.scripted_service import (
    BREAK,
    HANG,
    WHOLE,
    Fail,
    ScriptedRouter,
    Silence,
    Step,
    accepted,
    ended,
    finished,
    queued,
    retrying,
    tokens,
)

QUICK = Timeout(connect_s=0.3)


async def test_events_come_typed_and_in_order() -> None:
    async with ScriptedRouter() as router, AsyncClient(router.address) as client:
        events = [event async for event in client.generate("hello")]
    kinds = [type(event) for event in events]
    assert kinds == [Accepted, Queued, Tokens, Tokens, ChoiceFinished, Finished]
    assert events[3] == Tokens(choice=0, first_index=1, token_ids=(11, 12), text="<11><12>")
    assert events[4] == ChoiceFinished(choice=0, reason=FinishReason.LENGTH, output_tokens=3)
    assert isinstance(events[5], Finished)
    assert events[5].delivery.tpot_ms == 5.5
    assert events[5].split.handoff_ms == 3
    assert events[5].path == "disaggregated"


async def test_a_collected_generation_has_the_whole_text_of_every_choice() -> None:
    script = (
        accepted(seed=5, request_id="mine"),
        tokens(0, 1, choice=1),
        tokens(0, 2, 3, choice=0),
        tokens(1, 4, choice=1),
        ended(2, choice=0),
        ended(2, choice=1, reason=generation_pb2.FINISH_REASON_EOS),
        finished(),
    )
    async with ScriptedRouter(script) as router, AsyncClient(router.address) as client:
        completion = await client.complete("hello", sampling=Sampling(n=2), request_id="mine")
    assert (completion.request_id, completion.seed, completion.resumes) == ("mine", 5, 0)
    assert [choice.text for choice in completion.choices] == ["<2><3>", "<1><4>"]
    assert completion.choices[1].token_ids == (1, 4)
    assert completion.choices[1].finish_reason is FinishReason.EOS
    assert completion.text == "<2><3>"


TOO_SLOW = Fail(
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    "the client reads too slowly",
    (error_details_pb2.ErrorInfo(reason="READER_TOO_SLOW", domain="baton.v1"),),
)


@pytest.mark.parametrize("end", [BREAK, Silence(), Fail(grpc.StatusCode.CANCELLED), TOO_SLOW])
async def test_a_broken_stream_is_resumed_by_index_unnoticed(end: Step) -> None:
    first = (accepted(), queued(), tokens(0, 10, 11), end)
    rest = (accepted(), tokens(2, 12), ended(3), finished())
    async with ScriptedRouter(first, rest) as router, AsyncClient(router.address) as client:
        stream = client.generate("hello", stop=Stop(max_tokens=3))
        events = [event async for event in stream]
    assert [type(event) for event in events] == [Accepted, Queued, Tokens, Tokens, ChoiceFinished, Finished]
    assert stream.resumes == 1
    [sent], [resume] = router.calls("Generate"), router.calls("Resume")
    assert resume.request == sent
    assert resume.session == 1
    assert [(part.choice, list(part.token_ids)) for part in resume.received] == [(0, [10, 11])]


async def test_each_break_of_a_stream_raises_the_session() -> None:
    scripts = (
        (accepted(), tokens(0, 10), BREAK),
        (tokens(1, 11), BREAK),
        (BREAK,),
        (tokens(2, 12), ended(3), finished()),
    )
    async with ScriptedRouter(*scripts) as router, AsyncClient(router.address) as client:
        completion = await client.complete("hello")
    assert completion.choices[0].token_ids == (10, 11, 12)
    assert completion.resumes == 2, "a session that said nothing bridged nothing"
    resumes = router.calls("Resume")
    assert [resume.session for resume in resumes] == [1, 2, 3]
    assert [list(resume.received[0].token_ids) for resume in resumes] == [[10], [10, 11], [10, 11]]


async def test_the_next_router_is_told_how_many_attempts_have_failed() -> None:
    scripts = (
        (accepted(), tokens(0, 10), BREAK),
        (accepted(), retrying(1), tokens(1, 11), retrying(2), BREAK),
        (accepted(), retrying(1), BREAK),
        (accepted(), tokens(2, 12), ended(3), finished()),
    )
    async with ScriptedRouter(*scripts) as router, AsyncClient(router.address) as client:
        events = [event async for event in client.generate("hello")]
    assert [type(event) for event in events] == [Accepted, Tokens, Tokens, Tokens, ChoiceFinished, Finished]
    assert [resume.failed_attempts for resume in router.calls("Resume")] == [0, 2, 1]


async def test_choices_without_tokens_are_left_out_of_a_resumption() -> None:
    scripts = (
        (accepted(), tokens(0, 10, choice=1), ended(1, choice=1), BREAK),
        (accepted(), ended(1, choice=1), tokens(0, 20), ended(1), finished()),
    )
    async with ScriptedRouter(*scripts) as router, AsyncClient(router.address) as client:
        events = [event async for event in client.generate("hello", sampling=Sampling(n=2))]
    [resume] = router.calls("Resume")
    assert [(part.choice, list(part.token_ids)) for part in resume.received] == [(1, [10])]
    ends = [event.choice for event in events if isinstance(event, ChoiceFinished)]
    assert ends == [1, 0], "the end of a choice is told once"


async def test_a_generation_goes_on_at_another_router_when_its_own_dies() -> None:
    dying, living = (
        ScriptedRouter((accepted(), tokens(0, 10), HANG)),
        ScriptedRouter((tokens(1, 11), ended(2), finished())),
    )
    async with dying, living, AsyncClient([dying.address, living.address]) as client:
        stream = client.generate("hello")
        received: list[int] = []
        async for event in stream:
            if isinstance(event, Tokens):
                received += event.token_ids
                if received == [10]:
                    await dying.stop()
    assert received == [10, 11]
    assert stream.resumes == 1
    assert len(living.calls("Resume")) == 1


async def test_before_any_event_the_same_request_is_sent_again() -> None:
    async with ScriptedRouter((BREAK,), WHOLE) as router, AsyncClient(router.address) as client:
        stream = client.generate("hello")
        events = [event async for event in stream]
    assert isinstance(events[-1], Finished)
    assert (stream.retries, stream.resumes) == (1, 0)
    first, second = router.calls("Generate")
    assert first == second
    assert first.request_id == stream.request_id != ""
    assert router.calls("Resume") == []


async def test_the_client_draws_the_seed_so_all_routers_share_the_noise() -> None:
    async with ScriptedRouter() as router, AsyncClient(router.address) as client:
        await client.complete("hello")
        await client.complete("hello", sampling=Sampling(seed=0))
    drawn, stated = router.calls("Generate")
    assert drawn.sampling.HasField("seed")
    assert drawn.sampling.seed != 0
    assert stated.sampling.seed == 0


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
    code: grpc.StatusCode, error: type[Exception], *, begun: bool
) -> None:
    script = (accepted(), tokens(0, 1), Fail(code)) if begun else (Fail(code),)
    async with ScriptedRouter(script) as router, AsyncClient(router.address) as client:
        with pytest.raises(error, match="scripted"):
            await client.complete("hello")
    assert len(router.calls("Generate")) == 1
    assert router.calls("Resume") == []


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_call_that_crashes_is_bridged(code: grpc.StatusCode, *, begun: bool) -> None:
    crash = (accepted(), tokens(0, 1), Fail(code)) if begun else (Fail(code),)
    whole = (accepted(), tokens(0, 1, 2), ended(2), finished())
    rest = (accepted(), tokens(1, 2), ended(2), finished()) if begun else whole
    async with ScriptedRouter(crash, rest) as router, AsyncClient(router.address) as client:
        done = await client.complete("hello")
    assert done.choices[0].token_ids == (1, 2)
    assert len(router.calls("Generate")) + len(router.calls("Resume")) == 2


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
async def test_a_request_that_crashes_every_call_is_given_up(code: grpc.StatusCode) -> None:
    async with ScriptedRouter((Fail(code),)) as router, AsyncClient(router.address) as client:
        with pytest.raises(Internal, match="scripted"):
            await client.complete("hello")
    assert len(router.calls("Generate")) == 3


async def test_patience_ends_in_unavailable_naming_the_router() -> None:
    async with ScriptedRouter((BREAK,)) as router, AsyncClient(router.address, timeout=QUICK) as client:
        with pytest.raises(Unavailable, match="the router went away") as error:
            await client.complete("hello")
        assert error.value.address == router.address
    assert len(router.calls("Generate")) > 1


async def test_no_router_at_all_is_unavailable() -> None:
    async with ScriptedRouter() as gone:
        pass
    async with AsyncClient(gone.address, timeout=QUICK) as client:
        with pytest.raises(Unavailable):
            await client.complete("hello")


@pytest.mark.parametrize(
    ("index", "says"), [(2, "a token was lost: expected index 1, got 2"), (0, "a token came twice")]
)
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_lost_or_repeated_token_is_an_error_never_passed_on(
    index: int, says: str, *, resumed: bool
) -> None:
    good, bad = (accepted(), tokens(0, 10)), (tokens(index, 11), HANG)
    scripts = [(*good, BREAK), bad] if resumed else [(*good, *bad)]
    async with ScriptedRouter(*scripts) as router, AsyncClient(router.address) as client:
        received: list[Event] = []

        async def receive() -> None:
            async for event in client.generate("hello", request_id="mine"):
                received.append(event)  # noqa: PERF401  (an exception must not lose what came before)

        with pytest.raises(StreamCorrupt, match=says):
            await receive()
        assert [event.token_ids for event in received if isinstance(event, Tokens)] == [(10,)]
        assert (await router.until_heard("Cancel")).request_id == "mine"


@pytest.mark.parametrize(
    "contradiction",
    [
        (tokens(0, 1), ended(1), tokens(1, 2)),
        (tokens(0, 1, choice=5),),
        (tokens(0, 1), finished()),
    ],
)
async def test_events_that_contradict_each_other_are_an_error(contradiction: tuple[Step, ...]) -> None:
    script = (accepted(), *contradiction, HANG)
    async with ScriptedRouter(script) as router, AsyncClient(router.address) as client:
        with pytest.raises(Internal):
            await client.complete("hello")


async def test_an_end_with_another_count_than_came_is_an_error() -> None:
    script = (accepted(), tokens(0, 1), ended(2), finished())
    async with ScriptedRouter(script) as router, AsyncClient(router.address) as client:
        with pytest.raises(StreamCorrupt):
            await client.complete("hello")


async def test_breaking_out_of_the_loop_ends_the_generation_on_the_fleet() -> None:
    script = (accepted(), tokens(0, 10), HANG)
    async with ScriptedRouter(script) as router, AsyncClient(router.address) as client:
        async for event in client.generate("hello", request_id="mine"):
            if isinstance(event, Tokens):
                break
        gc.collect()
        await router.until_heard("Generate let go")
        assert (await router.until_heard("Cancel")).request_id == "mine"


async def test_leaving_the_block_ends_the_generation_on_the_fleet() -> None:
    script = (accepted(), tokens(0, 10), HANG)
    async with ScriptedRouter(script) as router, AsyncClient(router.address) as client:
        async with client.generate("hello", request_id="mine") as stream:
            events = aiter(stream)
            assert isinstance(await anext(events), Accepted)
        assert (await router.until_heard("Cancel")).request_id == "mine"


async def test_a_cancelled_caller_ends_the_generation_on_the_fleet() -> None:
    script = (accepted(), HANG)
    async with ScriptedRouter(script) as router, AsyncClient(router.address) as client:
        task = asyncio.create_task(client.complete("hello", request_id="mine"))
        await router.until_heard("Generate")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await router.until_heard("Cancel")).request_id == "mine"


async def test_closing_the_client_lets_the_cancellation_through() -> None:
    async with ScriptedRouter((accepted(), HANG)) as router:
        async with AsyncClient(router.address) as client:
            stream = client.generate("hello", request_id="mine")
            async with stream:
                await anext(aiter(stream))
        assert router.calls("Cancel")[0].request_id == "mine"


async def test_a_generation_that_ended_is_not_cancelled() -> None:
    async with ScriptedRouter() as router:
        async with AsyncClient(router.address) as client:
            async for event in client.generate("hello"):
                if isinstance(event, Finished):
                    break
            await client.complete("again")
        assert router.calls("Cancel") == []


@pytest.mark.parametrize(
    ("timeout", "phase", "script"),
    [
        (Timeout(first_token_s=0.2), "first_token_s", (accepted(), queued(), HANG)),
        (Timeout(total_s=0.2), "total_s", (accepted(), tokens(0, 1), HANG)),
        (Timeout(first_token_s=0.2, total_s=9), "first_token_s", (HANG,)),
        (Timeout(connect_s=9, total_s=0.2), "total_s", (BREAK,)),
    ],
)
async def test_a_timeout_names_its_phase_and_ends_the_generation(
    timeout: Timeout, phase: str, script: tuple[Step, ...]
) -> None:
    async with ScriptedRouter(script) as router, AsyncClient(router.address, timeout=timeout) as client:
        with pytest.raises(TimedOut) as error:
            await client.complete("hello")
        assert error.value.phase == phase
        await router.until_heard("Cancel")


async def test_the_first_token_ends_the_wait_for_the_first_token() -> None:
    first = (accepted(), tokens(0, 1), HANG)
    timeout = Timeout(first_token_s=2.0, total_s=2.5)
    async with ScriptedRouter(first) as router, AsyncClient(router.address, timeout=timeout) as client:
        with pytest.raises(TimedOut) as error:
            await client.complete("hello")
    assert error.value.phase == "total_s"


async def test_a_failed_generation_keeps_what_came() -> None:
    script = (
        accepted(),
        tokens(0, 1),
        ended(1, reason=generation_pb2.FINISH_REASON_FAILED),
        finished(error="no decode worker was left"),
    )
    async with ScriptedRouter(script) as router, AsyncClient(router.address) as client:
        with pytest.raises(GenerationFailed, match="no decode worker was left") as error:
            await client.complete("hello")
    assert error.value.completion.text == "<1>"
    assert error.value.completion.choices[0].finish_reason is FinishReason.FAILED


async def test_a_finish_reason_of_another_version_is_an_error() -> None:
    script = (accepted(), ended(0, reason=0), finished())
    async with ScriptedRouter(script) as router, AsyncClient(router.address) as client:
        with pytest.raises(Internal, match="finish reason"):
            await client.complete("hello")


async def test_a_stream_is_iterated_only_once() -> None:
    async with ScriptedRouter() as router, AsyncClient(router.address) as client:
        stream = client.generate("hello")
        await stream.collect()
        with pytest.raises(RuntimeError, match="only once"):
            aiter(stream)
