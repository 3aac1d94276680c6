"""Calls of a gateway under test: a whole response, and the events of a stream."""

from __future__ import annotations

import json
from typing import Any

import httpx


async def post(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def events(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the data of a stream's events, without its marks of the end."""
    async with http.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        return data_of([line async for line in response.aiter_lines()])


def data_of(lines: list[str]) -> list[dict[str, Any]]:
    """Return the data of events by the lines of their stream."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]
