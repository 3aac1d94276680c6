"""Policies side by side: each with the placement and budget that go with it, on fleets of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.placement import Placement
from scheduling.policies import NAMES, by_name
from sim.spec import FleetShape

FIXED_BUDGET = 2048
"""Tokens of a step where a policy keeps to a fixed number and none was stated: what engines come with."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve."""

    policy: str
    placement: Placement
    fleet: FleetShape
    token_budget: int | None

    @property
    def name(self) -> str:
        return f"{self.policy} {self.placement.value}"


def arms(
    policies: str, placement: Placement | None, fleet: FleetShape, token_budget: int | None
) -> list[Arm]:
    """Of comma-separated policies, or `all`; where no placement is stated, every one that goes with each."""
    names = NAMES if policies == "all" else tuple(policies.split(","))
    found: list[Arm] = []
    for name in names:
        for chosen in [placement] if placement is not None else placements(name, fleet):
            budget = token_budget or (FIXED_BUDGET if name == "chunked" else None)
            found.append(Arm(name, chosen, fleet_for(chosen, fleet), budget))
    return found


def placements(policy: str, fleet: FleetShape) -> Sequence[Placement]:
    """Batching by rounds is of one engine; the others may hand over as well, if anybody is there to."""
    by_name(policy)
    if fleet.prefill == 0:
        return (Placement.AGGREGATED,)
    if policy == "slack":
        return tuple(Placement)
    if policy == "chunked":
        return (Placement.AGGREGATED, Placement.DISAGGREGATED)
    return (Placement.AGGREGATED,)


def fleet_for(placement: Placement, fleet: FleetShape) -> FleetShape:
    """Aggregated, prefill workers would idle: they decode too, so that fleets of one size are compared."""
    return FleetShape(0, fleet.size) if placement is Placement.AGGREGATED else fleet
