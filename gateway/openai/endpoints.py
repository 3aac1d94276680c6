"""The routes of OpenAI's API, and vLLM's `/tokenize` and `/detokenize`."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from baton import Chat
from baton.types import SAMPLING_DEFAULTS
from gateway.openai.convert import chat_generation, completion_generations, param_of, prompt_of
from gateway.openai.responses import Echo, Writer
from gateway.openai.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from gateway.openai.shapes import ChatShape, Shape, TextShape
from gateway.serving.bodies import converted, read_body
from gateway.serving.errors import invalid
from gateway.serving.fleet import FleetClient, Fleets, ServedModel, Vocabulary
from gateway.serving.generations import Generation, begin_all, complete_all
from gateway.serving.slo import promise_headers
from gateway.serving.streaming import EventStream, unless_gone

_Body = ChatBody | CompletionBody


def routes(fleets: Fleets, max_body_bytes: int) -> APIRouter:
    """Return the routes, which raise `ApiError` and `BatonError`."""
    router = APIRouter()
    started = int(time.time())

    @router.api_route("/v1/models", methods=["GET", "HEAD"])
    async def list_models() -> dict[str, Any]:
        served = await fleets.told_models()
        return {"object": "list", "data": [_model_json(model, started) for model in served.values()]}

    @router.api_route("/v1/models/{name:path}", methods=["GET", "HEAD"])
    async def one_model(name: str) -> dict[str, Any]:
        return _model_json(await fleets.told_model(name), started)

    @router.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await read_body(request, ChatBody, max_body_bytes)
        model = await fleets.model(body.model)
        most_tokens = model.facts.max_context_tokens
        generation = await converted(request, chat_generation, body, request.headers, most_tokens)
        return await _generate(request, body, [generation], model)

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody, max_body_bytes)
        model = await fleets.model(body.model)
        generations = await converted(request, completion_generations, body, request.headers)
        return await _generate(request, body, generations, model)

    @router.post("/v1/embeddings")
    async def embeddings(_: Request) -> Response:
        accepted, name = "a server of an embedding model", next(iter(await fleets.told_models()))
        message = f"{name!r} generates text and has no embeddings; accepted: {accepted}"
        raise invalid("model", message, code="no_embeddings")

    @router.post("/tokenize")
    async def tokens_of(request: Request) -> dict[str, Any]:
        """Return the tokens of a text or a chat, in vLLM's shape."""
        body = await read_body(request, TokenizeBody, max_body_bytes)
        prompt = await converted(request, prompt_of, body)
        model = await fleets.model(body.model)
        tokens = await model.fleet.sdk.count_tokens(prompt)
        return {"count": len(tokens), "max_model_len": model.facts.max_context_tokens, "tokens": list(tokens)}

    @router.post("/detokenize")
    async def text_of(request: Request) -> dict[str, Any]:
        """Return the text of tokens, in vLLM's shape."""
        body = await read_body(request, DetokenizeBody, max_body_bytes)
        sdk = (await fleets.model(body.model)).fleet.sdk
        return {"prompt": await sdk.detokenize(body.tokens, skip_special_tokens=False)}

    return router


async def _generate(request: Request, body: _Body, asked: list[Generation], model: ServedModel) -> Response:
    """Return the response to a chat or to completions, whole or as a stream."""
    request.state.param_of = partial(param_of, body=body)
    generations, fleet = [replace(generation, model=model) for generation in asked], model.fleet
    if isinstance(body, CompletionBody):
        shape: Shape = TextShape()
        logprobs, echo = body.logprobs is not None, bool(body.echo)
    else:
        shape = ChatShape(generations[0])
        logprobs, echo = bool(body.logprobs), False
    vocabulary: Vocabulary = await fleet.vocabulary(model.facts.vocab_size) if logprobs else ()
    needs_prompts = echo or body.return_token_ids
    prompts = [await _tokens(fleet, generation) for generation in generations] if needs_prompts else []
    told = prompts if body.return_token_ids else ()
    writer = Writer(body, shape, model.name, int(time.time()), vocabulary, logprobs, told)
    echoed = zip(generations, prompts, strict=True) if echo else ()
    echoes = [await _echo(fleet, generation, token_ids, body) for generation, token_ids in echoed]
    if body.stream:
        runnings = await unless_gone(request, begin_all(fleet, generations))
        chunks = partial(writer.chunks, runnings, echoes)
        return EventStream(chunks, promise_headers(runnings[0].accepted))
    completions = await unless_gone(request, complete_all(fleet, generations))
    headers = {"x-request-id": completions[0].request_id}
    return JSONResponse(writer.whole(completions, echoes), headers=headers)


def _model_json(served: ServedModel, created: int) -> dict[str, Any]:
    model = served.facts
    sampling = model.default_sampling
    stated = {name: getattr(sampling, name) for name in SAMPLING_DEFAULTS}
    defaults = {name: value for name, value in stated.items() if value is not None}
    alike: dict[str, Any] = {} if served.name == model.name else {"root": model.name}
    if served.adapter:
        alike["parent"] = model.name
    return {
        "id": served.name,
        "object": "model",
        "created": created,
        "owned_by": "baton",
        "max_model_len": model.max_context_tokens,
        "architecture": model.architecture,
        "fingerprint": model.fingerprint,
        "tool_format": model.tool_format,
        "reasoning_format": model.reasoning_format,
        "default_sampling_params": defaults,
    } | alike


async def _tokens(fleet: FleetClient, generation: Generation) -> tuple[int, ...]:
    """Return the tokens of a generation's prompt, whose beginning may be left out."""
    prompt, most = generation.prompt, generation.truncate_prompt_tokens
    if isinstance(prompt, str | Chat):
        token_ids = await fleet.sdk.count_tokens(prompt)
    else:
        token_ids = tuple(int(str(token_id)) for token_id in prompt)
    return token_ids if most is None else token_ids[-most:]


async def _echo(fleet: FleetClient, generation: Generation, token_ids: tuple[int, ...], body: _Body) -> Echo:
    prompt, alone = generation.prompt, isinstance(body, CompletionBody) and body.max_tokens == 0
    if isinstance(prompt, str) and generation.truncate_prompt_tokens is None:
        return Echo(prompt, token_ids, alone)
    return Echo(await fleet.sdk.detokenize(token_ids, skip_special_tokens=False), token_ids, alone)
