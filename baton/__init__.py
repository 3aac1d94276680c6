"""The SDK of a Baton fleet: `AsyncClient`, its blocking form `Client`, and the types that they use.

In reading order:

- `client`, `async_client`: the clients; `types`, `errors`: what they take, return and raise.
- `stream`, `progress`, `routers`: how one generation survives routers; `parsing`: what its texts say.
- `wire`: the contract on gRPC; `security`: credentials and certificates.
- `fleet`: starts a whole fleet on this machine; `cli`: the command line.
- `v1`, `worker`, `operators`, `picker`: stubs generated from `proto/`.

Never imports torch. Only `fleet` and `cli` know that the services' code exists.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton.async_client import AsyncClient
    from baton.client import Client
    from baton.errors import BatonError
    from baton.parsing import ChoiceDelta, message_of
    from baton.security.credentials import Credentials
    from baton.types import (
        Accepted,
        ChoiceFinished,
        Completion,
        Finished,
        FinishReason,
        Grammar,
        JsonObject,
        JsonSchema,
        OneOf,
        Program,
        PromptLogprobs,
        Queued,
        Regex,
        Sampling,
        Slo,
        SloClass,
        Stop,
        Timeout,
        Tokens,
    )
    from baton.types.chat import Chat, ChatMessage, NamedTool, Tool, ToolCall, ToolMode
    from baton.types.deltas import (
        ContentDelta,
        ReasoningDelta,
        ToolCallArguments,
        ToolCallBegun,
        ToolCallEnded,
    )

__all__ = [
    "Accepted",
    "AsyncClient",
    "BatonError",
    "Chat",
    "ChatMessage",
    "ChoiceDelta",
    "ChoiceFinished",
    "Client",
    "Completion",
    "ContentDelta",
    "Credentials",
    "FinishReason",
    "Finished",
    "Grammar",
    "JsonObject",
    "JsonSchema",
    "NamedTool",
    "OneOf",
    "Program",
    "PromptLogprobs",
    "Queued",
    "ReasoningDelta",
    "Regex",
    "Sampling",
    "Slo",
    "SloClass",
    "Stop",
    "Timeout",
    "Tokens",
    "Tool",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallBegun",
    "ToolCallEnded",
    "ToolMode",
    "message_of",
]

_NAMES = {
    "baton.async_client": "AsyncClient",
    "baton.types.chat": "Chat ChatMessage NamedTool Tool ToolCall ToolMode",
    "baton.client": "Client",
    "baton.types.deltas": "ContentDelta ReasoningDelta ToolCallArguments ToolCallBegun ToolCallEnded",
    "baton.errors": "BatonError",
    "baton.parsing": "ChoiceDelta message_of",
    "baton.security.credentials": "Credentials",
    "baton.types": "Accepted ChoiceFinished Completion Finished FinishReason Grammar JsonObject "
    "JsonSchema OneOf Program PromptLogprobs Queued Regex Sampling Slo SloClass Stop Timeout Tokens",
}
"""The public names of each module. They are loaded when they are first used: services take stubs alone, and
the command line gets hold of Ctrl-C before it loads gRPC.
"""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Return a public name, or a module of this package, that has not been used yet."""
    if name in _MODULES:
        found: object = getattr(importlib.import_module(_MODULES[name]), name)
    elif name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        found = importlib.import_module(f"{__name__}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
