"""Policies side by side: each with a placement and a budget, on fleets of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.placement import Placement
from scheduling.policies import NAMES, by_name
from sim.spec import FleetShape

FIXED_BUDGET = 2048
"""Tokens of a step for a policy with a fixed number, unless stated: the default of engines."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy with its placement, fleet and budget."""

    policy: str
    placement: Placement
    fleet: FleetShape
    token_budget: int | None

    @property
    def name(self) -> str:
        return f"{self.policy} {self.placement.value}"

    def __str__(self) -> str:
        budget = "" if self.token_budget is None else f", {self.token_budget} tokens a step"
        return f"{self.fleet} {self.placement.value}{budget}"

    def as_row(self) -> dict[str, str | int | None]:
        """Return the arm for JSON."""
        return {
            "policy": self.policy,
            "placement": self.placement.value,
            "fleet": str(self.fleet),
            "token_budget": self.token_budget,
        }


def arms(
    policies: str, placement: Placement | None, fleet: FleetShape, token_budget: int | None
) -> list[Arm]:
    """Return the arms of comma-separated policies, or of `all`, with every placement that fits unless one is
    stated.
    """
    names = NAMES if policies == "all" else tuple(policies.split(","))
    found: list[Arm] = []
    for name in names:
        for chosen in [placement] if placement is not None else placements(name, fleet):
            budget = token_budget or (FIXED_BUDGET if name == "chunked" else None)
            found.append(Arm(name, chosen, fleet_for(chosen, fleet), budget))
    return found


def placements(policy: str, fleet: FleetShape) -> Sequence[Placement]:
    """Return the placements that fit a policy: only some can hand over, and only to prefill workers."""
    by_name(policy)
    if fleet.prefill == 0:
        return (Placement.AGGREGATED,)
    if policy == "slack":
        return tuple(Placement)
    if policy == "polyserve":  # its rule chooses where prompts from other workers decode
        return (Placement.DISAGGREGATED,)
    if policy in {"chunked", "slos_serve", "jitserve", "qoserve"}:
        return (Placement.AGGREGATED, Placement.DISAGGREGATED)
    return (Placement.AGGREGATED,)


def fleet_for(placement: Placement, fleet: FleetShape) -> FleetShape:
    """Return the fleet of a placement. With aggregated placement, prefill workers also decode, or they would
    idle.
    """
    return FleetShape(0, fleet.size) if placement is Placement.AGGREGATED else fleet
