"""A gateway with a scripted router and a real Redis, and what it streams."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from baton.v1 import generation_pb2
from tests.baton.scripted_service import (
    ScriptedRouter,
    accepted,
    ended,
    finished,
    tokens,
)
from tests.gateway.running import Gateway
from tests.redis_server import RedisServer

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
