"""Writes traces as their publishers do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from sim.workloads.formats.baton import dump
from sim.workloads.trace import TraceRequest

START = datetime(2023, 11, 16, 18, 15, 46, 680590, tzinfo=UTC)


def mooncake(requests: Iterable[TraceRequest]) -> Iterator[str]:
    for request in requests:
        row = {
            "timestamp": round(request.at_s * 1000),
            "input_length": request.prompt_tokens,
            "output_length": request.output_tokens,
            "hash_ids": list(request.shared_blocks),
        }
        yield json.dumps(row) + "\n"


def azure(requests: Iterable[TraceRequest]) -> Iterator[str]:
    """Lines end as in the files of 2023, and times have seven digits behind the point."""
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    for request in requests:
        at = START + timedelta(seconds=request.at_s)
        yield f"{at:%Y-%m-%d %H:%M:%S.%f}0,{request.prompt_tokens},{request.output_tokens}\r\n"


def burstgpt(requests: Iterable[TraceRequest]) -> Iterator[str]:
    yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    for request in requests:
        prompt, output = request.prompt_tokens, request.output_tokens
        yield f"{5 + request.at_s:.3f},ChatGPT,{prompt},{output},{prompt + output},Conversation log\n"


WRITERS: dict[str, Callable[[Iterable[TraceRequest]], Iterator[str]]] = {
    "baton": dump,
    "mooncake": mooncake,
    "azure": azure,
    "burstgpt": burstgpt,
}
