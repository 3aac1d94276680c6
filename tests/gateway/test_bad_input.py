"""Whatever is sent to a fleet's HTTP door: an error in the API's own shape, nothing lost, nobody harmed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import strategies as st

from tests.fleet.driving import assert_all_is_freed
from tests.fleets import NewFleet
from tests.fuzzing import fuzz
from tests.gateway.running import Served, running_timed
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES = "/v1/responses"
HELLO = b'"messages":[{"role":"user","content":"a"}],"max_tokens":2'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(new_fleet: NewFleet) -> AsyncIterator[Served]:
    async with running_timed(new_fleet) as running:
        yield running


def nested(before: bytes, depth: int) -> bytes:
    return before * depth + b"1" + (b"}" if b"{" in before else b"]") * depth


JSON = "malformed_message"
OPENAI = [
    (CHAT, b'"model":"\\ud800"', None, JSON),
    (CHAT, b'"user":"\\udfff"', None, JSON),
    (CHAT, b'"stop":["\\ud800"]', None, JSON),
    (CHAT, b'"\\ud800":1', None, JSON),
    (CHAT, b'"user":"\xff"', None, JSON),
    (CHAT, b'"user":"\xed\xa0\x80"', None, JSON),
    (CHAT, b'"structured_outputs":{"regex":"\\ud800"}', None, JSON),
    (CHAT, b'"metadata":' + nested(b'{"a":', 5000), None, JSON),
    (CHAT, b'"user":"\x00"', None, JSON),
    (CHAT, b'"a":1}{', None, JSON),
    (CHAT, b'"temperature":NaN', "temperature", "invalid_field"),
    (CHAT, b'"temperature":-Infinity', "temperature", "invalid_field"),
    (CHAT, b'"temperature":1e999', "temperature", "invalid_field"),
    (CHAT, b'"temperature":-1', "temperature", "invalid_field"),
    (CHAT, b'"max_tokens":1e999', "max_tokens", "invalid_field"),
    (CHAT, b'"max_tokens":2.5', "max_tokens", "invalid_field"),
    (CHAT, b'"max_tokens":-1', "max_tokens", "invalid_field"),
    (CHAT, b'"max_tokens":"2"', "max_tokens", "invalid_field"),
    (CHAT, b'"max_tokens":99999999999999999999', "max_tokens", "invalid_field"),
    (CHAT, b'"seed":18446744073709551616', "seed", "invalid_field"),
    (CHAT, b'"n":4294967295', "n", "invalid_field"),
    (CHAT, b'"logit_bias":{"a":1}', "logit_bias", "invalid_field"),
    (CHAT, b'"logit_bias":{"99999999999":1}', "logit_bias", "invalid_field"),
    (CHAT, b'"logit_bias":{"1":1e99}', "logit_bias[1]", "invalid_field"),
    (CHAT, b'"slo":{"ttft_ms":-1}', "slo.ttft_ms", "invalid_field"),
    (CHAT, b'"max_completion_tokens":3', "max_completion_tokens", "invalid_field"),
    (CHAT, b'"top_logprobs":3', "top_logprobs", "invalid_field"),
    (CHAT, b'"stream":"yes"', "stream", "invalid_field"),
    (CHAT, b'"messages":[]', "messages", "invalid_field"),
    (
        CHAT,
        b'"messages":[{"role":"user","content":[{"type":"image_url"}]}]',
        "messages[0].content[0].type",
        None,
    ),
    (CHAT, b'"chat_template_kwargs":' + nested(b'{"a":', 90), "chat_template_kwargs", "invalid_field"),
    (CHAT, b'"chat_template_kwargs":{"a":1%s}' % (b"0" * 400), "chat_template_kwargs", "invalid_field"),
    (CHAT, b'"response_format":{"type":"xml"}', "response_format.type", "invalid_field"),
    (TEXT, b'"prompt":[]', "prompt", "invalid_field"),
    (TEXT, b'"prompt":[1,"a"]', "prompt[0]", "invalid_field"),
    (TEXT, b'"prompt":[-1]', "prompt", "invalid_field"),
    (TEXT, b'"prompt":[4294967295]', "prompt[0]", "invalid_field"),
    (TEXT, b'"prompt":{"a":1}', "prompt", "invalid_field"),
    (TEXT, b'"prompt":"a","best_of":3', "best_of", "invalid_field"),
    (RESPONSES, b'"input":"\\ud800"', None, JSON),
    (RESPONSES, b'"input":"a","instructions":"\xff"', None, JSON),
    (RESPONSES, b'"input":[{"role":"user","content":"\\ud800"}]', None, JSON),
    (RESPONSES, b'"input":"a","metadata":' + nested(b'{"a":', 5000), None, JSON),
    (RESPONSES, b'"input":[' + nested(b'{"a":', 90) + b"]", "input[0].role", "invalid_field"),
    (RESPONSES, b'"input":"a","max_output_tokens":-1', "max_output_tokens", "invalid_field"),
    (RESPONSES, b'"input":"a","max_output_tokens":0', "max_output_tokens", "invalid_field"),
    (RESPONSES, b'"input":"a","temperature":1e999', "temperature", "invalid_field"),
    (RESPONSES, b'"input":"a","temperature":-1', "temperature", "invalid_field"),
    (RESPONSES, b'"input":"a","seed":18446744073709551616', "seed", "invalid_field"),
    (RESPONSES, b'"input":"a","slo":{"ttft_ms":-1}', "slo.ttft_ms", "invalid_field"),
    (RESPONSES, b'"input":"a","text":{"format":{"type":"xml"}}', "text.format.type", "invalid_field"),
    (RESPONSES, b'"input":[{"role":"robot","content":"a"}]', "input[0].role", "invalid_field"),
]
"""Endpoint, a field beside the valid ones (the last of two equal keys counts), and what is refused."""


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_fields_of_openai_are_refused_by_name(served: Served, stream: bool) -> None:
    wrong = []
    for path, field, param, code in OPENAI:
        known = {CHAT: HELLO, TEXT: b'"max_tokens":2', RESPONSES: b'"max_output_tokens":2'}[path]
        body = b"{%s,%s%s}" % (known, b'"stream":true,' * stream, field)
        response = await served.gateway.http.post(path, content=body)
        found = response.json()["error"] if response.status_code == 400 else {"status": response.status_code}
        if found.get("param") != param or code not in {None, found.get("code")} or not found.get("message"):
            wrong.append((body[-120:], found))
    assert not wrong


ANTHROPIC = [
    b'"system":"\\ud800"',
    b'"stop_sequences":["\\ud800"]',
    b'"metadata":{"user_id":"\xff"}',
    b'"metadata":' + nested(b'{"a":', 5000),
    b'"max_tokens":-1',
    b'"max_tokens":1e999',
    b'"temperature":NaN',
    b'"top_k":-5',
    b'"messages":[]',
    b'"messages":[{"role":"robot","content":"a"}]',
    b'"messages":[{"role":"user","content":[{"type":"image"}]}]',
    b'"stop_sequences":"a"',
]


async def test_bad_fields_of_anthropic_are_refused_in_its_shape(served: Served) -> None:
    for field in ANTHROPIC:
        response = await served.gateway.http.post(MESSAGES, content=b"{%s,%s}" % (HELLO, field))
        body = response.json()
        assert (response.status_code, body["type"]) == (400, "error"), (field[:99], body)
        assert body["error"]["type"] == "invalid_request_error", (field[:99], body)


SCHEMAS = [
    {"$ref": "#"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"$ref": "http://127.0.0.1/schema"},
    {"pattern": "(" * 3000 + ")" * 3000, "type": "string"},
    {"type": "string", "pattern": "(a|a)*" * 30 + "{9999}{9999}"},
    {"enum": [str(index) for index in range(50_000)]},
    {"type": "array", "minItems": 10**9, "items": {"type": "string", "minLength": 10**9}},
    {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}}}
    | {"$ref": "#/$defs/d0"},
    {"type": "object", "properties": {"a" * 100_000: {"not": {}}}, "required": ["a" * 100_000]},
    {"type": 5},
]


async def test_hostile_schemas_are_refused_or_served_but_harm_nobody(served: Served) -> None:
    for schema in SCHEMAS:
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        body = json.loads(b"{%s}" % HELLO) | {"response_format": form}
        hostile = asyncio.create_task(served.gateway.http.post(CHAT, json=body))
        neighbour = await served.gateway.http.post(CHAT, content=b"{%s}" % HELLO)
        assert neighbour.status_code == 200, str(schema)[:99]
        response = await hostile
        assert response.status_code in {200, 400}, (str(schema)[:99], response.text)


async def test_bodies_of_other_kinds_are_refused_by_status(served: Served) -> None:
    body = b"{%s}" % HELLO
    for content, headers, status in (
        (body, {"content-encoding": "gzip"}, 415),
        (b"", {}, 400),
        (b"null", {}, 400),
        (body.decode().encode("utf-16"), {"content-type": "application/json; charset=utf-16"}, 400),
        (b"\xef\xbb\xbf" + body, {}, 400),
        (b'{"messages":[%s]}' % b",".join([b'{"role":"user","content":"aaaaaaaa"}'] * 300_000), {}, 413),
        (body, {"x-baton-ttft-ms": "9" * 5000}, 400),
    ):
        for path in (CHAT, MESSAGES):
            response = await served.gateway.http.post(path, content=content, headers=headers)
            assert response.status_code == status, (path, headers, response.text)
            if status != 200:
                assert ("type" in response.json()) == (path == MESSAGES)


async def test_unknown_routes_and_methods_have_the_apis_shape(served: Served) -> None:
    for path, method, status in (
        ("/nope", "GET", 404),
        ("/v1/messages/nope", "POST", 404),
        ("/v1/models/%ff%fe", "GET", 404),
        ("/v1/models/a%00b", "GET", 404),
        (CHAT, "GET", 405),
        (CHAT, "OPTIONS", 405),
        (MESSAGES, "PUT", 405),
        ("/v1/embeddings", "POST", 400),
    ):
        response = await served.gateway.http.request(method, path)
        body = response.json()
        assert response.status_code == status, (path, body)
        assert ("type" in body) == path.startswith(MESSAGES), (path, body)
        assert body["error"]["message"]
    for path in ("/health", "/v1/models"):
        asked = await served.gateway.http.head(path)
        assert (asked.status_code, asked.content) == (200, b"")


ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 9),
        st.sampled_from([2**31, 2**32, 2**63, 2**64, -(2**63), 10**30]),
        st.floats(),
        st.text(st.characters(codec="utf-8"), max_size=6),
        st.sampled_from(
            ["auto", "none", "required", "user", "text", "json_schema", "\x00", "é" * 300, "demo_model"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "name", "function", "schema", "json_schema", "a", "1"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=6,
)
FIELDS: dict[str, list[str]] = {
    CHAT: [
        "model",
        "messages",
        "stream",
        "stream_options",
        "n",
        "temperature",
        "top_p",
        "logit_bias",
        "seed",
        "stop",
        "user",
        "response_format",
        "top_k",
        "min_tokens",
        "stop_token_ids",
        "truncate_prompt_tokens",
        "bad_words",
        "allowed_token_ids",
        "return_token_ids",
        "structured_outputs",
        "slo",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "chat_template_kwargs",
        "metadata",
        "store",
        "reasoning_effort",
    ],
    TEXT: [
        "prompt",
        "n",
        "echo",
        "logprobs",
        "best_of",
        "suffix",
        "stream",
        "stop",
        "seed",
        "slo",
        "logit_bias",
    ],
    MESSAGES: [
        "model",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "metadata",
        "stop_sequences",
        "top_k",
        "stream",
        "slo",
        "temperature",
    ],
    RESPONSES: [
        "model",
        "input",
        "instructions",
        "text",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "reasoning",
        "include",
        "metadata",
        "stream",
        "stream_options",
        "seed",
        "slo",
    ],
    "/v1/messages/count_tokens": ["messages", "system", "tools", "tool_choice", "thinking", "output_config"],
    "/tokenize": ["prompt", "messages", "model", "chat_template_kwargs", "add_special_tokens"],
    "/detokenize": ["tokens", "model"],
}
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    TEXT: {"prompt": "a", "max_tokens": 2},
    MESSAGES: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    RESPONSES: {"input": "a", "max_output_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
}


@st.composite
def nearly_right(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    path = draw(st.sampled_from(sorted(FIELDS)))
    odd = draw(st.dictionaries(st.sampled_from(FIELDS[path]), ANYTHING, min_size=1, max_size=3))
    return path, VALID[path] | odd


async def test_no_body_is_a_bug_or_a_hang(served: Served) -> None:
    async def check(given: tuple[str, dict[str, Any]]) -> None:
        path, body = given
        response = await served.gateway.http.post(path, content=json.dumps(body).encode())
        assert response.status_code < 500, response.text
        if response.status_code != 200:
            error = response.json()["error"]
            assert error["message"], response.text
            assert ("type" in response.json()) == path.startswith(MESSAGES)

    async with asyncio.timeout(4 * PATIENCE_S):
        await fuzz(nearly_right(), check, examples=150)
    await assert_all_is_freed(served.fleet, served.sdk)
