"""Numbers of any length, wherever a caller may write one, are refused or taken, and never a failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.baton.scripted_service import ScriptedRouter
from tests.gateway.running import Gateway, running_gateway
from tests.gateway.test_ignored import COUNTED, TEXT_OF
from tests.gateway.test_openai_requests import MODEL
from tests.redis_server import redis_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
BATCHES = "/v1/batches"
HELLO = '"messages":[{"role":"user","content":"a"}]'
DIGITS = "9" * 5000
"""More digits than Python turns into an integer."""
NUMBERS = (DIGITS, f"-{DIGITS}", f"1e{DIGITS}", f"0.{DIGITS}", f"{DIGITS}.5", "1e400", "-1e400", "9" * 400)
VALID = {
    CHAT: HELLO,
    TEXT: '"prompt":"a"',
    MESSAGES: HELLO + ',"max_tokens":2',
    RESPONSES: '"input":"a"',
    "/v1/messages/count_tokens": HELLO,
    "/tokenize": HELLO,
    "/detokenize": '"tokens":[1]',
    BATCHES: '"input_file_id":"x","endpoint":"/v1/completions","completion_window":"24h"',
}
TOOL = '"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"maximum":N}}}}}]'
BODIES = [
    *((path, '"unknown":N') for path in VALID),
    *((path, '"unknown":{"a":[N]}') for path in VALID),
    *((path, f'"{name}":N') for path in (CHAT, TEXT) for name in ("n", "seed", "max_tokens", "temperature")),
    *((path, f'"{name}":N') for path in (CHAT, TEXT, RESPONSES) for name in ("top_k", "min_tokens", "min_p")),
    *((path, '"logit_bias":{"N":1}') for path in (CHAT, TEXT, RESPONSES)),
    *((path, '"logit_bias":{"1":N}') for path in (CHAT, TEXT, RESPONSES)),
    *((path, '"slo":{"ttft_ms":N}') for path in (CHAT, TEXT, MESSAGES, RESPONSES)),
    *((path, '"stop_token_ids":[N]') for path in (CHAT, TEXT, RESPONSES)),
    *((path, '"chat_template_kwargs":{"a":N}') for path in (CHAT, RESPONSES, "/tokenize")),
    (CHAT, '"top_logprobs":N,"logprobs":true'),
    (CHAT, '"metadata":{"a":N}'),
    (CHAT, TOOL),
    ("/tokenize", TOOL),
    (CHAT, '"response_format":{"type":"json_schema","json_schema":{"schema":{"const":N}}}'),
    (CHAT, '"structured_outputs":{"json":{"const":N}}'),
    (
        CHAT,
        '"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\\"a\\":N}"}}]}]',
    ),
    (TEXT, '"prompt":[N]'),
    (TEXT, '"prompt":[[1,N]]'),
    (TEXT, '"logprobs":N'),
    (MESSAGES, '"max_tokens":N'),
    (MESSAGES, '"top_k":N'),
    (MESSAGES, '"thinking":{"type":"enabled","budget_tokens":N}'),
    (MESSAGES, '"tools":[{"name":"f","input_schema":{"properties":{"a":{"maximum":N}}}}]'),
    (MESSAGES, '"output_config":{"format":{"type":"json_schema","schema":{"const":N}}}'),
    (
        MESSAGES,
        '"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"a":N}}]}]',
    ),
    (RESPONSES, '"max_output_tokens":N'),
    (RESPONSES, '"tools":[{"type":"function","name":"f","parameters":{"properties":{"a":{"maximum":N}}}}]'),
    (RESPONSES, '"tools":[{"type":"custom","name":"f","x":N}]'),
    (RESPONSES, '"text":{"format":{"type":"json_schema","name":"a","schema":{"const":N}}}'),
    (RESPONSES, '"tool_choice":{"type":N}'),
    (RESPONSES, '"input":[{"role":"user","content":[{"type":"input_text","text":"a","x":N}]}]'),
    ("/detokenize", '"tokens":[N]'),
    (BATCHES, '"output_expires_after":{"anchor":"created_at","seconds":N}'),
    (BATCHES, '"completion_window":"Nh"'),
    (BATCHES, '"metadata":{"a":N}'),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    with redis_server() as redis:
        async with (
            ScriptedRouter(ListModels=MODEL, CountTokens=COUNTED, Detokenize=TEXT_OF) as router,
            running_gateway([router.address], "--redis", redis.url) as running,
        ):
            yield running


async def test_in_a_body(gateway: Gateway) -> None:
    wrong = []
    for path, field in BODIES:
        for number in NUMBERS:
            body = f"{{{VALID[path]},{field.replace('N', number)}}}"
            response = await gateway.http.post(path, content=body)
            if response.status_code not in {200, 400, 404} or len(response.content) > 20_000:
                wrong.append((path, field, number[:9], response.status_code, response.text[:200]))
    assert not wrong, "\n".join(map(str, wrong))


async def test_in_a_line_of_a_batch(gateway: Gateway) -> None:
    wrong = []
    for path, field in BODIES:
        if path not in {CHAT, TEXT, RESPONSES}:
            continue
        body = f"{{{VALID[path]},{field.replace('N', DIGITS)}}}"
        line = f'{{"custom_id":"a","method":"POST","url":"{path}","body":{body}}}'
        response = await gateway.http.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", line.encode())}
        )
        if response.status_code not in {200, 400}:
            wrong.append((path, field, response.status_code, response.text[:200]))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("number", [DIGITS, "²", "٣٠٠٠٠", "1e9", "-1", "0x1000", "3600.5", ""])
async def test_in_a_form_a_query_or_a_header(gateway: Gateway, number: str) -> None:
    file = {"file": ("a.jsonl", b"{}")}
    form = {
        "purpose": "batch",
        "expires_after[anchor]": "created_at",
        "expires_after[seconds]": number,
    }
    response = await gateway.http.post("/v1/files", data=form, files=file)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "expires_after.seconds"), error
    stored = (await gateway.http.post(RESPONSES, json={"input": "a"})).json()["id"]
    for path in ("/v1/files", BATCHES, f"{RESPONSES}/{stored}/input_items"):
        response = await gateway.http.get(path, params={"limit": number})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "limit"), response.text
    for name in ("x-baton-ttft-ms", "x-baton-deadline-ms"):
        response = await gateway.http.post(
            CHAT, content=f"{{{HELLO}}}", headers={name.encode(): number.encode()}
        )
        assert (response.status_code, response.json()["error"]["param"]) == (400, name), response.text


@pytest.mark.parametrize("length", [DIGITS, "9" * 30, "\u00b2", "-1", "+2", "0x2", "1e1"])
async def test_in_a_content_length(gateway: Gateway, length: str) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n"
    writer.write(head.encode("latin-1"))
    assert (await reader.readline()).split()[1] in {b"400", b"413"}
    writer.close()


async def test_the_number_that_is_wrong_is_named(gateway: Gateway) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "logit_bias": {DIGITS: 1}}
    error = (await gateway.http.post(CHAT, json=body)).json()["error"]
    assert error["param"] == "logit_bias"
    assert error["message"].startswith("logit_bias has the key '999")
    assert len(json.dumps(error)) < 1000
