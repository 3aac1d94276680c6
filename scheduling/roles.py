"""Roles as weights: the share of its time that a decode worker may spend on prompts, moved at run time.

A prefill worker only computes prompts. A decode worker can do both. Its weight, 0 to 1, is the share of its
time that prompts may take before requests are sent elsewhere (`PathCandidate.within_share`). The weights that
put prompts and decodes under equal pressure follow from the work alone:

    (P + W) / (P + D) = prefill work / all work          P, D workers of each kind, W the sum of the weights

The weights move there only when the two pressures have been apart by more than `BAND` for `HOLD_S`, and by at
most `MOST_MOVE` at a time. At the target the pressures are equal, so under constant work the weights move in
one direction and stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

START_WEIGHT = 0.5
"""The weight of a worker that has none yet."""
BAND = 0.2
"""The difference of pressures, as shares of time, that is ignored: load varies that much by chance."""
HOLD_S = 10.0
"""Longer than a burst, shorter than a lasting change of load."""
MOST_MOVE = 0.25
LEAST_MOVE = 0.01


@dataclass(frozen=True, slots=True)
class MixedLoad:
    """A decode worker's shares of time, as moving averages from 0 to 1."""

    key: str
    prefill: float
    """Time for prompts: what steps took beyond their decodes."""
    decode: float


@dataclass(frozen=True, slots=True)
class Roles:
    """The weights, and since when the fleet has been out of balance; the input of the next call."""

    weights: Mapping[str, float] = field(default_factory=dict)
    uneven_since: float | None = None
    toward_prefill: bool = False
    """The direction in which it has been out of balance."""


def rebalance(roles: Roles, mixed: Sequence[MixedLoad], dedicated: Sequence[float], now: float) -> Roles:
    """Return the new roles.

    `dedicated` has each prefill worker's busy share of time, `now` is seconds on the caller's clock. A worker
    that has joined starts at `START_WEIGHT`; a worker that has left is forgotten. Raise ValueError for a
    share outside 0 to 1.
    """
    if not mixed:
        return Roles()
    for share in (*dedicated, *(load.prefill for load in mixed), *(load.decode for load in mixed)):
        if not 0 <= share <= 1:
            raise ValueError(f"share of time is {share}; accepted: 0 to 1")
    weights = {load.key: roles.weights.get(load.key, START_WEIGHT) for load in mixed}
    gap = _gap(weights, mixed, dedicated)
    if abs(gap) <= BAND:
        return Roles(weights)
    toward_prefill = gap > 0
    if roles.uneven_since is None or toward_prefill != roles.toward_prefill:
        return Roles(weights, now, toward_prefill)
    if now - roles.uneven_since < HOLD_S:
        return replace(roles, weights=weights)
    target = _target(mixed, dedicated)
    return Roles({key: _moved(weight, target) for key, weight in weights.items()})


def _gap(weights: Mapping[str, float], mixed: Sequence[MixedLoad], dedicated: Sequence[float]) -> float:
    """Return the pressure of prompts minus that of decodes: work of each kind by the time it may have."""
    prompts, decodes = _work(mixed, dedicated)
    for_prompts = len(dedicated) + sum(weights.values())
    for_decodes = len(mixed) - sum(weights.values())
    return _pressure(prompts, for_prompts) - _pressure(decodes, for_decodes)


def _pressure(work: float, room: float) -> float:
    """Return work by room, at most 1, since shares of time cannot show more; 1 if there is no room for it."""
    return min(1.0, work / room) if room > 0 else float(work > 0)


def _target(mixed: Sequence[MixedLoad], dedicated: Sequence[float]) -> float:
    """Return the weight with which both pressures are equal, the same for all decode workers."""
    prompts, decodes = _work(mixed, dedicated)
    share = prompts / (prompts + decodes)
    return min(1.0, max(0.0, (share * (len(dedicated) + len(mixed)) - len(dedicated)) / len(mixed)))


def _work(mixed: Sequence[MixedLoad], dedicated: Sequence[float]) -> tuple[float, float]:
    """Return the work of prompts and of decodes, in workers."""
    return sum(dedicated) + sum(load.prefill for load in mixed), sum(load.decode for load in mixed)


def _moved(weight: float, target: float) -> float:
    move = min(MOST_MOVE, max(-MOST_MOVE, target - weight))
    return weight + move if abs(move) >= LEAST_MOVE else weight
