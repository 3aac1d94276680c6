"""The SDK of a Baton fleet: `AsyncClient`, its blocking form `Client`, and the types that they use.

In reading order:

- `client`, `async_client`: the clients; `chat`, `types`, `snapshots`, `errors`: what they take, return and
  raise.
- `stream`, `progress`, `routers`: how one generation survives routers; `parsing`: what its texts say.
- `wire`: the contract on gRPC; `security`: credentials and certificates.
- `fleet`: starts a whole fleet on this machine; `cli`: the command line.
- `v1`, `worker`, `operators`, `picker`: stubs generated from `proto/`.

Never imports torch. Only `fleet` and `cli` know that the services' code exists.
"""

from baton.async_client import AsyncClient
from baton.chat import Chat, ChatMessage, NamedTool, Tool, ToolCall, ToolMode
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
from chat_formats import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallBegun

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
    "ToolMode",
    "message_of",
]
