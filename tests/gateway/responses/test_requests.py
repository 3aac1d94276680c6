"""`/v1/responses` with a scripted router and a real Redis."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio

from baton.v1 import generation_pb2, inference_pb2
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
from tests.fleet.driving import until
from tests.gateway.responses.summing import summed
from tests.gateway.running import Gateway, running_gateway
from tests.gateway.test_openai_requests import MODEL, REFUSAL, _bad, _info
from tests.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

URL = "/v1/responses"
EOS = generation_pb2.FINISH_REASON_EOS
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Now",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


@dataclass(frozen=True)
class Served:
    router: ScriptedRouter
    gateway: Gateway
    redis: RedisServer

    @property
    def http(self) -> httpx.AsyncClient:
        return self.gateway.http

    async def create(self, **body: Any) -> Any:
        response = await self.http.post(URL, json={"input": "hello"} | body)
        assert response.status_code == 200, response.text
        return response.json()

    async def stream(self, **body: Any) -> list[dict[str, Any]]:
        return events_of(await self.http.post(URL, json={"input": "hello", "stream": True} | body))


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream; fails if they are not numbered or not named."""
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    found: list[dict[str, Any]] = []
    for block in response.text.split("\n\n"):
        if block and not block.startswith(":"):
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            assert event["sequence_number"] == len(found)
            found.append(event)
    return found


def said(*texts: str, reason: int = EOS, **formats: Any) -> tuple[Any, ...]:
    """A script whose text comes in these pieces."""
    begun = accepted()
    for name, value in formats.items():
        setattr(begun.accepted, name, value)
    pieces = (tokens(index, 10 + index, text=text) for index, text in enumerate(texts))
    return (begun, *pieces, ended(len(texts), reason=reason), finished())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def everything() -> AsyncIterator[Served]:
    with redis_server() as redis:
        async with (
            ScriptedRouter(ListModels=MODEL) as router,
            running_gateway([router.address], "--redis", redis.url) as gateway,
        ):
            yield Served(router, gateway, redis)


@pytest.fixture
def served(everything: Served) -> Served:
    everything.router.scripts[:] = [said("Hi ", "there.")]
    everything.router.heard_calls.clear()
    return everything


async def test_every_field_reaches_the_router(served: Served) -> None:
    body = {
        "model": "m",
        "instructions": "be brief",
        "input": [
            {"role": "developer", "content": "no jokes"},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
            },
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "so", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Oslo"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ],
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "name": "weather"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "max_output_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 11,
        "user": "u",
        "metadata": {"a": "b"},
        "slo": {"ttft_ms": 500},
        "store": False,
    }
    response = await served.http.post(URL, json=body, headers={"idempotency-key": "mine"})
    assert response.status_code == 200, response.text
    [asked] = served.router.calls("Generate")
    Message = inference_pb2.ChatMessage
    expected = inference_pb2.GenerateRequest(
        request_id="mine",
        chat=inference_pb2.ChatInput(
            messages=[
                Message(role="system", content="be brief"),
                Message(role="system", content="no jokes"),
                Message(role="user", content="a\nb"),
                Message(
                    role="assistant",
                    content="so",
                    reasoning="hm",
                    tool_calls=[inference_pb2.ToolCall(id="c1", name="weather", arguments='{"city":"Oslo"}')],
                ),
                Message(role="tool", content="rain", tool_call_id="c1", name="weather"),
            ],
            tools=[
                inference_pb2.Tool(
                    name="weather",
                    description="Now",
                    parameters=json.dumps(WEATHER["parameters"]),
                    strict=True,
                )
            ],
            tool_choice=inference_pb2.ToolChoice(name="weather"),
            parallel_tool_calls=False,
        ),
        sampling=generation_pb2.SamplingParams(temperature=0.5, top_p=0.9, seed=11),
        stop=generation_pb2.StopRules(max_tokens=7),
        slo=generation_pb2.Slo(ttft_ms=500, slo_class=generation_pb2.SLO_CLASS_STANDARD),
        resume_grace_ms=10_000,
    )
    expected.chat.template_arguments.update({"reasoning_effort": "low"})
    assert json.loads(asked.chat.tools[0].parameters) == WEATHER["parameters"]
    asked.chat.tools[0].parameters = expected.chat.tools[0].parameters
    assert asked == expected
    repeated = response.json()
    for name in (
        "instructions",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "temperature",
        "user",
        "metadata",
    ):
        assert repeated[name] == body[name], name
    assert repeated["baton"]["delivery"]["tpot_ms"] == 5.5


