"""How faults strike, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.dst.fleet import Fleet
from tests.dst.scenario import OPERATOR, Fault
from tests.dst.world.network import LinkState

SLOW_S = 1.0
"""Longer than a call of the store may take."""


def strike(fleet: Fleet, fault: Fault) -> Callable[[], None] | None:  # noqa: PLR0911 -- a table of kinds
    """Let a fault strike, and return what ends it; None if there was nothing for it to strike."""
    match fault.kind:
        case "kill":
            return fleet.kill(fault.target)
        case "stop":
            return fleet.stop(fault.target)
        case "drain":
            return fleet.drain(fault.target, by_operator=fault.peer == OPERATOR)
        case "jump":
            return fleet.jump(fault.target, fault.lasts_s)
        case "cut":
            return _link(fleet, fault, LinkState.CUT)
        case "half-open":
            return _link(fleet, fault, LinkState.HALF_OPEN)
        case "island":
            return _island(fleet, fault)
        case "slow":
            return _slow(fleet, fault)
        case kind:
            raise ValueError(f"a fault's kind is {kind!r}; accepted: those of scenario.KINDS")


def _pairs(fault: Fault) -> list[tuple[str, str]]:
    pairs = [(fault.target, fault.peer)]
    return [*pairs, (fault.peer, fault.target)] if fault.both else pairs


def _link(fleet: Fleet, fault: Fault, state: LinkState) -> Callable[[], None]:
    for source, target in _pairs(fault):
        fleet.network.set_link(source, target, state)
    fleet.look()

    def end() -> None:
        for source, target in _pairs(fault):
            fleet.network.set_link(source, target, LinkState.UP)
        fleet.look()

    return end


def _island(fleet: Fleet, fault: Fault) -> Callable[[], None] | None:
    peers = [name for name, role in fleet.roles.items() if role == fault.peer and name != fault.target]
    ends = [_link(fleet, replace(fault, peer=peer), LinkState.CUT) for peer in peers]

    def end_all() -> None:
        for end in ends:
            end()

    return end_all if ends else None


def _slow(fleet: Fleet, fault: Fault) -> Callable[[], None]:
    for source, target in _pairs(fault):
        fleet.network.slow_down(source, target, SLOW_S)

    def end() -> None:
        for source, target in _pairs(fault):
            fleet.network.slow_down(source, target, 0.0)

    return end
