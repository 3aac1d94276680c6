"""The pure parts of measuring claims, and one small run through all of it."""

from __future__ import annotations

import math
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.claims import overload, refusals, slow_spell
from benchmarks.claims.cells import cell, estimate, grid
from benchmarks.claims.classes import EDF, OURS, promises, shares
from benchmarks.claims.grid import FIXED, SLACK, Contest, section
from benchmarks.claims.lab import Settings, highest
from benchmarks.claims.overload import DECILES, Figures, figures
from benchmarks.claims.paths import AGGREGATED, arms, better, worst
from benchmarks.claims.play import Case, Played, SimArm, columns, good, goodput, play, trace_of
from benchmarks.claims.strict_itl import is_carried
from scheduling.admission.admission import Cause
from sim.commands.false_refusals import Counts, FalseRefusals
from sim.reporting.section import Goal, Section, markdown, ratios
from sim.result import End, RequestResult
from sim.workload import Promises
from sim.workloads.trace import TraceRequest

SETTINGS = Settings((1, 2))


def request(
    prompt: int = 100,
    output: int = 10,
    *,
    ttft_s: float | None = 0.1,
    tpot_s: float | None = 0.01,
    end: End = End.FINISHED,
    asked_ms: int | None = None,
) -> RequestResult:
    return RequestResult(
        TraceRequest(0.0, prompt, output, ttft_ms=asked_ms),
        end,
        ttft_s=ttft_s if end is End.FINISHED else None,
        tpot_s=tpot_s if end is End.FINISHED else None,
        promised_ttft_s=1.0 if end is End.FINISHED else None,
    )


def played(*requests: RequestResult, itl_p99_s: float = 0.01) -> Played:
    return columns(requests, 10.0, itl_p99_s)


# Searching


@given(st.floats(0.01, 1000), st.floats(0.05, 20))
def test_the_highest_rate_is_found_from_anywhere(limit: float, guess: float) -> None:
    found = highest(lambda rate: rate <= limit, guess, precision=0.02) if guess * 4096 > limit else limit
    if found:
        assert limit / 1.021 <= found <= limit
    else:
        assert guess / 2**11 > limit


def test_where_nothing_holds_the_highest_rate_is_none() -> None:
    assert highest(lambda _: False, 1.0) == 0.0


def test_a_search_that_never_fails_says_so_instead_of_going_on() -> None:
    with pytest.raises(ValueError, match="accepted: a guess closer"):
        highest(lambda _: True, 1.0)


@pytest.mark.parametrize(("guess", "precision"), [(0.0, 0.1), (1.0, 0.0), (-1.0, 0.1)])
def test_a_search_from_nothing_is_refused(guess: float, precision: float) -> None:
    with pytest.raises(ValueError, match="accepted: numbers above 0"):
        highest(lambda _: True, guess, precision=precision)


# Tables


def test_ratios_are_taken_seed_by_seed_without_zero_by_zero() -> None:
    assert ratios([1.0, 3.0, 0.0, 2.0], [2.0, 1.0, 0.0, 0.0]) == (0.5, 3.0, math.inf)


def test_a_goal_is_judged_by_the_median_and_shows_the_range() -> None:
    assert Goal("a", (0.9, 1.0, 0.96), 0.95).row() == ("a", "≥ 0.95", "0.96 (0.90 – 1.00)", "met")
    assert Goal("a", (0.9, 1.0, 0.94), 0.95).row()[-1] == "**missed**"
    assert Goal("a", (100.0,), 120, at_least=False, spec=".0f").row() == ("a", "≤ 120", "100", "met")


def test_a_goal_without_figures_is_missed() -> None:
    assert not Goal("a", (), 0.0).is_met
    assert not Goal("a", (), 1.0, at_least=False).is_met


def test_a_section_is_markdown_and_json() -> None:
    one = Section("t", "m", (Goal("c", (1.0, 3.0), 1.5),), (markdown(("x", "y"), [("a", "1")]),))
    assert one.markdown().splitlines()[-3:] == ["| x | y |", "| --- | ---: |", "| a | 1 |"]
    assert one.as_dict()["goals"] == [
        {"claim": "c", "bound": 1.5, "at_least": True, "figures": (1.0, 3.0), "is_met": True}
    ]


def test_seeds_are_stated_once_each() -> None:
    assert Settings((3, 1)).words == "120 s of Poisson arrivals, seeds 3, 1"
    for wrong in ((), (1, 1), (-1,)):
        with pytest.raises(ValueError, match="seeds are"):
            Settings(wrong)


# Slow spells