async def test_whole_and_stream_are_the_same_response(served: Served) -> None:
    whole = await served.create()
    assert whole["output"][0]["content"][0]["text"] == "Hi there."
    assert (whole["status"], whole["store"]) == ("completed", True)
    assert whole["usage"]["total_tokens"] == 7
    events = await served.stream()
    summed(events)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    streamed = events[-1]["response"]
    own = {"id", "created_at", "completed_at", "output"}
    assert {name: streamed[name] for name in set(whole) - own} == {
        name: whole[name] for name in set(whole) - own
    }
    assert (await served.http.get(f"{URL}/{whole['id']}")).json() == whole
    assert (await served.http.get(f"{URL}/{streamed['id']}")).json() == streamed


async def test_reasoning_and_calls_are_items_of_their_own(served: Served) -> None:
    text = f"<think>\nhm\n</think>\n\nI look.\n{CALL}"
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    served.router.scripts[:] = [said(*pieces, tool_format="hermes", reasoning_format="think")]
    events = await served.stream(tools=[WEATHER])
    reasoning, message, call = summed(events)
    assert 0 < events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] < len(pieces)
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "I look."
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Oslo"})
    assert sum(event["type"] == "response.function_call_arguments.delta" for event in events) > 1


async def test_a_conversation_goes_on_from_a_stored_response(served: Served) -> None:
    first = await served.create(instructions="be brief", input="one")
    served.router.scripts[:] = [said(CALL, tool_format="hermes")]
    second = await served.create(previous_response_id=first["id"], input="two", tools=[WEATHER])
    [call] = second["output"]
    served.router.heard_calls.clear()
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    third = await served.create(previous_response_id=second["id"], input=[result])
    [asked] = served.router.calls("Generate")
    heard = [(message.role, message.content) for message in asked.chat.messages]
    assert heard == [
        ("user", "one"),
        ("assistant", "Hi there."),
        ("user", "two"),
        ("assistant", ""),
        ("tool", "rain"),
    ]
    assert asked.chat.messages[3].tool_calls[0].id == call["call_id"]
    listed = (await served.http.get(f"{URL}/{third['id']}/input_items?order=asc&limit=2")).json()
    assert [item["content"] for item in listed["data"][:1]] == ["one"]
    assert listed["has_more"]
    rest = (
        await served.http.get(f"{URL}/{third['id']}/input_items?order=asc&after={listed['last_id']}")
    ).json()
    assert [item["type"] for item in rest["data"]] == ["message", "function_call", "function_call_output"]
    assert not rest["has_more"]
    # A branch of the same conversation; and one whose beginning was deleted.
    assert (await served.http.delete(f"{URL}/{first['id']}")).json()["deleted"]
    assert (await served.http.get(f"{URL}/{first['id']}")).status_code == 404
    await served.create(previous_response_id=second["id"], input=[result])


async def test_without_store_nothing_is_kept(served: Served) -> None:
    response = await served.create(store=False)
    assert response["store"] is False
    assert (await served.http.get(f"{URL}/{response['id']}")).status_code == 404
    refused = await served.http.post(URL, json={"input": "x", "previous_response_id": response["id"]})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "previous_response_not_found")
    assert error["param"] == "previous_response_id"


async def test_a_running_response_is_seen_and_can_be_cancelled(served: Served) -> None:
    served.router.scripts[:] = [(accepted(), tokens(0, 10), HANG)]
    key = {"idempotency-key": "running"}
    async with served.http.stream("POST", URL, json={"input": "x", "stream": True}, headers=key) as response:
        lines = response.aiter_lines()
        async for line in lines:
            if line.startswith("data: ") and "output_text.delta" in line:
                break
            if '"response.created"' in line:
                response_id = json.loads(line.removeprefix("data: "))["response"]["id"]
        one = f"{URL}/{response_id}"
        assert (await served.http.get(one)).json()["status"] == "in_progress"
        refused = await served.http.post(URL, json={"input": "y", "previous_response_id": response_id})
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            409,
            "previous_response_in_progress",
        )
        assert (await served.http.delete(one)).status_code == 409
        assert (await served.http.post(f"{one}/cancel")).json()["status"] == "cancelled"
        assert (await served.router.until_heard("Cancel")).request_id == "running"
    await until_gone(served, one)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_who_leaves_cancels_and_nothing_is_kept(served: Served, stream: bool) -> None:
    served.router.scripts[:] = [(accepted(), queued(), HANG)]
    headers = {"idempotency-key": f"left-{stream}"}
    calling = asyncio.create_task(
        served.http.post(URL, json={"input": "x", "stream": stream}, headers=headers)
    )
    await served.router.until_heard("Generate")
    calling.cancel()
    assert (await served.router.until_heard("Cancel")).request_id == f"left-{stream}"


