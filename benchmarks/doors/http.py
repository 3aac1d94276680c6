"""A client of a gateway that sees each chunk of a stream as it comes."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from baton import Credentials
from baton.security.credentials import UNENCRYPTED

CONNECT_S = 10.0
SILENCE_S = 60.0
"""Gateways send a comment every ten seconds while they have nothing to say."""


class HttpError(Exception):
    """An error of a gateway, or of the connection to it: then the status is 0."""

    def __init__(self, status: int, message: str, code: str = "", param: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class OpenAIClient:
    """Streams completions of a gateway, chunk by chunk as they come."""

    def __init__(self, url: str, credentials: Credentials = UNENCRYPTED) -> None:
        self._credentials = credentials
        self._http = httpx.AsyncClient(
            base_url=url,
            verify=ssl.create_default_context(cafile=credentials.ca) if credentials.ca else False,
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def completion(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield the chunks of a completion. Raises `HttpError`, also for a stream that is cut."""
        all_headers = {**dict(self._credentials.metadata()), **(headers or {})}
        request = self._http.stream(
            "POST", "/v1/completions", json={**body, "stream": True}, headers=all_headers
        )
        try:
            async with request as response:
                if response.status_code != httpx.codes.OK:
                    raise _error(response.status_code, json.loads(await response.aread()))
                async for line in response.aiter_lines():
                    data = line.removeprefix("data: ")
                    if data == "[DONE]":
                        return
                    if not line.startswith("data: "):
                        continue
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise _error(response.status_code, chunk)
                    yield chunk
        except httpx.HTTPError as error:
            raise HttpError(0, f"{type(error).__name__}: {error}") from error
        raise HttpError(0, "the stream ended without [DONE]")


def _error(status: int, body: Any) -> HttpError:
    """Return the error of a response; servers of others may write it in another shape."""
    error = body.get("error")
    if not isinstance(error, dict):
        return HttpError(status, json.dumps(body))
    return HttpError(status, error["message"], error.get("code") or "", error.get("param") or "")
