"""The decision on an HTTP request: a gateway, or the response that its caller gets instead.

A quote finds out what the fleet would refuse, before a gateway is bothered with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import structlog

from baton.errors import BatonError, Refused
from baton.types import Quote, Slo, Verdict
from gateway.anthropic.convert import chat_of as anthropic_chat
from gateway.anthropic.convert import generation_of as message_generation
from gateway.anthropic.schema import MessagesBody
from gateway.openai.convert import chat_generation, completion_generations
from gateway.openai.schema import ChatBody, CompletionBody
from gateway.responses.convert import generation_of as response_generation
from gateway.responses.items import read_items
from gateway.responses.schema import ResponsesBody
from gateway.serving.bodies import away_from_loop, parsed
from gateway.serving.door import key_of
from gateway.serving.errors import ApiError, Problem, problem_of, unavailable
from gateway.serving.fleet import Fleets, caller_key
from gateway.serving.generations import ID_HEADER, Generation
from gateway.serving.slo import HEADERS

NO_GATEWAY = unavailable("no gateway of this fleet serves; come back").problem
QUOTE_S = 1.0
"""A quote that takes longer is not waited for: the gateway finds out."""
_Body = ChatBody | CompletionBody | MessagesBody | ResponsesBody
_BODIES: dict[str, type[_Body]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/messages": MessagesBody,
    "/v1/responses": ResponsesBody,
}


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an HTTP request. Names of headers are in lower case."""

    method: str
    path: str
    """Without the query."""
    headers: Mapping[str, str]
    subset: AbstractSet[str] | None
    """The gateways that the proxy allows; None: all."""
    is_whole: bool
    """No body follows."""


Decision = str | Problem
"""The gateway that serves a request, as IP:PORT, or the response that the caller gets instead."""


async def refusal(fleets: Fleets, head: Head, body: bytes) -> Problem | None:
    """Return the refusal that this request would get; None if it would get none, or nothing can be said.

    Only a request that states an SLO is quoted, since no other one is refused for its latency. One with an
    Idempotency-Key may attach to a generation that runs. All else that can be wrong is the gateway's to say.
    """
    kind = _BODIES.get(head.path)
    if kind is None or head.method != "POST" or ID_HEADER in head.headers:
        return None
    if b'"slo"' not in body and not HEADERS.keys() & head.headers.keys():
        return None
    try:
        caller_key.set(key_of(head.headers.get("authorization", ""), head.headers.get("x-api-key", "")))
        async with asyncio.timeout(QUOTE_S):
            asked_for = await away_from_loop(len(body), parsed, kind, body)
            model = await fleets.model(asked_for.model)
            read = _generations(asked_for, head.headers, model.facts.max_context_tokens)
            asked = [replace(generation, model=model) for generation in read if _promises(generation.slo)]
            quotes = await asyncio.gather(*(generation.quote(model.fleet) for generation in asked))
    except (ApiError, BatonError, TimeoutError) as error:
        structlog.get_logger().debug("not_quoted", path=head.path, reason=str(error) or type(error).__name__)
        return None
    refused = [quote for quote in quotes if quote.verdict is Verdict.REFUSED]
    return _problem(refused[0]) if refused else None


def _promises(slo: Slo) -> bool:
    return any(limit is not None for limit in (slo.ttft_ms, slo.tpot_ms, slo.itl_ms))


def _problem(quote: Quote) -> Problem:
    attainable, retry_after_s = quote.attainable, quote.retry_after_s
    assert attainable is not None
    assert retry_after_s is not None
    message = (
        f"the SLO cannot be met now: ttft_ms of {attainable.ttft_ms}, tpot_ms of {attainable.tpot_ms} and "
        f"itl_ms of {attainable.itl_ms} could be promised; come back in {retry_after_s:.1f} s"
    )
    return problem_of(Refused(message, retry_after_s, attainable), str)


def _generations(body: _Body, headers: Mapping[str, str], context_tokens: int) -> list[Generation]:
    match body:
        case ChatBody():
            return [chat_generation(body, headers, context_tokens)]
        case CompletionBody():
            return completion_generations(body, headers)
        case MessagesBody():
            return [message_generation(body, anthropic_chat(body), headers)]
        case ResponsesBody(previous_response_id=None):
            return [response_generation(body, read_items(body.input, ""), 0, headers, "", context_tokens)]
        case _:  # only a gateway has the conversation
            return []