async def until_gone(served: Served, url: str) -> None:
    async def gone() -> bool:
        return (await served.http.get(url)).status_code == 404

    await until(gone, "the response of a caller who left is gone")


async def test_a_cancelled_response_says_so(served: Served) -> None:
    served.router.scripts[:] = [said("Hi", reason=generation_pb2.FINISH_REASON_CANCELLED)]
    events = await served.stream()
    summed(events)
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "cancelled")
    whole = await served.http.post(URL, json={"input": "x"})
    assert (whole.status_code, whole.json()["error"]["code"]) == (409, "cancelled")


async def test_the_same_key_is_the_same_response(served: Served) -> None:
    headers = {"idempotency-key": "again"}
    first, second = [
        (await served.http.post(URL, json={"input": "x"}, headers=headers)).json() for _ in range(2)
    ]
    assert first == second
    streamed = events_of(await served.http.post(URL, json={"input": "x", "stream": True}, headers=headers))
    summed(streamed)
    assert streamed[-1]["response"] == first
    assert len(served.router.calls("Generate")) == 1
    other = await served.http.post(URL, json={"input": "y"}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "request_id_in_use")


async def test_an_output_that_is_cut_off_is_incomplete(served: Served) -> None:
    served.router.scripts[:] = [WHOLE]
    events = await served.stream()
    [item] = summed(events)
    assert item["status"] == "incomplete"
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_failure_is_the_last_event(served: Served) -> None:
    failed = ended(1, reason=generation_pb2.FINISH_REASON_FAILED)
    served.router.scripts[:] = [(accepted(), tokens(0, 1), failed, finished("five workers were lost"))]
    events = await served.stream()
    summed(events)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["message"] == "five workers were lost"
    whole = await served.http.post(URL, json={"input": "x"})
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "generation_failed")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_429_with_the_attainable_slo(served: Served, stream: bool) -> None:

    details = _info("SLO_REFUSED") + REFUSAL
    served.router.scripts[:] = [(Fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "not now", details),)]
    response = await served.http.post(URL, json={"input": "x", "stream": stream})
    assert (response.status_code, response.headers["retry-after-ms"]) == (429, "2500")
    assert response.json()["error"]["attainable"]["ttft_ms"] == 950


async def test_without_redis_only_state_is_missing(served: Served) -> None:
    stored = await served.create()
    served.redis.stop(kill=True)
    try:
        assert (await served.create())["store"] is False
        assert (await served.stream())[-1]["response"]["store"] is False
        for body in ({"store": True}, {"previous_response_id": stored["id"]}):
            away = await served.http.post(URL, json={"input": "x"} | body)
            assert (away.status_code, away.json()["error"]["code"]) == (503, "redis_away"), body
        assert (await served.http.get(f"{URL}/{stored['id']}")).status_code == 503
    finally:
        served.redis.start()

    await until_stored(served)
    async with running_gateway([served.router.address]) as gateway:
        plain = await gateway.http.post(URL, json={"input": "x"})
        assert (plain.status_code, plain.json()["store"]) == (200, False)
        for body in ({"store": True}, {"previous_response_id": "resp_1"}):
            refused = await gateway.http.post(URL, json={"input": "x"} | body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (501, "unsupported")


async def test_a_response_that_is_too_large_is_not_kept(served: Served) -> None:
    digits = "".join(random.Random(1).choices("0123456789abcdef", k=8000))
    served.router.scripts[:] = [said(digits)]
    flags = ("--redis", served.redis.url, "--response-max-bytes", "2000")
    async with running_gateway([served.router.address], *flags) as gateway:
        response = (await gateway.http.post(URL, json={"input": "x", "store": True})).json()
        assert (response["output"][0]["content"][0]["text"], response["store"]) == (digits, False)
        assert (await gateway.http.get(f"{URL}/{response['id']}")).status_code == 404


async def until_stored(served: Served) -> None:
    async def back() -> bool:
        return bool((await served.create())["store"])

    await until(back, "responses are stored again")


async def test_a_redis_that_hangs_holds_up_only_the_first(served: Served) -> None:
    served.redis.pause()
    try:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(20):
            assert (await served.create())["store"] is False
        assert loop.time() - begun < 15, "each alone would wait a second"
        assert (await served.http.post(URL, json={"input": "x", "store": True})).status_code == 503
    finally:
        served.redis.resume()
    await until_stored(served)


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("chat", "input"),
        ("chat.messages[2].role", "input"),
        ("chat.tools[0].parameters", "tools[0].parameters"),
        ("stop.max_tokens", "max_output_tokens"),
        ("output_format.json_schema", "text.format.schema"),
        ("sampling.top_p", "top_p"),
    ],
)
async def test_a_wrong_field_has_its_name_in_this_api(served: Served, field: str, param: str) -> None:
    wrong = Fail(grpc.StatusCode.INVALID_ARGUMENT, f"{field} is wrong", _bad("INVALID_FIELD", field))
    served.router.scripts[:] = [(wrong,)]
    response = await served.http.post(URL, json={"input": "x"})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["message"]) == (400, param, f"{param} is wrong")


