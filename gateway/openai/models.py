"""Models, tokenize and detokenize."""

from __future__ import annotations

from typing import Any

from baton.types import SAMPLING_DEFAULTS
from baton.types.chat import Prompt
from gateway.openai.convert import chat_of
from gateway.openai.schema import DetokenizeBody, TokenizeBody
from gateway.serving.errors import invalid
from gateway.serving.fleet import FleetClient, ServedModel


def model_json(served: ServedModel, created: int) -> dict[str, Any]:
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


def prompt_of(body: TokenizeBody) -> Prompt:
    """Return the text or chat whose tokens are asked for. Raises `ApiError`."""
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt", "prompt and messages are both set or both missing; accepted: one of them")
    has_special = body.prompt is not None
    if body.add_special_tokens not in {None, has_special}:
        name, accepted = "add_special_tokens", "true for a prompt, and false for messages"
        raise invalid(name, f"{name} is {str(body.add_special_tokens).lower()}; accepted: {accepted}")
    return body.prompt if body.prompt is not None else chat_of(body)


async def tokenize(body: TokenizeBody, prompt: Prompt, fleet: FleetClient) -> dict[str, Any]:
    """Return the tokens of a text or a chat, in vLLM's shape."""
    model = await fleet.model(body.model)
    tokens = await fleet.sdk.count_tokens(prompt)
    return {"count": len(tokens), "max_model_len": model.facts.max_context_tokens, "tokens": list(tokens)}


async def detokenize(body: DetokenizeBody, fleet: FleetClient) -> dict[str, Any]:
    """Return the text of tokens, in vLLM's shape."""
    await fleet.model(body.model)
    return {"prompt": await fleet.sdk.detokenize(body.tokens, skip_special_tokens=False)}
