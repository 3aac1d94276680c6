"""How runs add up."""

from __future__ import annotations

import random
from pathlib import Path

from rich.console import Console

from tests.chaos.leaks import WARM_RESTS, Gauges, Growth
from tests.chaos.plan import ALL, pair_cell
from tests.chaos.streams import Course, Outcome, asks
from tests.chaos.tally import Tally
from tests.chaos.watch import Hit


def _course(request_id: str, outcome: Outcome) -> Course:
    ask = asks(random.Random(1), 1)[0]
    return Course(ask, request_id, token_times=[1.0, 4.0], outcome=outcome, why="gone")


def test_a_tally_adds_up_over_runs(tmp_path: Path) -> None:
    one = Tally(minutes=1.5, runs=[{"seed": 1}])
    one.add_strike(ALL[0], Hit("a", "router-0", at=2.0))
    one.add_strike(ALL[-1], Hit("a", "decode-0", at=3.0))
    one.add_effect(ALL[-1], is_seen=True)
    one.add_effect(ALL[0], is_seen=False)
    one.again["soon"] += 1
    one.add_stream(_course("a", Outcome.LOST), "seed 1")
    assert one.pairs == {pair_cell(ALL[0], ALL[-1]): 1}
    by_http = _course("b", Outcome.SAME)
    by_http.by_http, by_http.lost_gateways = True, 1
    one.add_stream(by_http, "seed 1")
    one.add_leaks({"blocks of decode-0": 3}, "seed 1")
    one.add_death("decode-1", 1, in_need=False, told="Traceback")
    one.add_death("decode-1", -6, in_need=True, told="no memory")
    path = tmp_path / "tally.json"
    one.save(path)
    two = Tally.load(path)
    assert two == one
    assert two.digest == one.digest != Tally().digest
    two.merge(Tally.load(path))
    assert two.streams == 4
    assert two.pairs == {pair_cell(ALL[-1], ALL[0]): 2}
    effects = {f"{ALL[-1].kind} of {ALL[-1].place}": 2}, {f"{ALL[0].kind} of {ALL[0].place}": 2}
    assert (two.seen, two.unseen, two.again) == (*effects, {"soon": 2})
    assert two.bad == 2 * len(("the lost stream", "the leak", "the death of no need"))
    assert two.minutes == 3.0
    assert two.runs == [{"seed": 1}, {"seed": 1}]
    assert two.recoveries[f"{ALL[0].kind} of {ALL[0].place}"] == {"2": 2}
    assert any(str(ALL[0]) in told for told in two.failures), "what struck it is told"
    assert Tally.load(tmp_path / "none yet") == Tally()
    with (tmp_path / "shown").open("w") as file:
        two.show(Console(file=file, width=200))
    assert two.http == {"streams": 2, "asked again": 2}
    shown = (tmp_path / "shown").read_text()
    assert "2 lost" in shown
    assert "pairs of kinds: 1 of " in shown


def test_growth_at_rest_is_a_leak_and_a_successor_starts_anew() -> None:
    growth = Growth()

    def look(pid: int, descriptors: float, memory: float) -> dict[str, float]:
        amounts = {"descriptors": descriptors, "tasks": 9.0, "threads": 12.0, "memory": memory}
        return growth.look("decode-0", Gauges(pid, amounts))

    for _ in range(WARM_RESTS):
        assert look(1, 30, 100.0) == {}
    assert look(1, 30, 104.0) == {}
    assert growth.flattest() == {"decode-0": 1.04}
    passing = Gauges(1, {"descriptors": 90.0, "tasks": 9.0, "threads": 12.0, "memory": 100.0})
    assert growth.grown("decode-0", passing) == {"descriptors of decode-0": 60}
    assert growth.flattest() == {"decode-0": 1.04}, "it is not taken in"
    assert look(1, 90, 120.0) == {"descriptors of decode-0": 60, "memory of decode-0": 20.0}
    assert look(2, 90, 500.0) == {}
