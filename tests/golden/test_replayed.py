"""Routers decide as they did when live fleets were recorded, action for action.

For a wanted change of decisions: `python -m tests.golden.record --decide-again`. For a class or field with
another name: `python -m tests.golden.convert`.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest

from router.core.model.actions import Action
from router.core.simulated_runs import SimulatedEvent
from tests.golden import stored
from tests.golden.host import ROUNDS_AS_STORED
from tests.golden.schema import differences

PATHS = stored.paths()
CONVERT = (
    "The stored recordings must be rewritten to match: `python -m tests.golden.convert` lists what differs. "
    "Given what was renamed (`--class Old=New`, `--field Type.old=new`, `--drop`, `--add`, `--value`) it "
    "rewrites them; its docstring says how"
)


def _name(path: Path) -> str:
    return path.name.removesuffix(stored.SUFFIX)


@pytest.fixture(scope="module")
def _fitting() -> None:
    found = differences(stored.read_schema(), stored.current_schema())
    assert not found, "\n".join([*found, CONVERT])


@pytest.mark.usefixtures("_fitting")
@pytest.mark.parametrize("path", PATHS, ids=_name)
def test_routers_decide_as_they_did(path: Path) -> None:
    recording = stored.read(path)
    decided = stored.decide_again(recording)
    for number, (before, now) in enumerate(zip(recording.lines, decided, strict=True)):
        if _comparable(before) != _comparable(now):
            pytest.fail(_difference(number, before, now))


@pytest.mark.usefixtures("_fitting")
def test_every_event_and_every_action_is_recorded() -> None:
    seen_events: set[str] = set()
    seen_actions: set[str] = set()
    for path in PATHS:
        for _, event, actions in stored.read(path).lines:
            seen_events.add(event[0])
            seen_actions.update(action[0] for action in actions)
    assert {event.__name__ for event in typing.get_args(SimulatedEvent)} == seen_events
    assert {action.__name__ for action in typing.get_args(Action)} == seen_actions


def _comparable(row: Any) -> str:
    """Return the row as text: exact, or with ten digits on a host that rounds differently."""
    return stored.to_text(row if ROUNDS_AS_STORED else _rounded(row))


def _rounded(row: Any) -> Any:
    if isinstance(row, float):
        return float(f"{row:.10g}")
    if isinstance(row, dict):
        return {key: _rounded(part) for key, part in row.items()}
    return [_rounded(part) for part in row] if isinstance(row, list | tuple) else row


def _difference(number: int, before: stored.Row, now: stored.Row) -> str:
    what = f"event {number}, at {before[0]} s: {stored.to_text(before[1])}"
    if _comparable(before[1]) != _comparable(now[1]):
        return f"{what}\nis encoded otherwise now: {stored.to_text(now[1])}"
    old, new = before[2], now[2]
    place = 0
    while _at(old, place) == _at(new, place):
        place += 1
    return f"{what}\naction {place} was: {_at(old, place)}\n         is now: {_at(new, place)}"


def _at(actions: list[Any], place: int) -> str:
    return _comparable(actions[place]) if place < len(actions) else "nothing"
