"""The fleets behind the gateway: an SDK client of each, which acts with the credential of each HTTP caller.

The model of a request names its fleet. A fleet that is away fails requests for its own models alone. Calls
about no model, such as that for the tenant of a key, take the first good answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self, TypeVar

from baton import AsyncClient, Credentials, Timeout
from baton.errors import BatonError, NotFound, Unavailable
from baton.types import Model
from baton.wire.fields import shown
from gateway.serving.errors import NameTwice
from runtime.tracing.context import HEADER

T = TypeVar("T")

RESUME_GRACE_S = 10.0
"""How long the fleet keeps working for a generation while the gateway looks for another router."""

TENANT = "x-baton-tenant"
"""Metadata that names the tenant for which a delegate acts."""

ASK_S = 2.0
"""How long one of several fleets may take to say what it serves, as the others wait for it."""

_PAGE = 1024
"""Tokens whose bytes one call asks for; fewer than any model's context holds."""

Vocabulary = Sequence[bytes]
"""The bytes of each token, by token id."""

caller_key: ContextVar[str] = ContextVar("caller_key", default="")
"""The API key or JWT of the HTTP request that is being served; empty if it has none.

A context variable, because calls are made deep inside the SDK: tasks that a request starts inherit it.
"""


acting_tenant: ContextVar[str] = ContextVar("acting_tenant", default="")
"""The tenant for which a batch's line runs, by the gateway's own key; empty for every other request."""


caller_span: ContextVar[str] = ContextVar("caller_span", default="")
"""The span of the HTTP request that is being served, as W3C's traceparent; empty without traces."""


@dataclass(frozen=True, slots=True)
class CallerCredentials(Credentials):
    """The gateway's certificate, and the key of the HTTP caller in place of its own.

    Only the lines of batches run by the gateway's own key, which must be a delegate's.
    Without TLS to the routers no key is forwarded: others could read it, and such a fleet requires none.
    """

    def metadata(self) -> tuple[tuple[str, str], ...]:
        span = caller_span.get()
        return (*self._shown(), (HEADER, span)) if span else self._shown()

    def _shown(self) -> tuple[tuple[str, str], ...]:
        if tenant := acting_tenant.get():
            return (*Credentials.metadata(self), (TENANT, tenant))
        key = caller_key.get()
        return (("authorization", f"Bearer {key}"),) if key and self.ca is not None else ()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A name that requests may give as their model: a fleet's model, alone or with a LoRA adapter."""

    name: str
    facts: Model
    fleet: FleetClient
    adapter: str = ""


def served_by(fleet: FleetClient, facts: Model) -> dict[str, ServedModel]:
    """Return what a fleet serves, by name; the model alone, by its own name, is first.

    A name with an adapter is both with a colon between.
    """
    found: dict[str, ServedModel] = {}
    for name in (facts.name, *facts.more_names):
        found.setdefault(name, ServedModel(name, facts, fleet))
        for adapter in facts.adapters:
            adapted = f"{name}:{adapter}"
            found.setdefault(adapted, ServedModel(adapted, facts, fleet, adapter))
    return found


def not_served(name: str, served: Iterable[str]) -> NotFound:
    """Return the error for a name that is not among those that are served."""
    accepted = f"{', '.join(map(repr, served))}, which are served here"
    return NotFound(f"model is {shown(name)}; accepted: {accepted}")


class FleetClient:
    """The SDK client of one fleet, which all HTTP requests share."""

    def __init__(self, routers: Sequence[str], credentials: CallerCredentials, connect_s: float) -> None:
        self.sdk = AsyncClient(
            routers,
            timeout=Timeout(connect_s=connect_s),
            resume_grace_s=RESUME_GRACE_S,
            credentials=credentials,
            multiplex=True,
        )
        self.address = ",".join(routers)
        self.served: Mapping[str, ServedModel] = {}
        """The models that the fleet serves, by name, as an earlier request has learnt them."""
        self._vocabulary: Vocabulary | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.sdk.close()

    async def vocabulary(self, size: int) -> Vocabulary:
        """Return the bytes of each of so many tokens, read from the fleet once."""
        if self._vocabulary is None:
            self._vocabulary = [
                data
                for first in range(0, size, _PAGE)
                for data in await self.sdk.token_bytes(range(first, min(first + _PAGE, size)))
            ]
        return self._vocabulary

    async def told_models(self, limit_s: float | None = None) -> Mapping[str, ServedModel]:
        """Return what the fleet serves, by name, asking as this caller. Raises `BatonError`."""
        try:
            async with asyncio.timeout(limit_s):
                (facts,) = await self.sdk.models(connect_s=limit_s)
        except TimeoutError:
            raise Unavailable(f"it did not say in {limit_s} s what it serves", self.address) from None
        self.served = served_by(self, facts)
        return self.served


