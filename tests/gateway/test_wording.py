"""Errors speak of what the HTTP caller wrote: its fields by their names there, its values as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from pydantic import BaseModel

from baton.errors import Unavailable
from gateway.anthropic.schema import MessagesBody
from gateway.batches.endpoints import BatchBody
from gateway.openai.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from gateway.responses.schema import ResponsesBody
from gateway.serving.errors import problem_of
from tests.fleets import NewFleet
from tests.gateway.running import running_gateway
from tests.gateway.wording import foreign_words
from tests.redis_server import redis_server

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "a"}]
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 2},
    TEXT: {"prompt": "a", "max_tokens": 2},
    MESSAGES: {"messages": HELLO, "max_tokens": 2},
    RESPONSES: {"input": "a", "max_output_tokens": 2},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
    "/v1/batches": {
        "input_file_id": "file-1",
        "endpoint": CHAT,
        "completion_window": "24h",
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(new_fleet: NewFleet) -> AsyncIterator[httpx.AsyncClient]:
    with redis_server() as redis:
        async with (
            new_fleet(timed="demo-cpu", prefill=0) as fleet,
            running_gateway(fleet.router_addresses, "--redis", redis.url) as gateway,
        ):
            yield gateway.http


def schema(**keywords: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": keywords}}}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
JSON_FORMAT = {"response_format": {"type": "json_object"}}
SAID: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"temperature": True}, "temperature is true; accepted: a number"),
    (CHAT, {"stop": 5}, "stop is 5; accepted: a text or a list"),
    (CHAT, {"messages": None}, "messages is null; accepted: a list"),
    (CHAT, {"stop": [None, "a"]}, "stop[0] is null; accepted: a text"),
    (
        CHAT,
        {"response_format": {"type": {"a": True}}},
        "response_format.type is {\"a\": true}; accepted: 'text', 'json_object' or 'json_schema'",
    ),
    (
        CHAT,
        JSON_FORMAT | {"allowed_token_ids": [1]},
        "allowed_token_ids is [1]; accepted: unset, beside response_format.json_object",
    ),
    (
        CHAT,
        {"structured_outputs": {"regex": "a"}, "bad_words": ["b"]},
        'bad_words is ["b"]; accepted: unset, beside structured_outputs.regex',
    ),
    (
        CHAT,
        {"structured_outputs": {"json": {"not": {}}}},
        (
            "structured_outputs.json is '{\"not\": {}}'; accepted: a format that can be guaranteed "
            "('not' cannot be guaranteed)"
        ),
    ),
    (
        CHAT,
        schema(**{"if": {}}),
        (
            "response_format.json_schema.schema is '{\"if\": {}}'; accepted: a format that can be guaranteed "
            "('if' cannot be guaranteed)"
        ),
    ),
    (CHAT, {"min_tokens": 5}, "min_tokens is 5; accepted: at most max_tokens, which is 2"),
    (
        CHAT,
        {"min_tokens": 5, "max_tokens": None, "max_completion_tokens": 2},
        "min_tokens is 5; accepted: at most max_completion_tokens, which is 2",
    ),
    (
        CHAT,
        {"max_tokens": None, "max_completion_tokens": 0},
        "max_completion_tokens is 0; accepted: 1 or more",
    ),
    (CHAT, {"logprobs": True, "top_logprobs": 99}, "top_logprobs is 99; accepted: 0 to 20"),
    (TEXT, {"logprobs": 99}, "logprobs is 99; accepted: 0 to 20"),
    (
        CHAT,
        {"add_generation_prompt": True, "continue_final_message": True},
        "continue_final_message is true; accepted: true only without add_generation_prompt",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": ["a"]}]}]},
        "messages[0].content[0].type is [\"a\"]; accepted: 'text', with a text",
    ),
    (
        CHAT,
        {"tools": [TOOL], "tool_choice": {"type": "allowed", "x": None}},
        (
            "tool_choice is {\"type\": \"allowed\", \"x\": null}; accepted: 'none', 'auto', 'required', or "
            '{"type": "function", "function": {"name": ...}} of one of the tools'
        ),
    ),
    (
        CHAT,
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice.function.name is 'g'; accepted: one of f",
    ),
    (CHAT, {"tools": [TOOL, TOOL]}, "tools[1].function.name is 'f'; accepted: each name once"),
    (
        TEXT,
        {"prompt": [-1]},
        "prompt is [-1]: it must be a list; each entry a whole number from 0",
    ),
    (
        MESSAGES,
        {"system": [{"type": None}]},
        "system[0].type is null; accepted: 'text'",
    ),
    (RESPONSES, {"input": [{"type": None}]}, "input[0].type is null; accepted: message, reasoning, "),
    ("/v1/batches", {"completion_window": None}, "completion_window is null; accepted: a text"),
]


async def test_errors_name_the_callers_fields_and_show_values_as_json(http: httpx.AsyncClient) -> None:
    wrong = []
    for path, fields, words in SAID:
        response = await http.post(path, json=VALID[path] | fields)
        message = response.json().get("error", {}).get("message", response.text)
        if not message.startswith(words) or foreign_words(message):
            wrong.append((path, fields, message))
    assert not wrong


ODD: list[Any] = [None, True, -1, 2**70, 1.5, "", [None], [{"a": True}], {"a": [None, False]}]
BODIES: dict[str, type[BaseModel]] = {
    CHAT: ChatBody,
    TEXT: CompletionBody,
    MESSAGES: MessagesBody,
    RESPONSES: ResponsesBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/v1/batches": BatchBody,
}


async def test_no_error_has_words_that_only_the_fleet_knows(http: httpx.AsyncClient) -> None:
    async def refusal(path: str, body: dict[str, Any]) -> str:
        response = await http.post(path, json=body)
        return "" if response.status_code == 200 else str(response.json()["error"]["message"])

    wrong = []
    for path, kind in BODIES.items():
        quick = {"slo": {"deadline_ms": 50}} if "slo" in kind.model_fields else {}
        for name in sorted(kind.model_fields):
            bodies = [VALID[path] | quick | {name: value} for value in ODD]
            found = await asyncio.gather(*(refusal(path, body) for body in bodies))
            # One API calls a field as the fleet does.
            wrong += [(path, name, message) for message in found if foreign_words(message.removeprefix(name))]
    assert not wrong, "\n".join(map(str, wrong[:20]))


async def test_a_key_that_another_request_has_is_named_as_the_header(http: httpx.AsyncClient) -> None:
    for path, other in (
        (CHAT, {"messages": [*HELLO, *HELLO]}),
        (TEXT, {"prompt": "b"}),
        (MESSAGES, {"top_k": 2}),
    ):
        headers = {"idempotency-key": f"used{path}"}
        first = await http.post(path, json=VALID[path], headers=headers)
        assert first.status_code == 200
        error = (await http.post(path, json=VALID[path] | other, headers=headers)).json()["error"]
        assert (error["param"], error["code"]) == ("Idempotency-Key", "request_id_in_use")
        assert error["message"].startswith(f"Idempotency-Key is 'used{path}', in use"), error


async def test_the_addresses_of_routers_stay_in_the_fleet() -> None:
    lost, leaving = Unavailable("failed to connect", "10.0.0.1:5"), Unavailable("it leaves", "10.0.0.1:5")
    leaving.reason = "ROUTER_LEAVING"
    assert problem_of(lost, str).message == "no router of the fleet could be reached; come back"
    assert problem_of(leaving, str).message == "it leaves"


async def test_what_does_not_exist_is_the_same_error_everywhere(http: httpx.AsyncClient) -> None:
    for path, param, code in (
        ("/v1/models/x", "model", "model_not_found"),
        ("/v1/files/x", "file_id", "file_not_found"),
        ("/v1/files/x/content", "file_id", "file_not_found"),
        ("/v1/batches/x", "batch_id", "batch_not_found"),
        ("/v1/responses/x", "response_id", "response_not_found"),
        ("/v1/responses/x/input_items", "response_id", "response_not_found"),
        ("/v1/nothing", None, None),
    ):
        response = await http.get(path)
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (404, "invalid_request_error"), path
        assert (error["param"], error["code"]) == (param, code)
    batch = {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": "24h"}
    error = (await http.post("/v1/batches", json=batch)).json()["error"]
    assert (error["param"], error["code"]) == ("input_file_id", "file_not_found")
