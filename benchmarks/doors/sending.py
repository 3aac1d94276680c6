"""Send a request by a door of the fleet and record it.

Both doors make the same record. The latencies that a promise is about are the router's own; the times of
tokens and of the end are those of the client, so a gateway's work is in them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass

from baton import AsyncClient, BatonError, Finished, Sampling, Slo, Stop, Tokens
from baton.errors import InvalidRequest, Overloaded
from baton.types import Delivery
from benchmarks.doors.http import HttpError, OpenAIClient
from benchmarks.doors.metrics import RequestRecord

GRPC, OPENAI = DOORS = ("grpc", "openai")
NO_PROMISE = Slo()


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready to send."""

    token_ids: list[int]
    output_tokens: int
    slo: Slo = NO_PROMISE


Send = Callable[[Job], Awaitable[RequestRecord]]
"""Sends a request and records it up to its end; refusals and errors are results too."""


def by_grpc(client: AsyncClient) -> Send:
    """Return what sends requests to routers."""

    async def send(job: Job) -> RequestRecord:
        record = _begun(job)
        stream = client.generate(
            job.token_ids,
            sampling=Sampling(temperature=0.0),
            stop=Stop(max_tokens=job.output_tokens, ignore_eos=True),
            slo=job.slo,
        )
        try:
            async for event in stream:
                if isinstance(event, Tokens):
                    record.token_times += [time.monotonic()] * len(event.token_ids)
                elif isinstance(event, Finished):
                    _close(record, event.delivery)
        except BatonError as error:
            is_unmeetable = isinstance(error, InvalidRequest) and error.field.startswith("slo.")
            _fail(record, error, refused=is_unmeetable or isinstance(error, Overloaded))
        return record

    return send


def by_openai(client: OpenAIClient) -> Send:
    """Return what sends requests to a gateway."""

    async def send(job: Job) -> RequestRecord:
        record = _begun(job)
        body = {
            "prompt": job.token_ids,
            "max_tokens": job.output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
            "slo": {name: value for name, value in asdict(job.slo).items() if value is not None},
        }
        try:
            async with aclosing(client.completion(body)) as chunks:
                async for chunk in chunks:
                    for choice in chunk["choices"]:
                        record.token_times += [time.monotonic()] * len(choice.get("token_ids", ()))
                    if "baton" in chunk:
                        _close(record, Delivery(**chunk["baton"]["delivery"]))
        except HttpError as error:
            is_unmeetable = error.status == 400 and error.param.startswith("slo.")
            _fail(record, error, refused=is_unmeetable or error.status == 429)
        return record

    return send


def _begun(job: Job) -> RequestRecord:
    return RequestRecord(time.monotonic(), len(job.token_ids), job.output_tokens, job.slo)


def _close(record: RequestRecord, delivery: Delivery) -> None:
    record.finished_at = time.monotonic()
    record.ttft_s = delivery.ttft_ms / 1000
    record.tpot_s = delivery.tpot_ms / 1000 if delivery.tpot_ms is not None else None
    record.max_gap_s = delivery.max_gap_ms / 1000
    if len(record.token_times) != record.output_tokens:
        record.error = f"{len(record.token_times)} tokens came instead of {record.output_tokens}"


def _fail(record: RequestRecord, error: Exception, *, refused: bool) -> None:
    """An SLO that no idle fleet could meet is an invalid argument, but also a refusal for latency."""
    if refused:
        record.refused_after_s = time.monotonic() - record.sent_at
    else:
        record.error = f"{type(error).__name__}: {error}"
