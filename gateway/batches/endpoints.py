"""The routes of files and batches."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from baton.types import Slo, SloClass
from baton.wire.fields import shown
from gateway.batches.files import FORM_BYTES, FileStore, StoredFile, StoreLimits
from gateway.batches.lines import URLS, LineChecker
from gateway.batches.records import Batch, BatchStore
from gateway.batches.upload import checked_expiry, received_form, store_upload
from gateway.openai.shapes import Order, check_limit, list_json
from gateway.serving.bodies import read_body
from gateway.serving.errors import ApiError, Problem, invalid, needs_redis
from gateway.serving.fleet import Fleets
from gateway.serving.shares import Room, Shares
from gateway.serving.slo import Strict
from gateway.serving.streaming import unless_gone
from runtime.state.durable import DurableRedis

MAX_WINDOW_S = 7 * 86400
MAX_METADATA = 16
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Purpose = Literal["", "batch", "batch_output"]
_UNITS = {"s": 1, "m": 60, "h": 3600}


class ExpiresAfter(Strict):
    anchor: str
    seconds: int


class BatchBody(Strict):
    """`POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[MetadataKey, MetadataValue] | None = Field(None, max_length=MAX_METADATA)
    output_expires_after: ExpiresAfter | None = None


@dataclass(frozen=True, slots=True)
class BatchApi:
    """The stores that the routes use, where the gateway has Redis."""

    files: FileStore
    batches: BatchStore
    spool: Shares
    """The disk that arriving files take, by tenant."""
    wake: asyncio.Event
    """Set when a batch has been entered."""

    @classmethod
    def open(cls, redis: DurableRedis, limits: StoreLimits) -> BatchApi:
        spool = Shares(limits.max_spooled_bytes)
        return cls(FileStore(redis, limits), BatchStore(redis, limits), spool, asyncio.Event())


def routes(fleets: Fleets, max_body_bytes: int, found: BatchApi | None) -> APIRouter:
    """Return the routes, which raise `ApiError`, `BatonError` and `StoreUnavailable`."""
    router = APIRouter()

    def api() -> BatchApi:
        if found is None:
            raise needs_redis("files and batches")
        return found

    _add_files(router, fleets, max_body_bytes, api)
    _add_batches(router, fleets, max_body_bytes, api)
    return router


def _add_files(router: APIRouter, fleets: Fleets, max_body_bytes: int, api: Callable[[], BatchApi]) -> None:
    @router.post("/v1/files")
    async def upload(request: Request) -> dict[str, Any]:
        files, tenant = api().files, await fleets.proven_tenant()
        await fleets.ask()
        checker = LineChecker(lambda name: fleets.known_model(name).facts, max_body_bytes)
        max_bytes = await files.room(tenant) + FORM_BYTES
        async with received_form(request, max_bytes, Room(api().spool, tenant)) as form:
            stored = await unless_gone(request, store_upload(form, tenant, files, checker))
        return stored.to_json()

    @router.get("/v1/files")
    async def list_files(
        after: str = "", limit: int = 1000, order: Order = "desc", purpose: Purpose = ""
    ) -> dict[str, Any]:
        check_limit(limit, 10_000)
        tenant = await fleets.proven_tenant()
        return _page(*await api().files.page(tenant, purpose, after, limit, newest_first=order == "desc"))

    @router.get("/v1/files/{file_id}")
    async def one_file(file_id: str) -> dict[str, Any]:
        return (await api().files.find(file_id, await fleets.proven_tenant())).to_json()

    @router.get("/v1/files/{file_id}/content")
    async def content(file_id: str) -> Response:
        file = await api().files.find(file_id, await fleets.proven_tenant())
        headers = {"content-length": str(file.bytes)}
        pieces = api().files.content(file_id)
        return StreamingResponse(pieces, headers=headers, media_type="application/jsonl")

    @router.delete("/v1/files/{file_id}")
    async def delete(file_id: str) -> dict[str, Any]:
        tenant = await fleets.proven_tenant()
        file = await api().files.find(file_id, tenant)
        await api().files.delete(file_id, tenant, file.purpose)
        return {"id": file_id, "object": "file", "deleted": True}


def _add_batches(router: APIRouter, fleets: Fleets, max_body_bytes: int, api: Callable[[], BatchApi]) -> None:
    @router.post("/v1/batches")
    async def create(request: Request) -> dict[str, Any]:
        body = await read_body(request, BatchBody, max_body_bytes)
        tenant = await fleets.proven_tenant()
        if tenant and not fleets.has_own_key:
            message = "batches run by the gateway's own key; this one was started without --api-key-file"
            raise ApiError(Problem(501, "api_error", message, code="unsupported"))
        file = await api().files.find(body.input_file_id, tenant, "input_file_id")
        window_s = _window_s(body.completion_window)
        problems = _problems(body, file)
        ttl_s = api().files.limits.file_ttl_s
        if body.output_expires_after is not None:
            asked = body.output_expires_after
            ttl_s = checked_expiry("output_expires_after", asked.anchor, asked.seconds)
        # The caller's own credential must allow the class in which the lines will run.
        for fleet in {(await fleets.model(name)).fleet for name in file.models}:
            await fleet.sdk.quote("x", slo=Slo(slo_class=SloClass.BATCH))
        about = body.model_dump(include={"endpoint", "input_file_id", "completion_window", "metadata"})
        batch = await api().batches.create(tenant, file, about, window_s, ttl_s, problems)
        api().wake.set()
        return batch.to_json()

    @router.get("/v1/batches")
    async def list_batches(after: str = "", limit: int = 20) -> dict[str, Any]:
        check_limit(limit, 100)
        return _page(*await api().batches.page(await fleets.proven_tenant(), after, limit))

    @router.get("/v1/batches/{batch_id}")
    async def one_batch(batch_id: str) -> dict[str, Any]:
        return (await api().batches.find(batch_id, await fleets.proven_tenant())).to_json()

    @router.post("/v1/batches/{batch_id}/cancel")
    async def cancel(batch_id: str) -> dict[str, Any]:
        tenant = await fleets.proven_tenant()
        batch = await api().batches.find(batch_id, tenant)
        if not await api().batches.cancel(batch_id):
            message = f"batch {batch_id!r} is {batch.status.value}; accepted: one that has not ended"
            raise invalid("batch_id", message, status=409, code="conflict")
        return (await api().batches.find(batch_id, tenant)).to_json()


def _window_s(text: str) -> int:
    match = re.fullmatch(r"(\d{1,6})([smh])", text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= MAX_WINDOW_S:
        accepted = "'24h', or another time in h, m or s, at most 168h"
        raise invalid("completion_window", f"completion_window is {shown(text)}; accepted: {accepted}")
    return seconds


def _problems(body: BatchBody, file: StoredFile) -> list[dict[str, Any]]:
    """Return why the batch fails at once; raises `ApiError` for an endpoint that is not served."""
    if body.endpoint not in URLS:
        raise invalid("endpoint", f"endpoint is {shown(body.endpoint)}; accepted: {', '.join(URLS)}")
    if file.purpose != "batch":
        message = f"input_file_id has the purpose {file.purpose!r}; accepted: 'batch'"
        raise invalid("input_file_id", message)
    return [
        {
            "code": "mismatched_url",
            "line": line,
            "message": f"url is {shown(url)}; accepted: {body.endpoint!r}, the endpoint of the batch",
            "param": "url",
        }
        for url, line in file.urls.items()
        if url != body.endpoint
    ]


def _page(rows: list[Batch] | list[StoredFile], has_more: bool) -> dict[str, Any]:
    return list_json([row.to_json() for row in rows], has_more=has_more)