@pytest.mark.parametrize("spell", slow_spell.spells(random.Random(1)), ids=lambda one: one.name)
def test_after_a_slow_spell_an_idle_fleet_serves_all_in_time(spell: slow_spell.Spell) -> None:
    found = slow_spell.after(spell, seed=1)
    assert found.sent == 21
    assert (found.refused, found.broken, found.over_after_s) == (0, 0, 0.0)


# Cells


def test_a_grid_has_nine_cells_from_the_tightest_on() -> None:
    cells = grid("chat")
    asked = [(entry.promises.tpot_ms, entry.promises.ttft_ms) for entry in cells]
    assert len(set(asked)) == 9
    assert asked == sorted(asked, key=lambda pair: (pair[0] or 0, pair[1] or 0))
    assert cells[0].name == "chat, TPOT 1.5 D, TTFT 5 ×"


def test_more_is_carried_under_looser_promises_and_by_more_workers() -> None:
    tight, loose = (cell("chat", ratio, 10).promises.tpot_ms for ratio in (1.5, 5))
    assert estimate("chat", tight) < estimate("chat", loose) < estimate("chat", None)
    assert estimate("chat", tight, 4) == pytest.approx(4 * estimate("chat", tight))


# Judging runs


def test_a_good_request_keeps_both_promises_or_the_only_one() -> None:
    one = played(
        request(),
        request(ttft_s=0.3),
        request(tpot_s=0.05),
        request(tpot_s=None),
        request(end=End.REFUSED),
        request(end=End.UNFINISHED),
    )
    asked = Promises(200, 20)
    assert good(one, asked).tolist() == [True, False, False, True, False, False]
    assert good(one, Promises()).tolist() == [True, True, True, True, False, False]
    assert goodput(one, asked) == pytest.approx(0.2)


def test_a_carried_rate_keeps_gaps_and_queues_short() -> None:
    served = [request() for _ in range(200)]
    assert is_carried(played(*served), 10)
    assert not is_carried(played(*served), 9)
    assert not is_carried(played(*[request(ttft_s=2.1) for _ in range(200)]), 10)
    assert is_carried(played(*served, request(end=End.REFUSED)), 10)
    assert not is_carried(played(*served, *[request(end=End.REFUSED)] * 3), 10)
    assert not is_carried(played(*served, *[request(end=End.UNFINISHED)] * 300), 10)


def test_deciles_are_by_prompt_length_and_tokens_count_what_was_good() -> None:
    requests = [request(prompt=1000 - place, ttft_s=0.1 if place >= 50 else 9.0) for place in range(100)]
    found = figures(played(*requests), Promises(200, 20))
    assert found.deciles == (1.0,) * 5 + (0.0,) * 5
    assert len(found.deciles) == DECILES
    assert found.good_share == found.kept == 0.5
    assert found.tokens_per_s == pytest.approx(sum(1000 - place + 10 for place in range(50, 100)) / 10)


def test_where_nothing_was_promised_no_promise_was_broken() -> None:
    assert figures(played(*[request(end=End.REFUSED)] * DECILES), Promises(200, 20)).kept == 1.0


def test_each_class_is_judged_by_its_own_promise() -> None:
    asked = (("interactive", Promises(ttft_ms=50)), ("standard", Promises(ttft_ms=150)))
    one = played(
        *[request(asked_ms=50)] * 3, *[request(asked_ms=150)] * 2, request(asked_ms=150, end=End.REFUSED)
    )
    found = shares(one, asked)
    assert list(found.by_class) == pytest.approx([0, 2 / 3])
    assert found.good == pytest.approx(2 / 6)


def test_without_classes_the_same_requests_come_as_standard() -> None:
    asked = promises()
    case = Case(OURS, "mixed", 20.0, by_class=asked, span_s=10.0)
    plain = replace(case, arm=EDF, has_classes=False)
    ours, theirs = trace_of(case), trace_of(plain)
    assert {entry.slo_class for entry in ours} == {"interactive", "standard", "batch"}
    assert {entry.slo_class for entry in theirs} == {"standard"}
    assert [(entry.at_s, entry.ttft_ms, entry.tpot_ms) for entry in ours] == [
        (entry.at_s, entry.ttft_ms, entry.tpot_ms) for entry in theirs
    ]
    for entry in ours:
        assert (entry.ttft_ms, entry.tpot_ms) == next(
            (two.ttft_ms, two.tpot_ms) for name, two in asked if name == entry.slo_class
        )


def test_waiting_at_a_worker_is_waiting_too() -> None:
    short, long = played(request(prompt=100, ttft_s=2.0), request(prompt=8000, ttft_s=2.0)).queue
    assert 1.7 < long < short < 2.0


