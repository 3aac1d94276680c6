"""Bounds of JSON bodies: counted without making a value, and the first wrong entry ends the reading."""

from __future__ import annotations

import json
import threading
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from baton.types import Model
from gateway.anthropic.convert import chat_of
from gateway.anthropic.schema import MessagesBody
from gateway.app import make_app
from gateway.openai.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from gateway.responses.items import read_items
from gateway.responses.schema import ResponsesBody
from gateway.responses.store import ResponseLimits
from gateway.serving import bodies
from gateway.serving.bodies import (
    LARGE_BYTES,
    MAX_CONTAINERS,
    MAX_ENTRIES,
    MAX_NAMES,
    away_from_loop,
    excess,
    explained,
    parsed,
)
from gateway.serving.errors import ApiError, invalid
from gateway.serving.fleet import FleetClient, Fleets, ServedModel
from gateway.serving.slo import MAX_MESSAGES, Strict

BODY_BYTES = 1 << 20
MOST_ERRORS = 8
"""A wrong value has an error for each member of a union, whatever the length of its list."""

VALUES = st.recursive(
    st.one_of(st.integers(), st.text(st.sampled_from('a\\"{}[],:é\n'), max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(st.sampled_from('a\\"{}[],:'), max_size=4), inner, max_size=4),
    ),
    max_leaves=20,
)


def counted(value: Any) -> tuple[int, int, int]:
    """Return the containers, names and commas of a value."""
    if not isinstance(value, dict | list):
        return 0, 0, 0
    found = (1, len(value) if isinstance(value, dict) else 0, max(0, len(value) - 1))
    inner = value.values() if isinstance(value, dict) else value
    return tuple(map(sum, zip(found, *map(counted, inner), strict=True)))  # type: ignore[return-value]


@given(VALUES, st.booleans())
def test_marks_are_counted_outside_of_texts_alone(value: Any, is_ascii: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "LARGE_BYTES", 0)
        for name in ("MAX_CONTAINERS", "MAX_NAMES", "MAX_ENTRIES"):
            patch.setattr(bodies, name, 3)
        found = excess(json.dumps(value, ensure_ascii=is_ascii).encode())
    assert bool(found) == (max(counted(value)) > 3), found


