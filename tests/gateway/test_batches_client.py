"""Files and batches by OpenAI's own client, unchanged, against a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from baton.fleet import Fleet
from tests.fleets import NewFleet
from tests.gateway.batches import CHATS, HELLO, ended, jsonl, line, results, start, upload
from tests.gateway.running import running_gateway
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(new_fleet: NewFleet) -> AsyncIterator[Fleet]:
    async with new_fleet(timed="demo-cpu", prefill=0) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(fleet: Fleet) -> AsyncIterator[Any]:
    async with (
        running_gateway(fleet.router_addresses, "--redis", fleet.redis_url) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as opened,
    ):
        yield opened


async def test_a_batch_runs_to_its_end_as_openai_describes_it(client: Any) -> None:
    lines = [line(f"chat-{n}") for n in range(8)] + [line("wrong", top_p=99.0)]
    batch = await start(client, lines, metadata={"for": "a test"})
    assert batch.status in {"validating", "in_progress"}
    batch = await ended(client, batch)
    assert (batch.status, batch.endpoint, batch.metadata) == ("completed", CHATS, {"for": "a test"})
    assert batch.request_counts.model_dump() == {"total": 9, "completed": 8, "failed": 1}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    found = await results(client, batch.output_file_id)
    assert sorted(row["custom_id"] for row in found) == [f"chat-{n}" for n in range(8)]
    whole = await client.chat.completions.create(model="demo_model", **HELLO, temperature=0)
    for row in found:
        assert row["error"] is None
        assert row["response"]["status_code"] == 200
        answer = row["response"]["body"]["choices"][0]["message"]["content"]
        assert answer == whole.choices[0].message.content
    [wrong] = await results(client, batch.error_file_id)
    assert wrong["response"]["status_code"] == 400
    assert wrong["response"]["body"]["error"]["param"] == "top_p"
    file = await client.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert file.bytes == len((await client.files.content(file.id)).content)


LONG: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True}
"""None of these ends before a test has cancelled it, on a busy machine either."""


async def test_a_cancelled_batch_keeps_what_it_has_and_names_the_rest(client: Any) -> None:
    batch = await start(client, [line("short"), *(line(f"long-{n}", **LONG) for n in range(20))])
    async with asyncio.timeout(PATIENCE_S):
        while (await client.batches.retrieve(batch.id)).request_counts.completed == 0:
            await asyncio.sleep(0.02)
    with pytest.raises(openai.ConflictError, match="has not ended"):
        await client.files.delete(batch.input_file_id)
    assert (await client.batches.cancel(batch.id)).status == "cancelling"
    batch = await ended(client, batch)
    assert batch.status == "cancelled"
    assert batch.cancelling_at <= batch.cancelled_at
    done = await results(client, batch.output_file_id)
    rest = await results(client, batch.error_file_id)
    assert "short" in {row["custom_id"] for row in done}
    assert sorted(row["custom_id"] for row in done + rest) == sorted(
        ["short", *(f"long-{n}" for n in range(20))]
    )
    assert {row["error"]["code"] for row in rest} == {"batch_cancelled"}
    assert batch.request_counts.completed + batch.request_counts.failed == 21
    with pytest.raises(openai.ConflictError, match="cancelled"):
        await client.batches.cancel(batch.id)
    await client.files.delete(batch.input_file_id)


async def test_a_batch_ends_with_its_window(client: Any) -> None:
    lines = [line(f"long-{n}", **LONG) for n in range(8)]
    batch = await ended(client, await start(client, lines, completion_window="1s"))
    assert batch.status == "expired"
    rows = await results(client, batch.error_file_id) + await results(client, batch.output_file_id)
    assert len(rows) == 8
    assert "batch_expired" in {(row["error"] or {}).get("code") for row in rows}


async def test_a_batch_of_another_endpoint_fails_with_the_line(client: Any) -> None:
    lines = [line("a"), {**line("b"), "url": "/v1/completions", "body": {"prompt": "x"}}]
    batch = await start(client, lines)
    assert batch.status == "failed"
    [problem] = batch.errors.data
    assert (problem.line, problem.param, problem.code) == (2, "url", "mismatched_url")
    assert (await client.batches.list(limit=1)).data[0].id == batch.id


IMAGE = "body.input[0].content[0].type"


def response_line(**fields: Any) -> dict[str, Any]:
    return {"custom_id": "b", "method": "POST", "url": "/v1/responses", "body": {"input": "a"} | fields}


@pytest.mark.parametrize(
    ("row", "path"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"custom_id": "\xff"}', None),
        (jsonl([line("b", top_p="high")]), "body.top_p"),
        (jsonl([line("b", messages=[{"role": "user"}])]), "body.messages[0].content"),
        (jsonl([line("b", stream=True)]), "body.stream"),
        (jsonl([line("b", slo={"ttft_ms": 5})]), "body.slo"),
        (jsonl([line("b", model="gpt-6")]), "body.model"),
        (jsonl([line("a")]), "custom_id"),
        (jsonl([line("b") | {"method": "GET"}]), "method"),
        (jsonl([line("b", url="/v1/moderations")]), "url"),
        (b" \n" + jsonl([line("b")]), "file"),
        (jsonl([response_line(input=[{"role": "user", "content": [{"type": "input_image"}]}])]), IMAGE),
        (jsonl([response_line(text={"format": {"type": "json_schema"}})]), "body.text.format.schema"),
    ],
)
async def test_a_wrong_line_is_named_by_number_and_path(client: Any, row: bytes, path: str | None) -> None:
    before = (await client.files.list(purpose="batch")).data
    with pytest.raises(openai.BadRequestError) as caught:
        await client.files.create(file=("in.jsonl", jsonl([line("a")]) + row), purpose="batch")
    assert caught.value.param == path
    assert "line 2" in caught.value.message
    assert (await client.files.list(purpose="batch")).data == before


async def test_unknown_parts_of_lines_are_left_out_and_named(client: Any) -> None:
    custom = {"type": "custom", "custom": {"name": "patch"}}
    lines = [line("a", colour="red", tools=[custom]), line("b", colour="red") | {"priority": 1}]
    sent = await client.files.with_raw_response.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    assert sent.headers["x-baton-ignored"] == "body.colour,body.tools[0],priority"
    made = await client.batches.with_raw_response.create(
        input_file_id=sent.parse().id,
        endpoint=CHATS,
        completion_window="24h",
        extra_body={"colour": 1},
    )
    assert made.headers["x-baton-ignored"] == "colour"
    batch = await ended(client, made.parse())
    assert (batch.status, batch.request_counts.completed) == ("completed", 2)


async def test_a_wrong_form_is_refused(client: Any) -> None:
    url, good = f"{client.base_url}files", jsonl([line("a")])
    cases: list[tuple[int, dict[str, Any]]] = [
        (400, {"json": {}}),
        (400, {"content": b"--x", "headers": {"content-type": "multipart/form-data; boundary=y"}}),
        (400, {"content": b"--x", "headers": {"content-type": "multipart/form-data"}}),
        (400, {"data": {"purpose": "batch"}, "files": {"other": b"1"}}),
        (400, {"data": {"purpose": "batch"}, "files": {"file": b""}}),
        (400, {"data": {"purpose": "assistants"}, "files": {"file": good}}),
        (400, {"data": {"purpose": "batch", "expires_after[anchor]": "now"}, "files": {"file": good}}),
        (400, {"data": {"purpose": "batch"}, "files": {"file": b"\n"}}),
    ]
    async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
        for status, sent in cases:
            response = await http.post(url, **sent)
            assert response.status_code == status, response.text
            assert response.json()["error"]["message"]


async def test_files_and_batches_are_listed_in_pages(client: Any) -> None:
    files = [await upload(client, [line("a")]) for _ in range(5)]
    listed = [file.id async for file in client.files.list(limit=2, order="asc", purpose="batch")]
    assert [name for name in listed if name in {file.id for file in files}] == [file.id for file in files]
    newest = await client.files.list(limit=2)
    assert [file.id for file in newest.data] == [files[4].id, files[3].id]
    for file in files:
        assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(files[0].id)
    batches = [
        await client.batches.create(input_file_id=file.id, endpoint=CHATS, completion_window="24h")
        for file in [await upload(client, [line("a")])]
        for _ in range(3)
    ]
    listed = [batch.id async for batch in client.batches.list(limit=1)]
    assert listed[:3] == [batch.id for batch in reversed(batches)]


async def test_unknown_ids_and_wrong_arguments_are_refused(client: Any) -> None:
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            await call("file-none")
    for call in (client.batches.retrieve, client.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            await call("batch_none")
    file = await upload(client, [line("a")])
    good = {"input_file_id": file.id, "endpoint": CHATS, "completion_window": "24h"}
    for name, value in (
        ("input_file_id", 5),
        ("endpoint", "/v1/videos"),
        ("completion_window", "soon"),
        ("metadata", {str(n): "" for n in range(17)}),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.post("/batches", body=good | {name: value}, cast_to=object)
        assert caught.value.param == name
    for metadata in ({"x" * 65: ""}, {"x": "x" * 513}):
        with pytest.raises(openai.BadRequestError, match="metadata"):
            await client.post("/batches", body=good | {"metadata": metadata}, cast_to=object)
    for name, value in (("limit", 0), ("purpose", "batch:acme")):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.files.list(**{name: value})
        assert caught.value.param == name


async def test_limits_of_size_are_kept(fleet: Fleet) -> None:
    flags = ("--redis", fleet.redis_url, "--max-file-bytes", "2000", "--max-tenant-bytes", "1")
    async with running_gateway(fleet.router_addresses, *flags) as gateway:
        for size in (100, 3000, 100_000):
            sent: dict[str, Any] = {
                "data": {"purpose": "batch"},
                "files": {"file": jsonl([line("x" * size)])},
            }
            response = await gateway.http.post("/v1/files", **sent)
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "too_large"


async def test_without_redis_only_these_are_not_served(fleet: Fleet) -> None:
    async with running_gateway(fleet.router_addresses) as gateway:
        for method, path in (("GET", "/v1/files"), ("POST", "/v1/batches"), ("GET", "/v1/batches/batch_1")):
            body = {"input_file_id": "f", "endpoint": CHATS, "completion_window": "24h"}
            response = await gateway.http.request(method, path, json=body)
            assert response.status_code == 501
            assert "--redis" in response.json()["error"]["message"]
        assert (await gateway.http.post(CHATS, json=HELLO)).status_code == 200
    async with running_gateway(fleet.router_addresses, "--redis", "redis://127.0.0.1:1/0") as gateway:
        response = await gateway.http.get("/v1/files")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "redis_away")
        assert (await gateway.http.post(CHATS, json=HELLO)).status_code == 200


async def test_every_endpoint_runs_in_a_batch(client: Any) -> None:
    for url, body in (
        ("/v1/completions", {"prompt": ["The list is", "import"], "max_tokens": 3}),
        ("/v1/responses", {"input": "Hello", "max_output_tokens": 3, "store": False}),
    ):
        row = {"custom_id": "one", "method": "POST", "url": url, "body": body}
        batch = await ended(client, await start(client, [row], endpoint=url))
        [found] = await results(client, batch.output_file_id)
        direct = await client.post(url.removeprefix("/v1"), body=body, cast_to=object)
        assert found["response"]["body"]["object"] == direct["object"]
        wrong = row | {"body": body | {"top_k": "many"}}
        with pytest.raises(openai.BadRequestError) as caught:
            await upload(client, [wrong])
        assert caught.value.param == "body.top_k"
