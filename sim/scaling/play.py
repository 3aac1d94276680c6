"""Play a day under an arm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduling.scaling.steady import WorkerModel
from sim.scaling.arms import ROLES, Arm
from sim.scaling.day import HOUR_S, Asked
from sim.scaling.fleet import Fleet
from sim.scaling.hpa import SYNC_S, Autoscaler

FLAP_S = 600.0
"""Workers that are added within this long after some were removed need not have gone."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many workers of each role a fleet may have, and has at first."""

    least: int = 1
    most: int = 60
    first: int = 4


@dataclass(frozen=True, slots=True)
class DayResult:
    """The outcome of a day."""

    requests: int
    kept_share: float
    """The share of all requests whose promise was kept: neither refused nor late."""
    refused_share: float
    worker_hours: float
    """From the decision to start a worker until it has drained."""
    flaps: int
    """Times that workers were added within `FLAP_S` after some of their role were removed."""


def play(day: Iterable[Asked], worker: WorkerModel, arm: Arm, seed: int, limits: Limits) -> DayResult:
    """Play a day's requests; the same day, arm and seed give the same result."""
    fleet = Fleet(worker, seed, arm.heard)
    scalers = {role: Autoscaler(limits.least, limits.most, arm.stabilisation_s) for role in ROLES}
    shrunk_at = dict.fromkeys(ROLES, -FLAP_S)
    for role in ROLES:
        fleet.scale(role, limits.first, at_once=True)
    flaps, sync_s = 0, SYNC_S
    for asked in day:
        while sync_s <= asked.at_s:
            fleet.advance(sync_s)
            for role, scaler in scalers.items():
                before = fleet.replicas(role)
                wanted = scaler.decide(arm.propose(fleet, role), before, sync_s)
                if wanted > before and sync_s - shrunk_at[role] < FLAP_S:
                    flaps += 1
                    shrunk_at[role] = -FLAP_S
                elif wanted < before:
                    shrunk_at[role] = sync_s
                fleet.scale(role, wanted)
            sync_s += SYNC_S
        fleet.arrive(asked)
    fleet.advance(fleet.now + HOUR_S / 6)
    tally = fleet.finish()
    return DayResult(
        tally.requests,
        tally.kept / tally.requests,
        tally.refused / tally.requests,
        tally.worker_s / HOUR_S,
        flaps,
    )
