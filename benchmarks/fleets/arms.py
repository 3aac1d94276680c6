"""The arms of a comparison: a fleet for each way to serve, all of the same size."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from baton import AsyncClient, Credentials
from baton.fleet import Fleet, FleetSpec
from baton.security.credentials import UNENCRYPTED

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy and a placement; None is the fleet's default."""

    policy: str | None = None
    placement: str | None = None

    @property
    def name(self) -> str:
        """The name in tables and plots."""
        return "/".join(part for part in (self.policy, self.placement) if part) or DEFAULT


def arms(policies: Sequence[str], placements: Sequence[str]) -> list[Arm]:
    """Return every policy with every placement; raise `ValueError` for a repeated name."""
    for name, values in (("--policy", policies), ("--placement", placements)):
        if len(set(values)) < len(values):
            raise ValueError(f"{name} is {','.join(values)}; accepted: each name once")
    return [Arm(policy, placement) for policy in policies or (None,) for placement in placements or (None,)]


def spec_of(arm: Arm, base: FleetSpec, record: Path | None = None) -> FleetSpec:
    """Return the arm's fleet. With aggregated placement, prefill workers become decode workers, or they would
    idle.
    """
    aggregated = arm.placement == "aggregated"
    recording = {} if record is None else {"router-0": ("--record", str(record.resolve()))}
    return replace(
        base,
        prefill=0 if aggregated else base.prefill,
        decode=base.decode + base.prefill if aggregated else base.decode,
        policy=arm.policy,
        placement=arm.placement,
        extra_args={**base.extra_args, **recording},
    )


@dataclass(frozen=True, slots=True)
class Target:
    """A running fleet."""

    name: str
    client: AsyncClient
    vocab_size: int
    max_context_tokens: int
    metrics_addresses: tuple[str, ...] = ()
    recording: Path | None = None


@contextlib.asynccontextmanager
async def started(arm: Arm, base: FleetSpec, record: Path | None = None) -> AsyncIterator[Target]:
    """Run the arm's fleet while the block lasts; its router records its events to `record`."""
    spec = spec_of(arm, base, record)
    async with Fleet(spec) as fleet:
        metrics = tuple(fleet.process(name).metrics_address for name in spec.router_names)
        async with reached(fleet.router_addresses, arm.name, metrics, record) as target:
            yield target


@contextlib.asynccontextmanager
async def reached(
    addresses: Sequence[str],
    name: str,
    metrics: Sequence[str] = (),
    recording: Path | None = None,
    credentials: Credentials = UNENCRYPTED,
) -> AsyncIterator[Target]:
    """Connect to a fleet that is already running."""
    async with AsyncClient(addresses, credentials=credentials) as client:
        model = (await client.models())[0]
        yield Target(name, client, model.vocab_size, model.max_context_tokens, tuple(metrics), recording)
