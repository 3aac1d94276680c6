"""Stored responses: who continues, sees, cancels and loses them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from functools import partial
from typing import Any

import pytest

from gateway.responses.create import MAX_READ
from gateway.responses.items import MAX_ITEMS
from tests.baton.scripted_service import (
    HANG,
    Act,
    Wait,
    accepted,
    queued,
    tokens,
)
from tests.fleet.driving import until
from tests.gateway.responses.serving import CALL, URL, WEATHER, Served, events_of, said
from tests.gateway.responses.summing import summed
from tests.gateway.running import running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    assert listed["data"][0] == {
        "id": listed["first_id"],
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "one"}],
    }
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


async def test_a_whole_conversation_has_a_limit(served: Served) -> None:
    many = [{"role": "user", "content": "a"}] * (MAX_ITEMS - 1)
    first = await served.create(input=many)
    refused = await served.http.post(URL, json={"input": "x", "previous_response_id": first["id"]})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, "input", "invalid_field")
    assert error["message"] == (
        "input has 1 items, and the conversation 4096 before them; accepted: up to 4096 together"
    )


async def test_items_of_stored_responses_are_taken_by_their_ids(served: Served) -> None:
    """So the AI SDK sends back what the assistant said: with each turn, all of it."""
    served.router.scripts[:] = [said(CALL, tool_format="hermes"), said("Rain."), said("Again.")]
    asked = {"role": "user", "content": "hello"}
    first = await served.create(input=[asked], tools=[WEATHER])
    (call,) = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "1 °C"}
    history = [asked, {"type": "item_reference", "id": call["id"]}, result]
    second = await served.create(input=history, tools=[WEATHER])
    history += [{"type": "item_reference", "id": second["output"][0]["id"]}, asked]
    third = await served.create(input=history)
    listed = (await served.http.get(f"{URL}/{third['id']}/input_items?order=asc")).json()["data"]
    assert listed[1] == call
    assert listed[3] == second["output"][0]
    sent = served.router.calls("Generate")[-1].chat.messages
    assert [message.role for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert [message.content for message in sent] == ["hello", "", "1 °C", "Rain.", "hello"]
    # Nothing of the first response is needed to read what the second one has of it.
    assert (await served.http.delete(f"{URL}/{first['id']}")).json()["deleted"]
    await served.create(input=history)


async def test_few_responses_are_read_for_one_request(served: Served) -> None:
    kept = [await served.create() for _ in range(MAX_READ + 1)]
    references = [{"type": "item_reference", "id": response["output"][0]["id"]} for response in kept]
    await served.create(input=references[1:])
    refused = await served.http.post(URL, json={"input": references})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


async def test_items_of_responses_that_are_not_stored_are_not_found(served: Served) -> None:
    response = await served.create(store=False)
    reference = {"type": "item_reference", "id": response["output"][0]["id"]}
    refused = await served.http.post(URL, json={"input": [reference]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "item_not_found")


async def test_a_plain_text_is_listed_as_parts_of_its_role(served: Served) -> None:
    spoken = [{"role": role, "content": "a"} for role in ("system", "user", "assistant")]
    response = await served.create(input=spoken)
    listed = (await served.http.get(f"{URL}/{response['id']}/input_items?order=asc")).json()["data"]
    assert [item["content"] for item in listed] == [
        [{"type": "input_text", "text": "a"}],
        [{"type": "input_text", "text": "a"}],
        [{"type": "output_text", "text": "a", "annotations": []}],
    ]


async def test_encrypted_reasoning_is_not_kept(served: Served) -> None:
    content = [{"type": "reasoning_text", "text": "hm"}]
    reasoning = {"type": "reasoning", "content": content, "encrypted_content": "secret"}
    response = await served.create(input=[reasoning, {"role": "user", "content": "a"}])
    listed = (await served.http.get(f"{URL}/{response['id']}/input_items?order=asc")).json()["data"]
    assert listed[0] == {"id": listed[0]["id"], "type": "reasoning", "summary": [], "content": content}


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
@pytest.mark.parametrize("headers", [{}, {"idempotency-key": ""}])
async def test_a_caller_who_leaves_cancels(served: Served, stream: bool, headers: dict[str, str]) -> None:
    served.router.scripts[:] = [(accepted(), queued(), HANG)]
    calling = asyncio.create_task(
        served.http.post(URL, json={"input": "x", "stream": stream}, headers=headers)
    )
    asked = await served.router.until_heard("Generate")
    calling.cancel()
    assert (await served.router.until_heard("Cancel")).request_id == asked.request_id


def hanging(event: asyncio.Event) -> Act:
    async def tell() -> None:
        event.set()

    return Act(tell)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_keyed_request_gets_its_response_after_its_connection_broke(
    served: Served, stream: bool
) -> None:
    hangs = asyncio.Event()
    served.router.scripts[:] = [(accepted(), queued(), hanging(hangs)), said("Hi.")]
    key = f"broken-{stream}"
    call = partial(served.http.post, URL, json={"input": "x"}, headers={"idempotency-key": key})
    calling = asyncio.create_task(call(json={"input": "x", "stream": stream}))
    await hangs.wait()
    calling.cancel()
    await served.router.until_heard("Generate let go")
    attached = (await call()).json()
    assert (attached["status"], attached["store"]) == ("completed", True)
    assert (await call()).json() == attached
    assert (await served.http.get(f"{URL}/{attached['id']}")).json() == attached
    assert [asked.request_id for asked in served.router.calls("Generate")] == [key] * 2
    assert served.router.calls("Cancel") == []


async def test_one_that_runs_twice_is_kept_when_the_first_connection_breaks(served: Served) -> None:
    goes_on = asyncio.Event()
    served.router.scripts[:] = [(accepted(), queued(), HANG), (accepted(), Wait(goes_on), *said("Hi.")[1:])]
    call = partial(served.http.post, URL, json={"input": "x"}, headers={"idempotency-key": "twice"})
    first = asyncio.create_task(call())
    await served.router.until_heard("Generate")
    second = asyncio.create_task(call())

    async def both() -> bool:
        return len(served.router.calls("Generate")) == 2

    await until(both, "the second one attaches")
    first.cancel()
    await served.router.until_heard("Generate let go")
    goes_on.set()
    response = (await second).json()
    assert (response["status"], response["store"]) == ("completed", True)
    assert (await served.http.get(f"{URL}/{response['id']}")).json() == response
    assert served.router.calls("Cancel") == []


async def until_gone(served: Served, url: str) -> None:
    async def gone() -> bool:
        return (await served.http.get(url)).status_code == 404

    await until(gone, "the response of a caller who left is gone")


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


async def test_an_id_cannot_be_computed_from_the_key_of_its_request(served: Served) -> None:
    ask: dict[str, Any] = {"json": {"input": "x"}, "headers": {"idempotency-key": "1"}}
    made = (await served.http.post(URL, **ask)).json()
    computed = f"resp_{hashlib.blake2b(b'1', digest_size=16).hexdigest()}"
    assert made["id"] != computed
    assert (await served.http.get(f"{URL}/{computed}")).status_code == 404
    async with running_gateway([served.router.address], "--redis", served.redis.url) as other:
        assert (await other.http.post(URL, **ask)).json() == made


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
        reference = {"type": "item_reference", "id": "msg_1_0"}
        for body in ({"store": True}, {"previous_response_id": "resp_1"}, {"input": [reference]}):
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


NUM_HELD_UP = 100
"""So many that a busy machine needs less time for them than they would wait."""


async def test_a_redis_that_hangs_holds_up_only_the_first(served: Served) -> None:
    served.redis.pause()
    try:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for _ in range(NUM_HELD_UP):
            assert (await served.create())["store"] is False
        assert loop.time() - begun < NUM_HELD_UP / 2, "each alone would wait a second"
        assert (await served.http.post(URL, json={"input": "x", "store": True})).status_code == 503
    finally:
        served.redis.resume()
    await until_stored(served)