def test_false_refusals_are_a_goal_wherever_anybody_was_refused() -> None:
    by_cause = {"own promise": Counts(20, 3, 1), Cause.LENGTHS.value: Counts(5, 5, 0)}
    ones = [
        FalseRefusals(25, 0.32, -0.5, 0.04, 0.1, by_cause),
        FalseRefusals(20, 0.0, -0.1, 0.25, 0.0, {"own promise": Counts(20, 0, 5)}),
    ]
    made = refusals.section({("chat", 1.5): ones, ("mixed", 1.5): []}, SETTINGS)
    (goal,) = made.goals
    assert goal.figures == (0.1, -0.25)
    assert goal.is_met
    assert "own promise: 3 of 40, placebos 6" in made.tables[0]


def test_a_peak_that_is_not_reached_yet_is_no_collapse() -> None:
    runs = {
        ("chat", arm, load): [Figures(10 * load, 100 * load, 1.0, 0.0, 1.0, (1.0,) * DECILES)]
        for arm in (overload.SLACK, overload.FCFS)
        for load in overload.LOADS
    }
    goals = overload.section(runs, {"chat": 5.0}, SETTINGS).goals
    assert all(goal.is_met for goal in goals)
    runs["chat", overload.SLACK, 1.5] = [Figures(11.0, 110.0, 1.0, 0.0, 1.0, (1.0,) * DECILES)]
    missed = [goal for goal in overload.section(runs, {"chat": 5.0}, SETTINGS).goals if not goal.is_met]
    assert [goal.claim for goal in missed] == [
        "chat: good requests/s at 1.5 × capacity / peak",
        "chat: good tokens/s at 1.5 × capacity / peak",
    ]


# Comparing arms


def contest(**slack: list[float]) -> Contest:
    one = grid("chat")[0]
    others = {(arm, rate): [1.0, 1.0] for arm in FIXED for rate in (4.0, 5.0)}
    peak = {(FIXED[1], 4.0): [2.0, 4.0], (FIXED[1], 5.0): [1.0, 0.0]}
    return Contest(one, others | peak | {(SLACK, 4.0): slack["at"], (SLACK, 5.0): slack["beyond"]})


def test_slack_is_compared_with_the_best_arm_at_its_peak() -> None:
    one = contest(at=[3.0, 3.0], beyond=[4.0, 4.0])
    assert one.best == (FIXED[1], 4.0)
    assert one.to_best(4.0) == (1.5, 0.75)
    assert one.to_best(5.0) == (2.0, 1.0)
    assert one.to_arm(FIXED[0], 4.0) == (3.0, 3.0)
    assert one.peak(SLACK) == (4.0, 4.0)


def test_the_grid_tells_its_worst_cell_and_a_mean_for_each_budget() -> None:
    found = section([contest(at=[1.5, 3.0], beyond=[4.0, 4.0])], SETTINGS)
    assert found.goals[0].figures == (0.75, 0.75)
    assert found.goals[0].is_met is False
    assert len(found.goals) == 2 + 3 * len(FIXED)
    beyond = next(goal for goal in found.goals if f"{FIXED[1].name}, same rate, beyond" in goal.claim)
    assert beyond.figures == pytest.approx((4.0, 10.0))


def test_conditional_is_held_against_the_better_at_its_worst_load() -> None:
    one = grid("chat")[0]
    disaggregated, conditional = arms("2p2d")
    goodputs = {
        (one, share, arm): figures
        for share in (0.6, 0.8, 1.0)
        for arm, figures in (
            (AGGREGATED, [4.0, 4.0]),
            (disaggregated, [2.0, 2.0] if share < 1 else [8.0, 8.0]),
            (conditional, [4.0, 4.0]),
        )
    }
    assert better(goodputs, one, 0.6, "2p2d") == AGGREGATED
    assert better(goodputs, one, 1.0, "2p2d") == disaggregated
    assert worst(goodputs, one, "2p2d") == (1.0, (0.5, 0.5))


# All of it


@pytest.mark.parametrize("arm", [SimArm("slack"), SimArm("chunked", 512), EDF], ids=lambda arm: arm.name)
def test_a_case_travels_to_another_process_and_is_played_the_same(arm: SimArm) -> None:
    asked = cell("mixed", 5, 25).promises
    case = pickle.loads(pickle.dumps(Case(arm, "mixed", 2.0, asked, span_s=10.0)))
    one, other = play(case), play(case)
    assert len(one.ttft) == len(trace_of(case)) - int(len(trace_of(case)) * 0.1)
    np.testing.assert_array_equal(one.ttft, other.ttft)
    assert good(one, asked).tolist() == one.met_own.tolist()
