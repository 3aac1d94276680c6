"""Parts of a request that a fleet does not serve are left out, and named in a header and once in the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from baton.v1 import inference_pb2
from gateway.openai.schema import ChatBody, Message, StreamOptions
from gateway.serving.bodies import MAX_CHARACTERS, Ignored, ignored, leave_out, leave_out_unknown
from tests.baton.scripted_service import WHOLE, ScriptedRouter
from tests.gateway.running import Gateway, running_gateway
from tests.gateway.test_openai_requests import MODEL
from tests.patience import PATIENCE_S

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
COUNT, TOKENIZE, DETOKENIZE = "/v1/messages/count_tokens", "/tokenize", "/detokenize"
COUNTED = inference_pb2.CountTokensResponse(token_ids=[1, 2], count=2)
TEXT_OF = inference_pb2.DetokenizeResponse(text="a")
USER = {"role": "user", "content": "hello"}
VALID: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER], "max_tokens": 9},
    TEXT: {"prompt": "hello", "max_tokens": 9},
    MESSAGES: {"messages": [USER], "max_tokens": 9},
    RESPONSES: {"input": "hello", "max_output_tokens": 9},
    COUNT: {"messages": [USER]},
    TOKENIZE: {"prompt": "hello"},
    DETOKENIZE: {"tokens": [1]},
}


@dataclass(frozen=True)
class Doors:
    """Two gateways before one scripted router: one as it is by default, and one that is strict."""

    router: ScriptedRouter
    tolerant: Gateway
    strict: Gateway
    log: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Doors]:
    path = tmp_path_factory.mktemp("ignored") / "log"
    async with (
        ScriptedRouter(ListModels=MODEL, CountTokens=COUNTED, Detokenize=TEXT_OF) as router,
        running_gateway([router.address], log=path) as tolerant,
        running_gateway([router.address], "--strict-fields") as strict,
    ):
        yield Doors(router, tolerant, strict, path)


@pytest.fixture
def doors(both: Doors) -> Doors:
    both.router.scripts[:] = [WHOLE]
    both.router.heard_calls.clear()
    return both


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}}
OWN = {"name": "f", "input_schema": {"type": "object"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CUSTOM_CALL = {"id": "x", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
LEFT_OUT: list[tuple[str, dict[str, Any], list[str]]] = [
    *((path, {"client_metadata": {"id": "a"}}, ["client_metadata"]) for path in VALID),
    (CHAT, {"slo": {"best": 1}, "stream": False}, ["slo.best"]),
    (CHAT, {"messages": [USER | {"id": "msg_1", "cache": 0}]}, ["messages[0].id", "messages[0].cache"]),
    (CHAT, {"response_format": {"type": "text", "x": 1}}, ["response_format.x"]),
    (CHAT, {"max_token": False}, ["max_token"]),
    (CHAT, {"prediction": {"type": "content", "content": "a"}}, ["prediction"]),
    (CHAT, {"verbosity": "low", "store": True}, ["store", "verbosity"]),
    (CHAT, {"parallel_tool_calls": True}, ["parallel_tool_calls"]),
    (CHAT, {"tools": [{"type": "custom", "custom": {"name": "patch"}}, function("f")]}, ["tools[0]"]),
    (CHAT, {"tools": [{"type": "web_search"}], "tool_choice": "auto"}, ["tools[0]"]),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]}, ["tools[0].function.x"]),
    (
        CHAT,
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CUSTOM_CALL, CALL]},
                {"role": "tool", "tool_call_id": "x", "content": "patched"},
                {"role": "tool", "tool_call_id": "c", "content": "done"},
            ]
        },
        ["messages[1].tool_calls[0]", "messages[2]"],
    ),
    (
        RESPONSES,
        {
            "text": {"verbosity": "low"},
            "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
            "reasoning": {"effort": "ultra", "summary": "detailed", "context": "all"},
            "truncation": "auto",
            "context_management": [{"type": "compaction"}],
        },
        [
            "context_management",
            "reasoning.context",
            "truncation",
            "text.verbosity",
            "reasoning.summary",
            "include[1]",
        ],
    ),
    (
        RESPONSES,
        {
            "tools": [
                FLAT,
                {"type": "local_shell"},
                {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
                {"type": "web_search", "external_web_access": False},
                {"type": "namespace", "name": "n", "tools": [FLAT]},
                {"type": "image_generation", "output_format": "png"},
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
        },
        [f"tools[{index}]" for index in range(1, 6)],
    ),
    (
        RESPONSES,
        {
            "input": [
                USER,
                {"type": "reasoning", "summary": [], "encrypted_content": "x", "content": None},
                {"type": "local_shell_call", "call_id": "s", "status": "completed", "action": {}},
                {"type": "function_call_output", "call_id": "s", "output": "a file"},
                {"type": "custom_tool_call", "call_id": "p", "name": "apply_patch", "input": "***"},
                {"type": "custom_tool_call_output", "call_id": "p", "output": "patched"},
                {"type": "web_search_call", "id": "ws_1", "status": "completed"},
                USER | {"type": "message", "internal_chat_message_metadata_passthrough": {"turn": 1}},
            ]
        },
        [
            *(f"input[{index}]" for index in range(2, 7)),
            "input[7].internal_chat_message_metadata_passthrough",
        ],
    ),
    (
        MESSAGES,
        {
            "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
            "inference_geo": "us",
            "container": "c_1",
            "mcp_servers": [{"type": "url", "url": "https://a.example", "name": "a"}],
            "tools": [SEARCH, OWN | {"defer_loading": True}],
        },
        [
            "context_management",
            "inference_geo",
            "container",
            "mcp_servers",
            "tools[0]",
            "tools[1].defer_loading",
        ],
    ),
    (COUNT, {"tools": [SEARCH], "tool_choice": {"type": "auto"}}, ["tools[0]"]),
    (
        MESSAGES,
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "redacted_thinking", "data": "x"},
                        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                        {"type": "text", "text": "So.", "citations": [{"type": "char_location"}]},
                    ],
                },
                {"role": "assistant", "content": [{"type": "server_tool_use", "id": "t"}]},
                USER,
            ]
        },
        [
            *(f"messages[1].content[{index}]" for index in range(3)),
            "messages[1].content[3].citations",
            "messages[2].content[0]",
        ],
    ),
]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("stream", [False, True])
async def test_unknown_parts_are_left_out_and_named(doors: Doors, stream: bool) -> None:
    wrong = []
    for path, fields, expected in LEFT_OUT:
        streams = {"stream": True} if stream and path in {CHAT, TEXT, MESSAGES, RESPONSES} else {}
        response = await doors.tolerant.http.post(path, json=VALID[path] | fields | streams)
        found = response.headers.get("x-baton-ignored", "").split(",")
        if response.status_code != 200 or sorted(found) != sorted(expected):
            wrong.append((path, fields, response.status_code, found, response.text[:200]))
    assert not wrong


@pytest.mark.asyncio(loop_scope="module")
async def test_a_strict_gateway_refuses_it_by_name(doors: Doors) -> None:
    wrong = []
    for path, fields, expected in LEFT_OUT:
        error = (await doors.strict.http.post(path, json=VALID[path] | fields)).json().get("error", {})
        if not any(str(error.get("param")).startswith(name) for name in expected):
            wrong.append((path, fields, error))
    assert not wrong
    assert not doors.router.calls("Generate")


@pytest.mark.asyncio(loop_scope="module")
async def test_fields_that_say_nothing_are_nothing(doors: Doors) -> None:
    for path, valid in VALID.items():
        nothing = dict.fromkeys(("functions", "model", "stream", "never_heard_of", "tools", "slo"))
        for door in (doors.tolerant, doors.strict):
            response = await door.http.post(path, json=valid | nothing | {"nothing": [], "empty": {}})
            assert response.status_code == 200, (path, response.text)
            assert "x-baton-ignored" not in response.headers
    nulls = {name: None for name in ChatBody.model_fields if name != "messages"}
    response = await doors.strict.http.post(CHAT, json={"messages": [USER]} | nulls)
    assert response.status_code == 200, response.text


@pytest.mark.asyncio(loop_scope="module")
async def test_only_functions_reach_the_model(doors: Doors) -> None:
    for path, tools in (
        (CHAT, [{"type": "custom", "custom": {"name": "f"}}, function("g")]),
        (RESPONSES, [{"type": "local_shell"}, FLAT | {"name": "g"}]),
        (MESSAGES, [SEARCH, OWN | {"name": "g"}]),
    ):
        response = await doors.tolerant.http.post(path, json=VALID[path] | {"tools": tools})
        assert response.status_code == 200, response.text
        assert [tool.name for tool in doors.router.calls("Generate")[-1].chat.tools] == ["g"]
        if path == RESPONSES:
            assert [tool["name"] for tool in response.json()["tools"]] == ["g"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_choice_of_a_tool_that_is_left_out_is_refused(doors: Doors) -> None:
    custom, search = {"type": "custom", "custom": {"name": "p"}}, {"type": "web_search"}
    for path, fields in (
        (CHAT, {"tools": [custom], "tool_choice": "required"}),
        (CHAT, {"tools": [custom, function("f")], "tool_choice": custom}),
        (RESPONSES, {"tools": [search], "tool_choice": "required"}),
        (RESPONSES, {"tools": [search, FLAT], "tool_choice": search}),
        (MESSAGES, {"tools": [SEARCH], "tool_choice": {"type": "any"}}),
        (MESSAGES, {"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}),
    ):
        response = await doors.tolerant.http.post(path, json=VALID[path] | fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "tool_choice"), (path, fields, error)
        assert "accepted" in error["message"]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (TEXT, {"suffix": "end"}, "suffix"),
    (TEXT, {"best_of": 3}, "best_of"),
    (CHAT, {"best_of": 3}, "best_of"),
    (CHAT, {"audio": {"voice": "alloy"}}, "audio"),
    (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
    (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    (CHAT, {"guided_json": {"type": "object"}}, "guided_json"),
    (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
    (RESPONSES, {"background": True}, "background"),
    (RESPONSES, {"input": [{"type": "web_search_call", "id": "x"}]}, "input"),
    (MESSAGES, {"messages": [USER | {"content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
]


@pytest.mark.asyncio(loop_scope="module")
async def test_fields_that_decide_about_the_output_are_refused_by_name(doors: Doors) -> None:
    for path, fields, param in REFUSED:
        response = await doors.tolerant.http.post(path, json=VALID[path] | fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param), (path, fields, error)
        unset = {name: None for name in fields if name not in {"messages", "input"}}
        assert (await doors.tolerant.http.post(path, json=VALID[path] | unset)).status_code == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_the_log_names_it_once(doors: Doors) -> None:
    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in doors.log.read_text().splitlines() if "once_only" in line]

    await doors.tolerant.http.post(CHAT, json=VALID[CHAT] | {"once_only": 1})
    async with asyncio.timeout(PATIENCE_S):
        while not lines():
            await asyncio.sleep(0.01)
    [line] = lines()
    assert (line["event"], line["ignored"]) == ("request", "once_only")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_header_holds_any_names(doors: Doors) -> None:
    for name in ("a,b", "\r\nx: y", "é" * 5000, "\x00", "%", "a.b[0]"):
        response = await doors.tolerant.http.post(CHAT, json=VALID[CHAT] | {name: 1})
        assert response.status_code == 200, response.text
        assert unquote(response.headers["x-baton-ignored"]) == name[:96]
    many = {f"field_{index}": 1 for index in range(1000)}
    response = await doors.tolerant.http.post(CHAT, json=VALID[CHAT] | many)
    assert response.headers["x-baton-ignored"].startswith("field_0,field_1,")
    assert response.headers["x-baton-ignored"].endswith(",...")
    assert len(response.headers["x-baton-ignored"]) <= MAX_CHARACTERS


@pytest.mark.asyncio(loop_scope="module")
async def test_unknown_parts_of_a_large_body_are_named_too(doors: Doors) -> None:
    said = {"role": "user", "content": "a" * 2_000_000, "unknown": 1}
    response = await doors.tolerant.http.post(CHAT, json={"messages": [said]})
    assert response.headers["x-baton-ignored"] == "messages[0].unknown"


NAMES = st.text(st.characters(codec="utf-8"))


@given(st.lists(NAMES))
def test_names_are_bounded_safe_and_each_once(names: list[str]) -> None:
    known = Ignored()
    ignored.set(known)
    for name in names:
        leave_out(name, "")
    told = str(known)
    assert len(told) <= MAX_CHARACTERS
    assert told.isascii()
    assert told.isprintable()
    assert len(set(told.split(","))) == len(told.split(","))
    if told and not told.endswith("..."):
        assert {unquote(name) for name in told.split(",")} == {name[:96] for name in names}


KNOWN = {
    name
    for kind in (ChatBody, Message, StreamOptions)
    for name in (*kind.model_fields, *getattr(kind, "unserved", ()))
}
"""Names that hypothesis may draw, since it finds them in the code."""


@given(st.dictionaries(NAMES.filter(lambda name: name not in KNOWN), st.integers() | st.none()))
def test_nothing_unknown_stays_in_a_body(unknown: dict[str, Any]) -> None:
    given_body = {"messages": [USER | unknown], "stream_options": unknown} | unknown
    body = ChatBody.model_validate_json(json.dumps(given_body))
    leave_out_unknown(body)
    plain = ChatBody.model_validate({"messages": [USER], "stream_options": {}})
    assert body.model_dump() == plain.model_dump()
