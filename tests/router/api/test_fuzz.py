"""Whatever is sent to the public door: an answer that says what is wrong, no neighbour harmed, no leak."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio
import hypothesis
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

from baton.v1 import errors_pb2, generation_pb2, inference_pb2
from tests.fuzzing import fuzz, messages
from tests.patience import PATIENCE_S
from tests.router.calls import PROMPT, expected, fields_of, reason_of, tokens_of, value_at
from tests.router.conftest import RunningFleet, until

pytestmark = pytest.mark.integration

MISTAKES = frozenset({grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS})
"""A code of these would mean that a request found something nobody had thought of."""
SERVED = inference_pb2.GenerateRequest(
    tokens=inference_pb2.TokenInput(token_ids=PROMPT), stop=generation_pb2.StopRules(max_tokens=5)
)


@st.composite
def nearly_right(draw: st.DrawFn) -> inference_pb2.GenerateRequest:
    """A request that would be served, with some of its parts replaced by anything."""
    request, odd = inference_pb2.GenerateRequest(), draw(messages(inference_pb2.GenerateRequest))
    request.CopyFrom(SERVED)
    names = [field.name for field, _ in odd.ListFields()]
    kept = draw(st.sets(st.sampled_from(names))) if names else set()
    for name in names:
        if name in kept:
            odd.ClearField(name)
        else:
            request.ClearField(name)
    try:
        request.MergeFrom(odd)
    except DecodeError:  # deeper than protobuf itself takes
        hypothesis.reject()
    return request


async def said_of(call: Callable[[], Any]) -> grpc.aio.AioRpcError | None:
    """The error that a stream ends with, if it does before some of its events have come."""
    stream = call()
    try:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(6):
                if await stream.read() is grpc.aio.EOF:
                    break
    except grpc.aio.AioRpcError as error:
        return error
    finally:
        stream.cancel()
    return None


async def check(call: Callable[[], Any], request: Message | None = None) -> None:
    error = await said_of(call)
    if error is not None:
        check_error(error, request)


def check_error(error: grpc.aio.AioRpcError, request: Message | None) -> None:
    """It says what is wrong: in words, by a reason of the contract, and by paths into the request."""
    assert error.code() not in MISTAKES, error.details()
    assert error.details(), "an error without a word"
    assert reason_of(error) in set(errors_pb2.ErrorReason.keys())
    if request is not None and error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        assert fields_of(error), error.details()
        for path in fields_of(error):
            value_at(request, path)


async def check_neighbour(fleet: RunningFleet) -> None:
    """Somebody who asks for nothing odd is served as ever, and nothing is left of the others."""
    events = [response.event async for response in fleet.inference.Generate(SERVED)]
    assert tokens_of(events) == expected(5)
    await until(fleet.nothing_is_held)


async def test_any_request_is_answered_and_harms_nobody(fleet: RunningFleet) -> None:
    await fleet.pair()
    await fuzz(nearly_right(), lambda request: check(lambda: fleet.inference.Generate(request), request), 120)
    await check_neighbour(fleet)


async def test_any_resumption_is_answered_and_harms_nobody(fleet: RunningFleet) -> None:
    await fleet.pair()
    resumptions = st.builds(
        lambda request, odd: inference_pb2.ResumeRequest(
            request=request, session=odd.session, received=odd.received
        ),
        nearly_right(),
        messages(inference_pb2.ResumeRequest),
    )
    await fuzz(resumptions, lambda request: check(lambda: fleet.inference.Resume(request), request), 120)
    await check_neighbour(fleet)


@pytest.mark.parametrize("method", ["Quote", "Cancel", "CountTokens", "Detokenize", "GenerateOnce"])
async def test_any_question_is_answered(fleet: RunningFleet, method: str) -> None:
    await fleet.pair()

    async def ask(request: Message) -> None:
        answer = await asyncio.gather(getattr(fleet.inference, method)(request), return_exceptions=True)
        if isinstance(answer[0], BaseException):
            assert isinstance(answer[0], grpc.aio.AioRpcError)
            check_error(answer[0], request)

    kind = getattr(inference_pb2, f"{method}Request")
    holds_request = "request" in kind.DESCRIPTOR.fields_by_name
    requests = nearly_right().map(lambda inner: kind(request=inner)) if holds_request else messages(kind)
    await fuzz(requests, ask, 80)
    await check_neighbour(fleet)


async def test_bytes_that_are_no_message_are_answered(fleet: RunningFleet) -> None:
    await fleet.pair()

    async def send(data: bytes) -> None:
        await check(lambda: generate(data))

    async with grpc.aio.insecure_channel(fleet.address) as channel:
        generate: Any = channel.unary_stream("/baton.v1.InferenceService/Generate")
        await fuzz(st.binary(max_size=40), send, 60)
    await check_neighbour(fleet)
