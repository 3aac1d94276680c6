"""An HTTP request as the picker knows it, and the decision on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gateway.serving.errors import Problem

NO_GATEWAY = Problem(
    503,
    "overloaded_error",
    "no gateway of this fleet serves; come back",
    code="unavailable",
    retry_after_s=1.0,
)


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


@dataclass(frozen=True, slots=True)
class Picked:
    """The gateway that serves a request, as IP:PORT."""

    endpoint: str


Decision = Picked | Problem


def choose(serving: Sequence[str], subset: AbstractSet[str] | None, turn: int) -> str | None:
    """Return the gateway whose turn it is, among those that serve and are allowed; None if there is none."""
    allowed = serving if subset is None else [address for address in serving if address in subset]
    return allowed[turn % len(allowed)] if allowed else None