def filled(before: bytes, unit: bytes, after: bytes) -> bytes:
    """Return a large body, whose list has this unit again and again."""
    return before + b",".join([unit] * ((BODY_BYTES - len(before + after)) // (len(unit) + 1))) + after


def named(before: bytes, value: bytes, after: bytes) -> bytes:
    names = (b'"%06x":%s' % (index, value) for index in range(BODY_BYTES // (len(value) + 11)))
    return before + b",".join(names) + after


CHAT = b'{"messages":[{"role":"user","content":"a"}],'
MESSAGES = b'{"max_tokens":1,"messages":[{"role":"user","content":"a"}],'
SMALL_UNITS = (b"{}", b"[]", b"1", b'""', b"null", b'{"a":1}')
PLACES: list[tuple[type[Strict], bytes, bytes]] = [
    (CompletionBody, b'{"prompt":[', b"]}"),
    (CompletionBody, b'{"prompt":[[', b"]]}"),
    (CompletionBody, b'{"prompt":"a","stop":[', b"]}"),
    (CompletionBody, b'{"prompt":"a","stop_token_ids":[', b"]}"),
    (CompletionBody, b'{"prompt":"a","logit_bias":[', b"]}"),
    (ChatBody, b'{"messages":[', b"]}"),
    (ChatBody, b'{"messages":[{"role":"user","content":[', b"]}]}"),
    (ChatBody, b'{"messages":[{"role":"assistant","tool_calls":[', b"]}]}"),
    (ChatBody, CHAT + b'"tools":[', b"]}"),
    (ChatBody, CHAT + b'"bad_words":[', b"]}"),
    (ChatBody, CHAT + b'"metadata":{"a":[', b"]}}"),
    (ChatBody, CHAT + b'"structured_outputs":{"choice":[', b"]}}"),
    (ChatBody, CHAT + b'"chat_template_kwargs":{"a":[', b"]}}"),
    (TokenizeBody, b'{"messages":[', b"]}"),
    (DetokenizeBody, b'{"tokens":[', b"]}"),
    (MessagesBody, b'{"max_tokens":1,"messages":[', b"]}"),
    (MessagesBody, b'{"max_tokens":1,"messages":[{"role":"user","content":[', b"]}]}"),
    (MessagesBody, MESSAGES + b'"system":[', b"]}"),
    (MessagesBody, MESSAGES + b'"tools":[', b"]}"),
    (MessagesBody, MESSAGES + b'"stop_sequences":[', b"]}"),
    (ResponsesBody, b'{"input":[', b"]}"),
    (ResponsesBody, b'{"input":[{"role":"user","content":[', b"]}]}"),
    (ResponsesBody, b'{"input":"a","tools":[', b"]}"),
    (ResponsesBody, b'{"input":"a","include":[', b"]}"),
]


def look_inside(body: Strict) -> None:
    """Read what the models leave to later steps."""
    if isinstance(body, MessagesBody):
        chat_of(body)
    if isinstance(body, ResponsesBody):
        read_items(body.input, "")


@pytest.fixture
def error_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The errors that each validation has found."""
    found: list[int] = []

    def noted(error: ValidationError, *where: str | int) -> ApiError:
        found.append(error.error_count())
        return explained(error, *where)

    monkeypatch.setattr("gateway.serving.bodies.explained", noted)
    return found


@pytest.mark.parametrize("unit", SMALL_UNITS, ids=str)
def test_a_body_of_small_values_has_few_errors_and_few_objects(unit: bytes, error_counts: list[int]) -> None:
    statuses = set()
    for kind, before, after in PLACES:
        body = filled(before, unit, after)
        try:
            look_inside(parsed(kind, body))
        except ApiError as error:
            statuses.add(error.problem.status)
        else:
            assert body.count(b"{") + body.count(b"[") <= MAX_CONTAINERS, (kind, before)
            assert body.count(b",") <= MAX_ENTRIES, (kind, before)
    assert max(error_counts, default=0) <= MOST_ERRORS
    assert statuses <= {400, 413}


@pytest.mark.parametrize("place", ['"logit_bias":{', '"metadata":{', '"chat_template_kwargs":{', ""])
def test_an_object_of_many_names_is_not_read(place: str) -> None:
    body = named(CHAT + place.encode(), b'""', b"}" * (1 + bool(place)))
    with pytest.raises(ApiError, match=f"names of fields; accepted: at most {MAX_NAMES}"):
        parsed(ChatBody, body)


def test_a_long_text_of_marks_and_a_long_prompt_of_token_ids_are_read() -> None:
    text = '{"a": ["\\\\", ' * (BODY_BYTES // 24)
    assert parsed(CompletionBody, json.dumps({"prompt": text}).encode()).prompt == text
    token_ids = list(range(100_000, 100_000 + BODY_BYTES // 10))
    assert parsed(CompletionBody, json.dumps({"prompt": token_ids}).encode()).prompt == token_ids


class OneModel:
    """A fleet that names its model and is asked for nothing else."""

    async def model(self, _: str) -> ServedModel:
        facts = Model("m", "m", 100, 100, has_chat_template=True)
        return ServedModel("m", facts, cast("FleetClient", None))


PADDING = '"unknown":"' + LARGE_BYTES * "a" + '"}'


@pytest.mark.parametrize(
    ("path", "body", "step"),
    [
        ("/v1/chat/completions", CHAT, "openai.endpoints.chat_generation"),
        ("/v1/completions", b'{"prompt":"a",', "openai.endpoints.completion_generations"),
        ("/tokenize", CHAT, "openai.endpoints.prompt_of"),
        ("/v1/messages", MESSAGES, "anthropic.endpoints.chat_of"),
        ("/v1/messages/count_tokens", CHAT, "anthropic.endpoints.chat_of"),
        ("/v1/responses", b'{"input":"a",', "responses.create.check"),
        ("/v1/responses", b'{"input":"a",', "responses.create.read_items"),
        ("/v1/responses", b'{"input":"a",', "responses.create.generation_of"),
    ],
)
async def test_a_large_body_is_converted_away_from_the_loop(
    path: str, body: bytes, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def noted(*_: object) -> None:
        threads.append(threading.get_ident())
        raise invalid("a", "seen", code="seen")

    monkeypatch.setattr(f"gateway.{step}", noted)
    app = make_app(cast("Fleets", OneModel()), 1 << 20, None, None, ResponseLimits(1.0, 1, 1), has_page=False)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://m") as client:
        response = await client.post(path, content=body + PADDING.encode())
    assert response.json()["error"]["code"] == "seen"
    assert threads
    assert threading.get_ident() not in threads


def test_a_message_becomes_no_more_messages_than_a_chat_has() -> None:
    block = b'{"type":"tool_result","tool_use_id":"a"}'
    before = b'{"max_tokens":1,"messages":[{"role":"user","content":['
    body = parsed(MessagesBody, before + b",".join([block] * (MAX_MESSAGES + 1)) + b"]}]}")
    with pytest.raises(ApiError, match=f"accepted: at most {MAX_MESSAGES}"):
        chat_of(body)


async def test_large_work_alone_leaves_the_loop() -> None:
    here = threading.get_ident()
    assert await away_from_loop(LARGE_BYTES, threading.get_ident) == here
    assert await away_from_loop(LARGE_BYTES + 1, threading.get_ident) != here
