"""The Python SDK plays the vectors."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from baton import (
    AsyncClient,
    Chat,
    ChatMessage,
    Grammar,
    JsonObject,
    JsonSchema,
    NamedTool,
    OneOf,
    Program,
    Regex,
    Sampling,
    Slo,
    SloClass,
    Stop,
    Timeout,
    Tool,
    ToolCall,
    ToolMode,
    message_of,
)
from baton.errors import BatonError
from baton.types.chat import Prompt
from baton.types.deltas import Delta
from tests.vectors.playing import Seen, Vector, play, vectors

_FORMATS: dict[str, Callable[[Any], Any]] = {
    "json_schema": JsonSchema,
    "json_object": lambda _: JsonObject(),
    "regex": Regex,
    "grammar": Grammar,
    "one_of": OneOf,
}


@pytest.mark.parametrize("multiplex", [False, True], ids=["alone", "multiplexed"])
@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector["name"])
async def test_a_vector(vector: Vector, *, multiplex: bool) -> None:
    await play(vector, partial(observe, multiplex))


async def observe(multiplex: bool, vector: Vector, addresses: Sequence[str], saw: Seen) -> Any:
    call = dict(vector["call"])
    method, stops = (
        call.pop("method"),
        {name: call.pop(name, None) for name in ("abort_after", "leave_after")},
    )
    outcome: dict[str, Any] = {"aborted": False}
    try:
        async with AsyncClient(addresses, multiplex=multiplex, **_client_options(vector)) as client:
            arguments = _arguments(call)
            if method in {"generate", "parsed"}:
                is_parsed = method == "parsed"
                task = asyncio.create_task(
                    _iterate(client, arguments, outcome, saw, is_parsed=is_parsed, **stops)
                )
                outcome["task"] = task
                await task
            elif method == "message_of":
                outcome["result"] = _plain(await _message_of(client, **arguments))
            else:
                outcome["result"] = _plain(await getattr(client, method)(**arguments))
    except asyncio.CancelledError:
        outcome["aborted"] = True
    except (BatonError, ValueError) as error:
        outcome["error"] = _plain_error(error)
    outcome.pop("task", None)
    return outcome


async def _iterate(
    client: AsyncClient,
    arguments: Mapping[str, Any],
    outcome: dict[str, Any],
    saw: Seen,
    *,
    is_parsed: bool,
    abort_after: int | None,
    leave_after: int | None,
) -> None:
    events: list[Any] = []
    outcome["events"] = events
    async with client.generate(**arguments) as stream:
        async for event in stream.parsed() if is_parsed else stream:
            outcome |= {"resumes": stream.resumes, "retries": stream.retries}
            events.append(_plain(event) | {"type": _snake(type(event).__name__)})
            saw()
            if len(events) == abort_after:
                outcome["task"].cancel()
            if len(events) == leave_after:
                break


async def _message_of(client: AsyncClient, *, prompt: Chat, choice: int = 0, **others: Any) -> ChatMessage:
    completion = await client.complete(prompt, **others)
    return message_of(completion, choice)


def _client_options(vector: Vector) -> dict[str, Any]:
    given = {name: value for name, value in vector.get("client", {}).items() if name != "addresses"}
    return {**given, "timeout": Timeout(**given.get("timeout", {}))}


def _arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = dict(call)
    if "prompt" in arguments:
        prompt = arguments["prompt"]
        arguments["prompt"] = prompt * arguments.pop("times") if "times" in arguments else _prompt(prompt)
    kinds: dict[str, Callable[[Any], Any]] = {
        "sampling": _sampling,
        "stop": lambda given: Stop(**given),
        "slo": _slo,
        "program": lambda given: Program(**given),
        "timeout": lambda given: Timeout(**given),
        "output_format": lambda given: next(_FORMATS[name](value) for name, value in given.items()),
    }
    return {name: kinds.get(name, lambda given: given)(given) for name, given in arguments.items()}


def _prompt(given: Any) -> Prompt:
    if isinstance(given, dict):
        choice = given.get("tool_choice")
        tools = [Tool(**tool) for tool in given.get("tools", ())]
        messages = [_message(message) for message in given["messages"]]
        return Chat(**{**given, "messages": messages, "tools": tools, "tool_choice": _tool_choice(choice)})
    if isinstance(given, list) and given and isinstance(given[0], dict):
        return [_message(message) for message in given]
    return given  # text or token ids, or what is wrong on purpose


def _message(given: Mapping[str, Any]) -> ChatMessage:
    calls = [ToolCall(**call) for call in given.get("tool_calls", ())]
    return ChatMessage(**{**given, "tool_calls": calls})


def _tool_choice(given: Any) -> Any:
    if isinstance(given, dict):
        return NamedTool(**given)
    return ToolMode(given) if given in set(ToolMode) else given


def _sampling(given: Mapping[str, Any]) -> Sampling:
    bias = {int(token): value for token, value in given.get("logit_bias", {}).items()}
    return Sampling(**{**given, "logit_bias": bias})


def _slo(given: Mapping[str, Any]) -> Slo:
    named = given.get("slo_class", "standard")
    return Slo(**{**given, "slo_class": SloClass(named) if named in set(SloClass) else named})


def _plain(value: Any) -> Any:
    """Return a value of the SDK as JSON: seeds as text, bytes as hexadecimal digits."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        texts = ["text"] if hasattr(value, "text") and "text" not in names else []
        plain = {name: _plain(getattr(value, name)) for name in [*names, *texts]}
        if isinstance(value, Delta):
            plain["type"] = _snake(type(value).__name__)
        return plain | ({"seed": str(plain["seed"])} if "seed" in plain else {})
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, enum.Enum):
        return value.value
    return [_plain(part) for part in value] if isinstance(value, tuple | list) else value


def _plain_error(error: Exception) -> dict[str, Any]:
    fields = {name: _plain(value) for name, value in vars(error).items()}
    types = [kind.__name__ for kind in type(error).__mro__]
    return {"reason": getattr(error, "reason", ""), **fields, "types": types, "message": str(error)}


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
