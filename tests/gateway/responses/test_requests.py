"""`/v1/responses` with a scripted router."""

from __future__ import annotations

import json

import grpc
import pytest

from baton.v1 import generation_pb2, inference_pb2
from tests.baton.scripted_service import (
    WHOLE,
    Fail,
    accepted,
    ended,
    finished,
    tokens,
)
from tests.gateway.responses.serving import CALL, URL, WEATHER, Served, said
from tests.gateway.responses.summing import summed
from tests.gateway.test_openai_requests import REFUSAL, _info

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
        user="u",
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


async def test_a_cancelled_response_says_so(served: Served) -> None:
    served.router.scripts[:] = [said("Hi", reason=generation_pb2.FINISH_REASON_CANCELLED)]
    events = await served.stream()
    summed(events)
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "cancelled")
    whole = await served.http.post(URL, json={"input": "x"})
    assert (whole.status_code, whole.json()["error"]["code"]) == (409, "cancelled")


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