async def test_too_much_is_refused_at_once(served: Served) -> None:
    many = [{"role": "user", "content": "a"}] * 5000
    for body, param in (({"input": many}, "input"), ({"input": "a", "tools": [WEATHER] * 200}, "tools")):
        response = await served.http.post(URL, json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


BAD: list[tuple[Any, int, str | None, str]] = [
    (b'{"a":', 400, None, "malformed_message"),
    ({}, 400, "input", "invalid_field"),
    ({"input": []}, 400, "input", "invalid_field"),
    ({"input": 5}, 400, "input", "invalid_field"),
    ({"input": [5]}, 400, "input[0]", "invalid_field"),
    ({"input": [{"role": "tool", "content": "a"}]}, 400, "input[0].role", "invalid_field"),
    ({"input": [{"role": "user"}]}, 400, "input[0].content", "invalid_field"),
    ({"input": [{"role": "user", "content": "a", "foo": 1}]}, 400, "input[0].foo", "unknown_field"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        400,
        "input[0].content[0].type",
        "invalid_field",
    ),
    ({"input": [{"type": []}]}, 400, "input[0].type", "invalid_field"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input[0].type", "invalid_field"),
    (
        {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
        400,
        "input[0].call_id",
        "invalid_field",
    ),
    ({"input": "a", "foo": 1}, 400, "foo", "unknown_field"),
    ({"input": "a", "temperature": "1"}, 400, "temperature", "invalid_field"),
    ({"input": "a", "model": "x"}, 404, "model", "model_not_found"),
    ({"input": "a", "background": True}, 400, "background", "invalid_field"),
    ({"input": "a", "conversation": "c"}, 400, "conversation", "invalid_field"),
    ({"input": "a", "prompt": {"id": "p"}}, 400, "prompt", "invalid_field"),
    ({"input": "a", "truncation": "auto"}, 400, "truncation", "invalid_field"),
    ({"input": "a", "include": ["file_search_call.results"]}, 400, "include[0]", "invalid_field"),
    ({"input": "a", "tools": [{"type": "web_search"}]}, 400, "tools[0].type", "invalid_field"),
    ({"input": "a", "tools": [{"type": "function"}]}, 400, "tools[0].name", "invalid_field"),
    ({"input": "a", "tools": [WEATHER], "tool_choice": "any"}, 400, "tool_choice", "invalid_field"),
    ({"input": "a", "tool_choice": "required"}, 400, "tool_choice", "invalid_field"),
    (
        {"input": "a", "text": {"format": {"type": "json_schema", "name": "n"}}},
        400,
        "text.format.schema",
        "invalid_field",
    ),
    ({"input": "a", "text": {"verbosity": "low"}}, 400, "text.verbosity", "invalid_field"),
    ({"input": "a", "reasoning": {"summary": "detailed"}}, 400, "reasoning.summary", "invalid_field"),
    ({"input": "a", "metadata": {"k": "v" * 513}}, 400, "metadata", "invalid_field"),
    (
        {"input": "a", "previous_response_id": "resp_x:*"},
        400,
        "previous_response_id",
        "previous_response_not_found",
    ),
]


async def test_bad_bodies_are_refused_by_field(served: Served) -> None:
    for body, status, param, code in BAD:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = await served.http.post(URL, content=content)
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["code"]) == (status, param, code), body
    assert not served.router.calls("Generate")


async def test_bad_questions_about_stored_responses_are_refused(served: Served) -> None:
    one = f"{URL}/{(await served.create())['id']}"
    for path, param in (
        (f"{one}?stream=true", "stream"),
        (f"{one}?include[]=x", "include[0]"),
        (f"{one}/input_items?limit=0", "limit"),
        (f"{one}/input_items?order=up", "order"),
        (f"{one}/input_items?after=x", "after"),
    ):
        response = await served.http.get(path)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), path
    missing = await served.http.get(f"{URL}/resp_none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "response_not_found")