class Fleets:
    """All fleets of the gateway, each given by its routers."""

    def __init__(
        self, routers: Iterable[Sequence[str]], credentials: CallerCredentials, connect_s: float
    ) -> None:
        self.all = tuple(FleetClient(own, credentials, connect_s) for own in routers)
        self.has_own_key = credentials.api_key_file is not None
        self.sends_keys = credentials.ca is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(fleet.sdk.close() for fleet in self.all))

    async def check_names(self) -> None:
        """Raise `NameTwice` if two fleets that respond without a caller's key have a name in common."""
        if len(self.all) > 1:
            with contextlib.suppress(BatonError):
                await self.ask()
            for name in _by_name(self.all):
                self.known_model(name)

    async def tenant(self) -> str:
        """Return the HTTP caller's tenant. Without TLS to the routers, and so without keys, there is one."""
        return await self.proven_tenant() if self.sends_keys else ""

    async def proven_tenant(self) -> str:
        """Return the tenant of the caller's key, which is the same in all fleets that know the key."""
        return await self.first(lambda fleet: fleet.sdk.proven_tenant())

    async def first(self, call: Callable[[FleetClient], Awaitable[T]]) -> T:
        """Return the first good answer of a fleet. Raises `BatonError` if there is none."""
        calls = [asyncio.ensure_future(_tried(call(fleet))) for fleet in self.all]
        errors: list[BatonError] = []
        try:
            for answer in asyncio.as_completed(calls):
                said = await answer
                if not isinstance(said, BatonError):
                    return said
                errors.append(said)
        finally:
            for task in calls:
                task.cancel()
        raise _worst(errors)

    async def model(self, name: str = "") -> ServedModel:
        """Return a model, as an earlier request may have learnt it; without a name, that of the only fleet.

        Raises `NotFound` for a name that no fleet serves, and `NameTwice`.
        """
        with contextlib.suppress(NotFound):
            found = self.known_model(name)
            if found.facts.fingerprint:
                return found
        return await self.told_model(name)

    async def told_model(self, name: str = "") -> ServedModel:
        """Return what `model` does, asking the fleets as this caller. Raises `NotAllowed` as well."""
        errors = await self.ask()
        for fleet, error in errors.items():
            if name in fleet.served or not fleet.served:
                raise error
        return self.known_model(name, [fleet for fleet in self.all if fleet not in errors])

    async def told_models(self, limit_s: float | None = None) -> dict[str, ServedModel]:
        """Return what the fleets that respond to this caller serve, by name."""
        errors = await self.ask(limit_s)
        return _by_name(fleet for fleet in self.all if fleet not in errors)

    def known_model(self, name: str, fleets: Sequence[FleetClient] = ()) -> ServedModel:
        """Return what `model` does, as far as it has been learnt; of some fleets, or of all."""
        fleets = fleets or self.all
        if not name and len(self.all) == 1:
            name = next(iter(self.all[0].served), "")
        found = [fleet.served[name] for fleet in fleets if name in fleet.served]
        if not found:
            raise not_served(name, _by_name(fleets))
        if len(found) > 1:
            raise NameTwice(name, [model.fleet.address for model in found])
        return found[0]

    def fleet_of(self, name: str) -> FleetClient | None:
        """Return the fleet of a name, as far as it has been learnt; None: it is not known."""
        fleets = [fleet for fleet in self.all if name in fleet.served or len(self.all) == 1]
        return fleets[0] if fleets else None

    async def ask(self, limit_s: float | None = None) -> dict[FleetClient, BatonError]:
        """Learn from all fleets, as this caller, what they serve. Return why some have not said it.

        Raises `BatonError` if none has.
        """
        if len(self.all) > 1:
            limit_s = ASK_S
        said = await asyncio.gather(*(_tried(fleet.told_models(limit_s)) for fleet in self.all))
        pairs = zip(self.all, said, strict=True)
        errors = {fleet: error for fleet, error in pairs if isinstance(error, BatonError)}
        if len(errors) == len(self.all):
            raise _worst(list(errors.values()))
        return errors


def _by_name(fleets: Iterable[FleetClient]) -> dict[str, ServedModel]:
    return {name: model for fleet in fleets for name, model in fleet.served.items()}


async def _tried(call: Awaitable[T]) -> T | BatonError:
    try:
        return await call
    except BatonError as error:
        return error


def _worst(errors: Sequence[BatonError]) -> BatonError:
    """Return the error to raise: a fleet that is away might have known the key that others refuse."""
    return next((error for error in errors if isinstance(error, Unavailable)), errors[0])
