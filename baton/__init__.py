"""Client of a Baton fleet: `AsyncClient`, its blocking face `Client`, and what they take, give and raise.

Errors are in `baton.errors`, the operators' snapshots in `baton.snapshots`, a whole fleet to start on this
machine in `baton.fleet`. Never imports torch.
"""

from baton.async_client import AsyncClient
from baton.client import Client
from baton.errors import BatonError
from baton.security.credentials import Credentials
from baton.types import (
    Accepted,
    Chat,
    ChatMessage,
    ChoiceFinished,
    Completion,
    Finished,
    FinishReason,
    PromptLogprobs,
    Queued,
    Sampling,
    Slo,
    SloClass,
    Stop,
    Timeout,
    Tokens,
)

__all__ = [
    "Accepted",
    "AsyncClient",
    "BatonError",
    "Chat",
    "ChatMessage",
    "ChoiceFinished",
    "Client",
    "Completion",
    "Credentials",
    "FinishReason",
    "Finished",
    "PromptLogprobs",
    "Queued",
    "Sampling",
    "Slo",
    "SloClass",
    "Stop",
    "Timeout",
    "Tokens",
]
