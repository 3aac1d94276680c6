"""Bad requests to `/v1/responses` are refused by the name of the field."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from tests.baton.scripted_service import (
    Fail,
)
from tests.gateway.responses.serving import URL, WEATHER, Served
from tests.gateway.test_openai_requests import _bad

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        400,
        "input[0].content[0].type",
        "invalid_field",
    ),
    ({"input": [{"type": []}]}, 400, "input[0].type", "invalid_field"),
    ({"input": [{"type": "item_reference"}]}, 400, "input[0].id", "invalid_field"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, 404, "input[0].id", "item_not_found"),
    ({"input": [{"type": "item_reference", "id": "msg_x_0"}] * 2}, 400, "input[1].id", "invalid_field"),
    (
        {"input": [{"type": "item_reference", "id": f"msg_{number}_0"} for number in range(9)]},
        404,
        "input[8].id",
        "item_not_found",
    ),
    (
        {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
        400,
        "input[0].call_id",
        "invalid_field",
    ),
    ({"input": "a", "temperature": "1"}, 400, "temperature", "invalid_field"),
    ({"input": "a", "model": "x"}, 404, "model", "model_not_found"),
    ({"input": "a", "background": True}, 400, "background", "invalid_field"),
    ({"input": "a", "conversation": "c"}, 400, "conversation", "invalid_field"),
    ({"input": "a", "prompt": {"id": "p"}}, 400, "prompt", "invalid_field"),
    ({"input": "a", "include": ["message.output_text.logprobs"]}, 400, "include[0]", "invalid_field"),
    ({"input": "a", "tools": [{"type": 5}]}, 400, "tools[0].type", "invalid_field"),
    ({"input": "a", "tools": [{"type": "function"}]}, 400, "tools[0].name", "invalid_field"),
    ({"input": "a", "tools": [WEATHER], "tool_choice": "any"}, 400, "tool_choice", "invalid_field"),
    ({"input": "a", "tool_choice": "required"}, 400, "tool_choice", "invalid_field"),
    (
        {"input": "a", "text": {"format": {"type": "json_schema", "name": "n"}}},
        400,
        "text.format.schema",
        "invalid_field",
    ),
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
        (f"{one}?include[]=message.output_text.logprobs", "include[0]"),
        (f"{one}/input_items?limit=0", "limit"),
        (f"{one}/input_items?order=up", "order"),
        (f"{one}/input_items?after=x", "after"),
    ):
        response = await served.http.get(path)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param), path
    odd = await served.http.get(f"{one}/input_items?beta=true&limit=5")
    assert (odd.status_code, odd.headers["x-baton-ignored"]) == (200, "beta")
    missing = await served.http.get(f"{URL}/resp_none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "response_not_found")
