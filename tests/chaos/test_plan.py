"""The plan covers every fault."""

from __future__ import annotations

from collections import Counter

from tests.chaos.arena import CHECKOUT
from tests.chaos.plan import (
    ALL,
    AT_WORK,
    ENDS,
    LANES,
    PAIR_CELLS,
    TWICE,
    Kind,
    Lane,
    Phase,
    Place,
    can_follow,
    cell,
    pair_cell,
)


def _planned(lane: Lane, count: int) -> Counter[tuple[Kind, Phase]]:
    return Counter(cell(fault) for _ in range(count) for fault in lane.next_faults())


def test_the_lanes_strike_each_kind_and_phase_equally_often() -> None:
    cells = {(entry.kind, entry.phase) for entry in ALL}
    seen: set[tuple[Kind, Phase]] = set()
    for name, kinds in LANES.items():
        if name in TWICE:
            continue
        planned = _planned(Lane(1, name, kinds, {}), 200)
        assert max(planned.values()) - min(planned.values()) <= 1
        seen |= set(planned)
    assert seen == cells


def test_what_struck_least_before_comes_first() -> None:
    before = Counter({(Kind.KILL, phase): 10 for phase in Phase})
    before[Kind.KILL, Phase.RELAY] = 3
    planned = _planned(Lane(1, "kills 1", (Kind.KILL,), before), 7)
    assert planned == {(Kind.KILL, Phase.RELAY): 7}


def test_the_same_seed_and_tally_plan_the_same() -> None:
    def plan(seed: int, before: dict[tuple[Kind, Phase], int]) -> list[str]:
        lane = Lane(seed, "messages 1", LANES["messages 1"], before)
        return [str(lane.next_faults()) for _ in range(50)]

    assert plan(3, {}) == plan(3, {})
    assert plan(3, {}) != plan(4, {})
    assert plan(3, {}) != plan(3, {(Kind.DROP, Phase.QUEUE): 9})


def test_a_request_is_struck_by_any_two_kinds_equally_often() -> None:
    kinds = list(Kind)
    every = {(min(kind, other), max(kind, other)) for kind in kinds for other in kinds}
    lane = Lane(1, TWICE[0], LANES[TWICE[0]], {})
    pairs = [lane.next_faults() for _ in range(2 * len(every))]
    planned = Counter(tuple(sorted(fault.kind for fault in pair)) for pair in pairs)
    assert planned == dict.fromkeys(every, 2)
    assert all(can_follow(first, second) for first, second in pairs)
    assert {phase for pair in pairs for _, phase in map(cell, pair)} == set(Phase)


def test_pairs_that_struck_least_before_come_first() -> None:
    rare = min(PAIR_CELLS)
    before = {pair: 0 if pair == rare else 1000 for pair in PAIR_CELLS}
    kinds = {kind for kind, _ in rare}
    lane = Lane(1, TWICE[0], [kind for kind in LANES[TWICE[0]] if kind in kinds], {}, before)
    assert pair_cell(*lane.next_faults()) == rare


def test_every_pair_of_processes_that_talk_is_cut() -> None:
    struck = {(fault.place, fault.kind) for fault in ALL if fault.place in ENDS}
    assert struck == {(place, kind) for place in ENDS for kind in (Kind.CUT, Kind.HALF_OPEN, Kind.ONE_WAY)}
    assert {place for places in AT_WORK.values() for place in places} == set(Place)


def test_the_table_of_deaths_names_every_kind_of_fault() -> None:
    table = (CHECKOUT / "docs" / "failures.md").read_text(encoding="utf-8")
    assert [kind.value for kind in Kind if f"**{kind.value}**" not in table] == []
