"""The fleets of a comparison, one for each way to serve, all of the same size."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from baton import AsyncClient, Credentials
from baton.fleet import Fleet, FleetSpec
from baton.security.credentials import UNENCRYPTED
from benchmarks.doors.http import OpenAIClient
from benchmarks.doors.sending import OPENAI, Send, by_grpc, by_openai

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy, a placement, and the door that requests take; None is the default of each."""

    policy: str | None = None
    placement: str | None = None
    door: str | None = None

    @property
    def name(self) -> str:
        """The name in tables and plots."""
        return "/".join(part for part in (self.policy, self.placement, self.door) if part) or DEFAULT


def variants(policies: Sequence[str], placements: Sequence[str], doors: Sequence[str] = ()) -> list[Variant]:
    """Return every policy with every placement by every door; raise `ValueError` for a repeated name."""
    for name, values in (("--policy", policies), ("--placement", placements), ("--door", doors)):
        if len(set(values)) < len(values):
            raise ValueError(f"{name} is {','.join(values)}; accepted: each name once")
    combinations = itertools.product(policies or (None,), placements or (None,), doors or (None,))
    return [Variant(*names) for names in combinations]


def spec_of(variant: Variant, base: FleetSpec, record: Path | None = None) -> FleetSpec:
    """Return the variant's fleet; where placement is aggregated, prefill workers become decode workers."""
    aggregated = variant.placement == "aggregated"
    recording = {} if record is None else {"router-0": ("--record", str(record.resolve()))}
    return replace(
        base,
        prefill=0 if aggregated else base.prefill,
        decode=base.decode + base.prefill if aggregated else base.decode,
        policy=variant.policy,
        placement=variant.placement,
        gateways=int(variant.door == OPENAI),
        extra_args={**base.extra_args, **recording},
    )


@dataclass(frozen=True, slots=True)
class Target:
    """A running fleet."""

    name: str
    client: AsyncClient
    send: Send
    vocab_size: int
    max_context_tokens: int
    metrics_addresses: tuple[str, ...] = ()
    recording: Path | None = None


@contextlib.asynccontextmanager
async def started(variant: Variant, base: FleetSpec, record: Path | None = None) -> AsyncIterator[Target]:
    """Run the variant's fleet while the block lasts; its router records its events to `record`."""
    spec = spec_of(variant, base, record)
    async with Fleet(spec) as fleet:
        metrics = tuple(fleet.process(name).metrics_address for name in spec.router_names)
        gateway = next(iter(fleet.gateway_urls), None)
        async with reached(
            fleet.router_addresses, variant.name, metrics, gateway, recording=record
        ) as target:
            yield target


@contextlib.asynccontextmanager
async def reached(
    addresses: Sequence[str],
    name: str,
    metrics: Sequence[str] = (),
    gateway: str | None = None,
    *,
    recording: Path | None = None,
    credentials: Credentials = UNENCRYPTED,
) -> AsyncIterator[Target]:
    """Connect to a fleet that is already running. Requests go to its gateway, if the URL of one is given."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(addresses, credentials=credentials))
        send = by_grpc(client)
        if gateway is not None:
            send = by_openai(await stack.enter_async_context(OpenAIClient(gateway, credentials)))
        model = (await client.models())[0]
        yield Target(
            name, client, send, model.vocab_size, model.max_context_tokens, tuple(metrics), recording
        )
