"""Batches as OpenAI's client sends them."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterable
from typing import Any

from tests.patience import PATIENCE_S

CHATS = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "How do I read a file?"}], "max_tokens": 4}


def line(custom_id: str, url: str = CHATS, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": HELLO | {"temperature": 0} | body}


def jsonl(lines: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in lines)


async def upload(client: Any, lines: Iterable[dict[str, Any]]) -> Any:
    return await client.files.create(file=("in.jsonl", io.BytesIO(jsonl(lines))), purpose="batch")


async def start(client: Any, lines: Iterable[dict[str, Any]], **more: Any) -> Any:
    file = await upload(client, lines)
    return await client.batches.create(
        input_file_id=file.id, **{"endpoint": CHATS, "completion_window": "24h"} | more
    )


async def ended(client: Any, batch: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while (batch := await client.batches.retrieve(batch.id)).status not in {
            "completed",
            "failed",
            "expired",
            "cancelled",
        }:
            await asyncio.sleep(0.05)
    return batch


async def results(client: Any, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    text = (await client.files.content(file_id)).text
    return [json.loads(row) for row in text.splitlines()]
