"""The routes of OpenAI's API, and vLLM's `/tokenize` and `/detokenize`."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from baton import Chat
from gateway.openai.convert import chat_generation, completion_generations, param_of
from gateway.openai.models import detokenize, model_json, prompt_of, tokenize
from gateway.openai.responses import Echo, Writer
from gateway.openai.schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from gateway.openai.shapes import ChatShape, Shape, TextShape
from gateway.serving.bodies import converted, read_body
from gateway.serving.errors import invalid
from gateway.serving.fleet import FleetClient, Vocabulary
from gateway.serving.generations import Generation, begin_all, complete_all
from gateway.serving.slo import promise_headers
from gateway.serving.streaming import EventStream, unless_gone


def routes(fleet: FleetClient, max_body_bytes: int) -> APIRouter:
    """Return the routes, which raise `ApiError` and `BatonError`."""
    router = APIRouter()
    started = int(time.time())

    @router.api_route("/v1/models", methods=["GET", "HEAD"])
    async def list_models() -> dict[str, Any]:
        served = await fleet.told_models()
        return {"object": "list", "data": [model_json(model, started) for model in served.values()]}

    @router.api_route("/v1/models/{name:path}", methods=["GET", "HEAD"])
    async def one_model(name: str) -> dict[str, Any]:
        return model_json(await fleet.told_model(name), started)

    @router.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await read_body(request, ChatBody, max_body_bytes)
        model = await fleet.model(body.model)
        most_tokens = model.facts.max_context_tokens
        generation = await converted(request, chat_generation, body, request.headers, most_tokens)
        generation = replace(generation, model=model)
        shape = ChatShape(generation)
        return await _generate(request, body, [generation], model.name, shape, logprobs=bool(body.logprobs))

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody, max_body_bytes)
        model = await fleet.model(body.model)
        asked = await converted(request, completion_generations, body, request.headers)
        generations = [replace(generation, model=model) for generation in asked]
        return await _generate(
            request,
            body,
            generations,
            model.name,
            TextShape(),
            logprobs=body.logprobs is not None,
            echo=bool(body.echo),
        )

    @router.post("/v1/embeddings")
    async def embeddings(_: Request) -> Response:
        model = await fleet.told_model()
        message = (
            f"{model.name!r} generates text and has no embeddings; accepted: a server of an embedding model"
        )
        raise invalid("model", message, code="no_embeddings")

    @router.post("/tokenize")
    async def tokens_of(request: Request) -> dict[str, Any]:
        body = await read_body(request, TokenizeBody, max_body_bytes)
        return await tokenize(body, await converted(request, prompt_of, body), fleet)

    @router.post("/detokenize")
    async def text_of(request: Request) -> dict[str, Any]:
        return await detokenize(await read_body(request, DetokenizeBody, max_body_bytes), fleet)

    async def _generate(
        request: Request,
        body: ChatBody | CompletionBody,
        generations: list[Generation],
        model: str,
        shape: Shape,
        *,
        logprobs: bool,
        echo: bool = False,
    ) -> Response:
        request.state.param_of = partial(param_of, body=body)
        vocabulary: Vocabulary = await fleet.vocabulary() if logprobs else ()
        needs_prompts = echo or body.return_token_ids
        prompts = [await _tokens(fleet, generation) for generation in generations] if needs_prompts else []
        told = prompts if body.return_token_ids else ()
        writer = Writer(body, shape, model, int(time.time()), vocabulary, logprobs, told)
        asked = zip(generations, prompts, strict=True) if echo else ()
        echoes = [await _echo(fleet, generation, token_ids, body) for generation, token_ids in asked]
        if body.stream:
            runnings = await unless_gone(request, begin_all(fleet, generations))
            return EventStream(
                partial(writer.chunks, runnings, echoes), promise_headers(runnings[0].accepted)
            )
        completions = await unless_gone(request, complete_all(fleet, generations))
        headers = {"x-request-id": completions[0].request_id}
        return JSONResponse(writer.whole(completions, echoes), headers=headers)

    return router


async def _tokens(fleet: FleetClient, generation: Generation) -> tuple[int, ...]:
    """Return the tokens of a generation's prompt, whose beginning may be left out."""
    prompt, most = generation.prompt, generation.truncate_prompt_tokens
    if isinstance(prompt, str | Chat):
        token_ids = await fleet.sdk.count_tokens(prompt)
    else:
        token_ids = tuple(int(str(token_id)) for token_id in prompt)
    return token_ids if most is None else token_ids[-most:]


async def _echo(
    fleet: FleetClient, generation: Generation, token_ids: tuple[int, ...], body: ChatBody | CompletionBody
) -> Echo:
    prompt, alone = generation.prompt, isinstance(body, CompletionBody) and body.max_tokens == 0
    if isinstance(prompt, str) and generation.truncate_prompt_tokens is None:
        return Echo(prompt, token_ids, alone)
    return Echo(await fleet.sdk.detokenize(token_ids, skip_special_tokens=False), token_ids, alone)
