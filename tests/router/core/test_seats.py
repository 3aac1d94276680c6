"""Where all seats or blocks are taken, a higher class does not wait for the ends of a lower one, nor does a
tenant without seats wait for those of another one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.core.core import RouterCore
from router.core.model.actions import Action, AttemptFailed, Enqueue, GroupMigrated, SendCancel
from router.core.model.events import (
    Arrived,
    GrantsAnswered,
    StepReported,
    Timer,
    TimerFired,
    TimerKind,
    WorkerFacts,
    WorkerLoad,
)
from router.core.model.session import Phase
from scheduling.admission.backlog import DEFAULT_TTFT_MS
from scheduling.admission.shares import PATIENCE_S, SEAT_SHARE
from scheduling.columns import TokenColumns
from scheduling.request import Slo, SloClass
from tests.router.core_driver import ARRIVAL, ONE, TWO, arrive, call, core_of, grant, start, tell

CHORES = TimerFired(Timer(TimerKind.CHORES))
SEATS, BLOCKS = replace(ONE, num_blocks=640), replace(ONE, max_num_seqs=64)
"""The one is short of seats, the other of blocks."""
DUE = ARRIVAL.request.received_at + DEFAULT_TTFT_MS[SloClass.INTERACTIVE] / 1000


def of_class(slo_class: SloClass, **stated: int) -> Slo:
    return Slo(slo_class=slo_class, **stated)  # type: ignore[arg-type]  # times of an Slo


INTERACTIVE = call(ARRIVAL, slo=of_class(SloClass.INTERACTIVE))
OTHER = call(ARRIVAL, tenant="other")
"""A request of another tenant than that of all that runs."""
LONG_WAITED = ARRIVAL.request.received_at + PATIENCE_S


def full(
    facts: WorkerFacts, slo_class: SloClass, newcomer: Arrived = INTERACTIVE, **stated: int
) -> tuple[RouterCore, list[int]]:
    """A worker with as many groups of a class as it takes, each with a token, and a newcomer that waits."""
    core = core_of("slack", facts)
    room = min(facts.max_num_seqs, facts.num_blocks // 14)
    arrivals = [call(ARRIVAL, slo=of_class(slo_class, **stated)) for _ in range(room)]
    handles = [start(core, number, event)[1] for number, event in enumerate(arrivals)]
    rows = TokenColumns(handles, [0] * room, [0] * room, [9] * room, [0] * room)
    free = facts.num_blocks - sum(group.blocks for group in core.state.groups.values())
    tell(core, StepReported(facts.key, rows, WorkerLoad(running=room, free_blocks=free)))
    arrive(core, 100, newcomer)
    tell(core, GrantsAnswered(facts.key))
    return core, handles


def moved(actions: list[Action]) -> list[GroupMigrated]:
    return [action for action in actions if isinstance(action, GroupMigrated)]


@pytest.mark.parametrize("facts", [SEATS, BLOCKS], ids=["seats", "blocks"])
@pytest.mark.parametrize("lower", [SloClass.STANDARD, SloClass.BATCH])
def test_no_high_class_is_late_behind_a_low_one_that_runs(facts: WorkerFacts, lower: SloClass) -> None:
    core, handles = full(facts, lower)
    gone = tell(core, CHORES, now=DUE)
    assert moved(gone) == [GroupMigrated("t/r0/0", facts.key)]
    assert SendCancel(facts.key, (handles[0],)) in gone
    (queued,) = [
        action.entry
        for action in gone
        if isinstance(action, Enqueue) and action.entry.request_key == "t/r0/0"
    ]
    assert queued.slo_class == lower, "behind the one that it makes way for"
    assert not [action for action in gone if isinstance(action, AttemptFailed)]
    left = sum(group.blocks for group in core.state.groups.values() if group.phase is Phase.RUNNING)
    told = WorkerLoad(running=len(handles) - 1, free_blocks=facts.num_blocks - left)
    tell(core, StepReported(facts.key, TokenColumns(), told), now=DUE + 0.05)
    assert grant(core, 100, facts.key, now=DUE + 0.05)


def test_one_at_a_time_gives_way() -> None:
    core, _ = full(SEATS, SloClass.BATCH)
    assert moved(tell(core, CHORES, now=DUE))
    assert not moved(tell(core, CHORES, now=DUE + 0.1)), "the worker has not said yet that it has room"
    assert len(moved(tell(core, CHORES, now=DUE + 0.3))) == 1


@pytest.mark.parametrize(("running", "at"), [(SloClass.BATCH, 1.1), (SloClass.INTERACTIVE, DUE + 1)])
def test_nobody_gives_way_in_time_or_to_its_own_class(running: SloClass, at: float) -> None:
    core, _ = full(SEATS, running)
    assert not moved(tell(core, CHORES, now=at))


def test_nobody_gives_way_where_there_is_room() -> None:
    core = core_of("slack", SEATS, TWO)
    _, handle = start(core, 1, call(ARRIVAL, slo=of_class(SloClass.BATCH)))
    tell(core, StepReported(SEATS.key, TokenColumns([handle], [0], [0], [9], [0]), WorkerLoad(running=1)))
    arrive(core, 100, call(ARRIVAL, slo=of_class(SloClass.INTERACTIVE)))
    assert not moved(tell(core, CHORES, now=DUE + 1))


@pytest.mark.parametrize("facts", [SEATS, BLOCKS], ids=["seats", "blocks"])
def test_a_tenant_with_every_seat_gives_one_to_a_tenant_without(facts: WorkerFacts) -> None:
    core, _ = full(facts, SloClass.STANDARD, OTHER)
    assert not moved(tell(core, CHORES, now=LONG_WAITED - 0.1)), "a sequence may end by itself"
    gone = tell(core, CHORES, now=LONG_WAITED)
    assert len(moved(gone)) == 1
    assert all(action.entry.takes_turns for action in gone if isinstance(action, Enqueue)), (
        "what gave its seat up does not take it back before the other tenant"
    )


@pytest.mark.parametrize(("held", "gives"), [(6, True), (7, False)])
def test_a_tenant_gives_no_more_than_its_share(held: int, *, gives: bool) -> None:
    core, handles = full(SEATS, SloClass.STANDARD, OTHER)
    assert len(handles) == 8
    core.state.running_shares.add("other", held * SEAT_SHARE)
    assert bool(moved(tell(core, CHORES, now=LONG_WAITED))) == gives


@pytest.mark.parametrize(
    ("running", "stated", "newcomer"),
    [
        (SloClass.STANDARD, {"tpot_ms": 5000}, OTHER),
        (SloClass.INTERACTIVE, {}, OTHER),
        (SloClass.STANDARD, {}, ARRIVAL),
    ],
    ids=["promised", "a higher class", "its own tenant"],
)
def test_no_tenant_gives_up(running: SloClass, stated: dict[str, int], newcomer: Arrived) -> None:
    core, _ = full(SEATS, running, newcomer, **stated)
    assert not moved(tell(core, CHORES, now=LONG_WAITED))
