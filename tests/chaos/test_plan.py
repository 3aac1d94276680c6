"""The plan covers every fault."""

from __future__ import annotations

from collections import Counter

from tests.chaos.arena import CHECKOUT
from tests.chaos.plan import ALL, LANES, Kind, Lane, Phase


def _planned(lane: Lane, count: int) -> Counter[tuple[Kind, Phase]]:
    return Counter((fault.kind, fault.phase) for fault in (lane.next_fault() for _ in range(count)))


def test_the_lanes_strike_each_kind_and_phase_equally_often() -> None:
    cells = {(entry.kind, entry.phase) for entry in ALL}
    seen: set[tuple[Kind, Phase]] = set()
    for name, kinds in LANES.items():
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
        return [str(lane.next_fault()) for _ in range(50)]

    assert plan(3, {}) == plan(3, {})
    assert plan(3, {}) != plan(4, {})
    assert plan(3, {}) != plan(3, {(Kind.DROP, Phase.QUEUE): 9})


def test_the_table_of_deaths_names_every_kind_of_fault() -> None:
    table = (CHECKOUT / "docs" / "failures.md").read_text(encoding="utf-8")
    assert [kind.value for kind in Kind if f"**{kind.value}**" not in table] == []
