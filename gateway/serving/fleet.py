"""The fleet behind the gateway: one SDK client, which acts with the credential of each HTTP caller."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self

from baton import AsyncClient, Credentials, Timeout
from baton.errors import NotFound
from baton.types import Model
from baton.wire.fields import shown

RESUME_GRACE_S = 10.0
"""How long the fleet keeps working for a generation while the gateway looks for another router."""

TENANT = "x-baton-tenant"
"""Metadata that names the tenant for which a delegate acts."""

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


@dataclass(frozen=True, slots=True)
class CallerCredentials(Credentials):
    """The gateway's certificate, and the key of the HTTP caller in place of its own.

    Only the lines of batches run by the gateway's own key, which must be a delegate's.
    Without TLS to the routers no key is forwarded: others could read it, and such a fleet requires none.
    """

    def metadata(self) -> tuple[tuple[str, str], ...]:
        if tenant := acting_tenant.get():
            return (*Credentials.metadata(self), (TENANT, tenant))
        key = caller_key.get()
        return (("authorization", f"Bearer {key}"),) if key and self.ca is not None else ()


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A name that requests may give as their model: the fleet's model, alone or with a LoRA adapter."""

    name: str
    facts: Model
    adapter: str = ""


def served_by(facts: Model, more_names: Iterable[str] = ()) -> dict[str, ServedModel]:
    """Return what a fleet serves, by name; the model alone, by its own name, is first.

    `more_names` are names of the model beside its own. A name with an adapter is both with a colon between.
    """
    found: dict[str, ServedModel] = {}
    for name in (facts.name, *more_names):
        found.setdefault(name, ServedModel(name, facts))
        for adapter in facts.adapters:
            adapted = f"{name}:{adapter}"
            found.setdefault(adapted, ServedModel(adapted, facts, adapter))
    return found


class FleetClient:
    """The SDK client that all HTTP requests share."""

    def __init__(
        self,
        routers: Sequence[str],
        credentials: CallerCredentials,
        connect_s: float,
        more_names: Sequence[str] = (),
    ) -> None:
        self.sdk = AsyncClient(
            routers,
            timeout=Timeout(connect_s=connect_s),
            resume_grace_s=RESUME_GRACE_S,
            credentials=credentials,
            multiplex=True,
        )
        self.has_own_key = credentials.api_key_file is not None
        self.sends_keys = credentials.ca is not None
        self.more_names = more_names
        self._served: dict[str, ServedModel] = {}
        self._vocabulary: Vocabulary | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.sdk.close()

    async def vocabulary(self) -> Vocabulary:
        """Return the bytes of each token, read from the fleet once."""
        if self._vocabulary is None:
            model = (await self.model()).facts
            self._vocabulary = [
                data
                for first in range(0, model.vocab_size, _PAGE)
                for data in await self.sdk.token_bytes(range(first, min(first + _PAGE, model.vocab_size)))
            ]
        return self._vocabulary

    async def tenant(self) -> str:
        """Return the HTTP caller's tenant. Without TLS to the routers, and so without keys, there is one."""
        return await self.sdk.proven_tenant() if self.sends_keys else ""

    async def model(self, name: str = "") -> ServedModel:
        """Return the fleet's model, as an earlier request may have learnt it.

        Raises `NotFound` for a name that the fleet does not serve.
        """
        found = self._served.get(name) if name else next(iter(self._served.values()), None)
        return await self.told_model(name) if found is None or not found.facts.fingerprint else found

    async def told_model(self, name: str = "") -> ServedModel:
        """Return what `model` does, asking the fleet as this caller. Raises `NotAllowed` as well."""
        served = await self.told_models()
        found = served.get(name) if name else next(iter(served.values()))
        if found is None:
            raise NotFound(f"model is {shown(name)}; accepted: {accepted_names(served)}")
        return found

    async def told_models(self) -> dict[str, ServedModel]:
        """Return what the fleet serves by name, the model alone first, asking the fleet as this caller."""
        (facts,) = await self.sdk.models()
        self._served = served_by(facts, self.more_names)
        return self._served


def accepted_names(served: Iterable[str]) -> str:
    """Return the names that a fleet serves, for an error."""
    return f"{', '.join(map(repr, served))}, which this fleet serves"
