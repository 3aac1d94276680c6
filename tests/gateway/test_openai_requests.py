"""Requests to a scripted router, and the errors that come of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

from baton.v1 import errors_pb2, generation_pb2, inference_pb2
from tests.baton.scripted_service import (
    HANG,
    WHOLE,
    Fail,
    ScriptedRouter,
    accepted,
    ended,
    finished,
    queued,
    tokens,
)
from tests.gateway.running import Gateway, running_gateway

MODEL = inference_pb2.ListModelsResponse(
    models=[
        inference_pb2.Model(
            name="m", architecture="A", max_context_tokens=512, vocab_size=8, fingerprint="f" * 32
        )
    ]
)
HELLO = [{"role": "user", "content": "hello"}]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[tuple[ScriptedRouter, Gateway]]:
    async with ScriptedRouter(ListModels=MODEL) as scripted, running_gateway([scripted.address]) as running:
        yield scripted, running


@pytest.fixture
def router(pair: tuple[ScriptedRouter, Gateway]) -> ScriptedRouter:
    scripted, _ = pair
    scripted.scripts[:] = [WHOLE]
    scripted.heard_calls.clear()
    return scripted


@pytest.fixture
def gateway(pair: tuple[ScriptedRouter, Gateway]) -> Gateway:
    return pair[1]


async def test_every_field_of_a_chat_reaches_the_router(router: ScriptedRouter, gateway: Gateway) -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        "max_completion_tokens": 7,
        "n": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"5": 1.5},
        "seed": 11,
        "stop": ["x", "y"],
        "stop_token_ids": [3],
        "min_tokens": 2,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "truncate_prompt_tokens": 100,
        "allowed_token_ids": [1, 2, 3],
        "bad_words": ["no"],
        "chat_template_kwargs": {"enable_thinking": False},
        "slo": {"ttft_ms": 500, "slo_class": "interactive"},
        "user": "u",
    }
    headers = {"x-baton-tpot-ms": "40", "idempotency-key": "mine"}
    response = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    [asked] = router.calls("Generate")
    expected = inference_pb2.GenerateRequest(
        request_id="mine",
        chat=inference_pb2.ChatInput(
            messages=[
                inference_pb2.ChatMessage(role="system", content="be brief"),
                inference_pb2.ChatMessage(role="user", content="a\nb"),
            ],
            continue_final_message=False,
        ),
        sampling=generation_pb2.SamplingParams(
            temperature=0.5,
            top_k=0,
            top_p=0.9,
            min_p=0.1,
            repetition_penalty=1.1,
            presence_penalty=0.2,
            frequency_penalty=0.3,
            logit_bias={5: 1.5},
            seed=11,
            n=1,
            allowed_token_ids=[1, 2, 3],
            bad_words=["no"],
        ),
        stop=generation_pb2.StopRules(
            max_tokens=7,
            min_tokens=2,
            stop_strings=["x", "y"],
            stop_token_ids=[3],
            ignore_eos=True,
            include_stop=True,
            skip_special_tokens=False,
        ),
        slo=generation_pb2.Slo(ttft_ms=500, tpot_ms=40, slo_class=generation_pb2.SLO_CLASS_INTERACTIVE),
        resume_grace_ms=10_000,
        truncate_prompt_tokens=100,
        user="u",
    )
    expected.chat.template_arguments.update({"enable_thinking": False})
    assert asked == expected


async def test_a_user_whom_no_log_could_name_is_left_out(router: ScriptedRouter, gateway: Gateway) -> None:
    for fields, user in (
        ({"user": "Zo\u00eb"}, ""),
        ({"user": "x" * 129}, ""),
        ({"safety_identifier": "a-hash"}, "a-hash"),
    ):
        await gateway.http.post("/v1/chat/completions", json={"messages": HELLO} | fields)
        assert router.calls("Generate")[-1].user == user


async def test_a_chat_without_a_limit_may_fill_the_context(router: ScriptedRouter, gateway: Gateway) -> None:
    await gateway.http.post("/v1/chat/completions", json={"messages": HELLO})
    [asked] = router.calls("Generate")
    assert asked.stop.max_tokens == 512


async def test_a_repeated_idempotency_key_sends_the_same_request(
    router: ScriptedRouter, gateway: Gateway
) -> None:
    for _ in range(2):
        await gateway.http.post(
            "/v1/chat/completions", json={"messages": HELLO}, headers={"idempotency-key": "k"}
        )
    first, second = router.calls("Generate")
    assert first == second
    assert first.request_id == "k"


async def test_an_empty_idempotency_key_is_none(router: ScriptedRouter, gateway: Gateway) -> None:
    for _ in range(2):
        await gateway.http.post(
            "/v1/chat/completions", json={"messages": HELLO}, headers={"idempotency-key": ""}
        )
    first, second = router.calls("Generate")
    assert first.sampling.seed != second.sampling.seed


async def test_a_stream_ends_with_promise_delivery_and_usage(
    router: ScriptedRouter, gateway: Gateway
) -> None:
    body = {"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    response = await gateway.http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"] == "r"
    assert response.headers["x-baton-predicted-ttft-ms"] == "20.0"
    lines = [line for line in response.text.split("\n\n") if line]
    assert ": queued, 1 ahead" in lines
    assert lines[-1] == "data: [DONE]"
    chunks = [parsed(line) for line in lines if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "<10>"},
        {"content": "<11><12>"},
        {},
    ]
    end, usage = chunks[-2:]
    assert end["choices"][0]["finish_reason"] == "length"
    assert end["baton"]["delivery"]["tpot_ms"] == 5.5
    assert end["baton"]["time_split"]["handoff_ms"] == 3
    assert end["baton"]["path"] == "disaggregated"
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_each_chunk_may_have_the_usage_so_far(router: ScriptedRouter, gateway: Gateway) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": HELLO, "stream": True, "stream_options": options}
    response = await gateway.http.post("/v1/chat/completions", json=body)
    chunks = [parsed(line) for line in response.text.split("\n\n") if line.startswith("data: {")]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 3, 3, 4]


async def test_usage_so_far_does_not_need_the_last_chunk(router: ScriptedRouter, gateway: Gateway) -> None:
    options = {"continuous_usage_stats": True}
    body = {"messages": HELLO, "stream": True, "stream_options": options}
    response = await gateway.http.post("/v1/chat/completions", json=body)
    chunks = [parsed(line) for line in response.text.split("\n\n") if line.startswith("data: {")]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 3, 3]
    assert all(chunk["choices"] for chunk in chunks)


async def test_messages_may_have_ids_and_refusals(router: ScriptedRouter, gateway: Gateway) -> None:
    for answer, content in (
        ({"content": [{"type": "refusal", "refusal": "I won't."}]}, "I won't."),
        (
            {"content": [{"type": "text", "text": "No."}, {"type": "refusal", "refusal": "Never."}]},
            "No.\nNever.",
        ),
        ({"content": None, "refusal": "I can't."}, "I can't."),
        ({"content": "Yes.", "refusal": None}, "Yes."),
        ({"content": None}, ""),
        ({}, ""),
    ):
        said = {"role": "assistant", "id": "msg_1", **answer}
        response = await gateway.http.post("/v1/chat/completions", json={"messages": [*HELLO, said, *HELLO]})
        assert response.status_code == 200, response.text
        assert response.headers["x-baton-ignored"] == "messages[1].id"
        assert router.calls("Generate")[-1].chat.messages[1].content == content
    users = {"role": "user", "content": [{"type": "refusal", "refusal": "I won't."}]}
    response = await gateway.http.post("/v1/chat/completions", json={"messages": [users]})
    assert response.json()["error"]["param"] == "messages[0].content[0].type"


SCHEMA = {"type": "null"}
FORMATS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"response_format": {"type": "text"}}, {}),
    ({"response_format": {"type": "json_object"}}, {"json_object": True}),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        {"json_schema": json.dumps(SCHEMA)},
    ),
    ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": json.dumps(SCHEMA)}),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json_schema": json.dumps(SCHEMA)}),
    ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
    ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
    ({"structured_outputs": {"grammar": "root ::= [a]"}}, {"grammar": "root ::= [a]"}),
    (
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"choice": generation_pb2.TextChoices(texts=["a", "b"])},
    ),
]


@pytest.mark.parametrize(("asked", "expected"), FORMATS)
async def test_every_format_reaches_the_router(
    router: ScriptedRouter, gateway: Gateway, asked: dict[str, Any], expected: dict[str, Any]
) -> None:
    chat, text = {"messages": HELLO}, {"prompt": "hello"}
    for path, body in (("/v1/chat/completions", chat), ("/v1/completions", text)):
        response = await gateway.http.post(path, json=body | asked)
        assert response.status_code == 200, response.text
        sent = router.calls("Generate")[-1]
        assert sent.output_format == generation_pb2.OutputFormat(**expected)
        assert sent.HasField("output_format") == bool(expected)


async def test_a_prompt_may_end_with_the_last_message(router: ScriptedRouter, gateway: Gateway) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "Well,"}]
    for fields in ({"continue_final_message": True}, {"add_generation_prompt": False}):
        await gateway.http.post("/v1/chat/completions", json={"messages": messages} | fields)
        chat = router.calls("Generate")[-1].chat
        assert chat.continue_final_message == ("continue_final_message" in fields)
        assert chat.HasField("add_generation_prompt") == ("add_generation_prompt" in fields)
        assert not chat.add_generation_prompt


async def test_a_failed_generation_ends_its_stream_with_an_error(
    router: ScriptedRouter, gateway: Gateway
) -> None:
    failed = ended(1, reason=generation_pb2.FINISH_REASON_FAILED)
    router.scripts[:] = [(accepted(), tokens(0, 1), failed, finished("five workers were lost"))]
    streamed = await gateway.http.post("/v1/chat/completions", json={"messages": HELLO, "stream": True})
    last = parsed(streamed.text.split("\n\n")[-2])
    assert last["error"]["message"] == "five workers were lost"
    whole = await gateway.http.post("/v1/chat/completions", json={"messages": HELLO})
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "generation_failed")


@pytest.mark.parametrize("headers", [{}, {"idempotency-key": ""}])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_who_leaves_a_silent_request_cancels_it(
    router: ScriptedRouter, gateway: Gateway, stream: bool, path: str, headers: dict[str, str]
) -> None:
    router.scripts[:] = [(accepted(), queued(), HANG)]
    body = {"messages": HELLO, "stream": stream, "max_tokens": 5}
    calling = asyncio.create_task(gateway.http.post(path, json=body, headers=headers))
    asked = await router.until_heard("Generate")
    calling.cancel()
    cancelled = await router.until_heard("Cancel")
    assert cancelled.request_id == asked.request_id


async def test_a_keyed_request_goes_on_when_its_connection_breaks(
    router: ScriptedRouter, gateway: Gateway
) -> None:
    router.scripts[:] = [(accepted(), queued(), HANG), (accepted(), tokens(0, 1), ended(1), finished())]
    call = partial(
        gateway.http.post,
        "/v1/chat/completions",
        json={"messages": HELLO},
        headers={"idempotency-key": "mine"},
    )
    calling = asyncio.create_task(call())
    first = await router.until_heard("Generate")
    calling.cancel()
    await router.until_heard("Generate let go")
    assert (await call()).status_code == 200
    assert router.calls("Cancel") == []
    assert [asked.request_id for asked in router.calls("Generate")] == [first.request_id] * 2


REFUSAL = (
    error_details_pb2.RetryInfo(retry_delay=Duration(seconds=2, nanos=500_000_000)),
    errors_pb2.SloRefusal(predicted_ttft_ms=900, attainable_ttft_ms=950, attainable_tpot_ms=30),
)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_429_with_the_attainable_slo(
    router: ScriptedRouter, gateway: Gateway, stream: bool, path: str
) -> None:
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    router.scripts[:] = [(Fail(exhausted, "the SLO cannot be met now", _info("SLO_REFUSED") + REFUSAL),)]
    body = {"messages": HELLO, "stream": stream, "max_tokens": 5}
    response = await gateway.http.post(path, json=body)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert response.headers["retry-after-ms"] == "2500"
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("slo_refused", "slo")
    assert error["attainable"]["ttft_ms"] == 950


def _info(reason: str) -> tuple[Any, ...]:
    return (error_details_pb2.ErrorInfo(domain="baton.v1", reason=reason),)


def _bad(reason: str, field: str) -> tuple[Any, ...]:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=f"{field} is wrong")
    return (*_info(reason), error_details_pb2.BadRequest(field_violations=[violation]))


ERRORS = [
    ("INVALID_ARGUMENT", _bad("INVALID_FIELD", "sampling.top_p"), 400, "top_p", "invalid_field"),
    ("INVALID_ARGUMENT", _bad("INVALID_FIELD", "stop.stop_strings"), 400, "stop", "invalid_field"),
    ("INVALID_ARGUMENT", _bad("PROMPT_TOO_LONG", "chat"), 400, "messages", "prompt_too_long"),
    ("INVALID_ARGUMENT", _bad("SLO_IMPOSSIBLE", "slo.ttft_ms"), 400, "slo.ttft_ms", "slo_impossible"),
    ("UNAUTHENTICATED", _info("CREDENTIAL_MISSING"), 401, None, "invalid_api_key"),
    ("PERMISSION_DENIED", _info("SLO_CLASS_NOT_ALLOWED"), 403, None, "slo_class_not_allowed"),
    ("ALREADY_EXISTS", _info("REQUEST_ID_IN_USE"), 409, "Idempotency-Key", "request_id_in_use"),
    ("DEADLINE_EXCEEDED", _info("DEADLINE_EXPIRED"), 408, "slo.deadline_ms", "deadline_expired"),
    ("UNAVAILABLE", _info("NO_WORKER"), 503, None, "no_worker"),
]


@pytest.mark.parametrize(("code", "details", "status", "param", "name"), ERRORS)
async def test_an_error_of_the_fleet_keeps_its_meaning(
    router: ScriptedRouter,
    gateway: Gateway,
    code: str,
    details: tuple[Any, ...],
    status: int,
    param: str | None,
    name: str,
) -> None:
    router.scripts[:] = [(Fail(grpc.StatusCode[code], "it failed", details),)]
    response = await gateway.http.post("/v1/chat/completions", json={"messages": HELLO})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, name)


BAD = [
    (b'{"a":', 400, None, "malformed_message"),
    (b"\xff", 400, None, "malformed_message"),
    (b'{"messages":[{"role":"user","content":"\\ud800"}]}', 400, None, "malformed_message"),
    (b"[" * 30_000, 400, None, "malformed_message"),
    (b"[" * 100_000, 413, None, "too_large"),
    (b"[]", 400, None, "invalid_field"),
    (b'{"messages":[]}', 400, "messages", "invalid_field"),
    (b"{}", 400, "messages", "invalid_field"),
    (b'{"messages":[{"role":"user","content":5}]}', 400, "messages[0].content", "invalid_field"),
    (b'{"messages":[{"role":"user","content":"a"}],"temperature":"1"}', 400, "temperature", "invalid_field"),
    (b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}', 400, "temperature", "invalid_field"),
    (b'{"messages":[{"role":"user","content":"a"}],"model":"x"}', 404, "model", "model_not_found"),
    (b'{"messages":[{"role":"user","content":"a"}],"functions":[{}]}', 400, "functions", "invalid_field"),
    (b'{"messages":[{"role":"user","content":"a"}],"tools":[{}]}', 400, "tools[0].type", "invalid_field"),
    (
        b'{"messages":[{"role":"user","content":"a"}],"stream_options":{}}',
        400,
        "stream_options",
        "invalid_field",
    ),
    (
        b'{"messages":[{"role":"user","content":"a"}],"structured_outputs":{"regex":"a","grammar":"b"}}',
        400,
        "structured_outputs",
        "invalid_field",
    ),
    (
        (
            b'{"messages":[{"role":"user","content":"a"}],"structured_outputs":{"regex":"a"},'
            b'"response_format":{"type":"json_object"}}'
        ),
        400,
        "structured_outputs",
        "invalid_field",
    ),
    (
        b'{"messages":[{"role":"user","content":"a"}],"modalities":["audio"]}',
        400,
        "modalities",
        "invalid_field",
    ),
    (
        b'{"messages":[{"role":"user","content":"a"}],"tool_choice":"required"}',
        400,
        "tool_choice",
        "invalid_field",
    ),
    (b'{"messages":[{"role":"user","content":"' + b"x" * (4 << 20) + b'"}]}', 413, None, "too_large"),
]


async def test_bad_bodies_are_refused_by_field(gateway: Gateway) -> None:
    for body, status, param, code in BAD:
        response = await gateway.http.post("/v1/chat/completions", content=body)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (status, param, code), body[:80]
        assert error["message"]


async def test_a_limit_in_body_and_header_is_refused(gateway: Gateway) -> None:
    body = {"messages": HELLO, "slo": {"ttft_ms": 5}}
    for headers, named in (
        ({"x-baton-ttft-ms": "7"}, "x-baton-ttft-ms"),
        ({"x-baton-tpot-ms": "soon"}, "x-baton-tpot-ms"),
        ({"x-baton-slo-class": "best"}, "x-baton-slo-class"),
    ):
        response = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
        assert (response.status_code, response.json()["error"]["param"]) == (400, named)


@pytest.mark.parametrize(
    ("stated", "headers", "param"),
    [
        ({"id": "p", "deadline_ms": 5}, {"x-baton-program-id": "q"}, "x-baton-program-id"),
        ({"id": "p"}, {}, "program.deadline_ms"),
        ({"id": None, "deadline_ms": 5}, {}, "program.id"),
        ({"id": 7, "deadline_ms": 5}, {}, "program.id"),
        (None, {"x-baton-program-id": "p"}, "program.deadline_ms"),
        (None, {"x-baton-program-deadline-ms": "5"}, "program.id"),
        ({"id": "p"}, {"x-baton-program-deadline-ms": "soon"}, "x-baton-program-deadline-ms"),
    ],
)
async def test_a_wrong_or_half_program_is_refused(
    gateway: Gateway, stated: Any, headers: dict[str, str], param: str
) -> None:
    body = {"messages": HELLO, "program": stated}
    response = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 5}),
        ("/v1/responses", {"input": "hello"}),
    ],
)
async def test_every_api_takes_a_program_in_body_or_headers(
    router: ScriptedRouter, gateway: Gateway, path: str, body: dict[str, Any]
) -> None:
    both = {"id": "turn 7", "deadline_ms": 60_000}
    headers = {"x-baton-program-id": "turn 7", "x-baton-program-deadline-ms": "60000"}
    for fields, given in (
        ({"program": both}, {}),
        ({}, headers),
        ({"program": {"id": "turn 7"}}, {"x-baton-program-deadline-ms": "60000"}),
    ):
        response = await gateway.http.post(path, json=body | fields, headers=given)
        assert response.status_code == 200, response.text
        assert router.calls("Generate")[-1].program == generation_pb2.Program(id="turn 7", deadline_ms=60_000)
    await gateway.http.post(path, json=body | {"program": None})
    assert not router.calls("Generate")[-1].HasField("program")


async def test_without_a_router_calls_fail_with_503_and_health_says_so() -> None:
    async with running_gateway(["127.0.0.1:1"], "--connect-s", "0.2") as gateway:
        for path in ("/health", "/v1/models"):
            response = await gateway.http.get(path)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")


def parsed(line: str) -> Any:
    return json.loads(line.removeprefix("data: "))
