"""The requests of a batch's file, one on each line, checked when the file arrives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from baton.errors import NotFound
from baton.types import Model
from baton.wire.fields import shown
from gateway.openai.convert import chat_generation, completion_generations
from gateway.openai.schema import ChatBody, CompletionBody, SamplingFields
from gateway.responses.convert import check as check_response
from gateway.responses.convert import generation_of as response_generation
from gateway.responses.items import read_items
from gateway.responses.schema import ResponsesBody
from gateway.serving.bodies import lying_in, parsed, read_part
from gateway.serving.errors import ApiError, invalid
from gateway.serving.slo import Strict

MAX_LINES = 50_000
"""OpenAI's limit."""


class _Line(Strict):
    """A line, whose url says of which kind its body is."""

    custom_id: str = Field(min_length=1, max_length=512)
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


def _check_response(body: ResponsesBody, model: Model) -> None:
    """Raise `ApiError`. Items that continue another response are checked by themselves."""
    check_response(body)
    items = read_items(body.input, "")
    known = items if body.previous_response_id is None else ()
    response_generation(body, known, 0, {}, "", model.max_context_tokens)


_KINDS: dict[str, tuple[type[SamplingFields], Callable[[Any, Model], object]]] = {
    "/v1/chat/completions": (
        ChatBody,
        lambda body, model: chat_generation(body, {}, model.max_context_tokens),
    ),
    "/v1/completions": (CompletionBody, lambda body, _: completion_generations(body, {})),
    "/v1/responses": (ResponsesBody, _check_response),
}
"""By endpoint, the kind of its bodies, and what else is checked of one."""
URLS = tuple(_KINDS)
"""The endpoints that a batch may call."""


class LineChecker:
    """Checks the lines of one file, in order, and counts them.

    `find` returns the model of a name, or raises `NotFound`.
    """

    def __init__(self, find: Callable[[str], Model], max_line_bytes: int) -> None:
        self._find = find
        self.max_line_bytes = max_line_bytes
        self._custom_ids: set[bytes] = set()
        self.num_lines = 0
        self.urls: dict[str, int] = {}
        """The first line of each endpoint."""
        self.models: set[str] = set()

    def check(self, data: bytes) -> None:
        """Check the next line. Raises `ApiError` with the line's number, from 1, and the field's path."""
        self.num_lines += 1
        try:
            self._check(data)
        except ApiError as error:
            found = error.problem
            problem = replace(found, message=f"line {self.num_lines}: {found.message}")
            raise ApiError(problem) from None

    def _check(self, data: bytes) -> None:
        if self.num_lines > MAX_LINES:
            raise invalid("file", f"there are more lines; accepted: at most {MAX_LINES}", code="too_large")
        if len(data) > self.max_line_bytes:
            message = f"the line has {len(data)} bytes or more; accepted: at most {self.max_line_bytes}"
            raise invalid("", message, code="too_large")
        line = parsed(_Line, data)
        if line.url not in _KINDS:
            raise invalid("url", f"url is {shown(line.url)}; accepted: {', '.join(URLS)}", code="invalid_url")
        kind, check = _KINDS[line.url]
        body = read_part(kind, line.body, "body")
        digest = hashlib.blake2b(line.custom_id.encode(), digest_size=16).digest()
        if digest in self._custom_ids:
            message = f"custom_id is {shown(line.custom_id)} again; accepted: a different one on each line"
            raise invalid("custom_id", message, code="duplicate_custom_id")
        self._custom_ids.add(digest)
        self._check_body(body, check)
        self.urls.setdefault(line.url, self.num_lines)

    def _check_body(self, body: SamplingFields, check: Callable[[Any, Model], object]) -> None:
        if body.stream:
            raise invalid("body.stream", "body.stream is true; accepted: false, in a batch")
        if body.slo is not None:
            raise invalid("body.slo", "body.slo is set; accepted: unset, as batches run in the class batch")
        if body.program is not None:
            raise invalid("body.program", "body.program is set; accepted: unset, as batches have no deadline")
        try:
            facts = self._find(body.model)
        except NotFound as error:
            raise invalid("body.model", f"body.{error}", code="model_not_found") from None
        self.models.add(body.model)
        try:
            with lying_in("body"):
                check(body, facts)
        except ApiError as error:
            found = error.problem
            raise invalid(f"body.{found.param}", f"body.{found.message}", code=found.code) from None
