"""Coverage adds up, and says what was never seen."""

from __future__ import annotations

import pickle
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from router.core.model import actions, events
from scheduling.request import FailureReason
from tests.dst.coverage import (
    PROBES,
    ROLES_OF,
    Coverage,
    all_pairs,
    all_strikes,
    covered,
    missing_pairs,
    missing_probes,
    missing_strikes,
    print_coverage,
    summary,
)
from tests.dst.nodes.client import Heard
from tests.dst.promises import Broken
from tests.dst.run import Outcome, play, virtual
from tests.dst.scenario import KINDS, PHASES, Fault, Request, Scenario, draw, struck_by

counts = st.dictionaries(st.sampled_from(all_strikes()), st.integers(1, 5), max_size=4).map(Counter)
coverages = st.builds(
    Coverage,
    runs=st.integers(0, 9),
    broken=st.integers(0, 9),
    simulated_s=st.integers(0, 99).map(float),
    struck=counts,
    pairs=st.dictionaries(st.sampled_from(all_pairs()), st.integers(1, 5), max_size=4).map(Counter),
    probes=st.dictionaries(st.sampled_from(PROBES), st.integers(1, 5), max_size=4).map(Counter),
)


@given(coverages, coverages, coverages)
def test_coverages_add_up_in_any_order(one: Coverage, other: Coverage, third: Coverage) -> None:
    assert one + other == other + one
    assert (one + other) + third == one + (other + third)
    assert one + Coverage() == one
    assert pickle.loads(pickle.dumps(one)) == one


@given(coverages)
def test_what_was_seen_is_not_missing(coverage: Coverage) -> None:
    assert set(missing_strikes(coverage)) == set(all_strikes()) - set(coverage.struck)
    assert set(missing_pairs(coverage)) == set(all_pairs()) - set(coverage.pairs)
    assert set(missing_probes(coverage)) == set(PROBES) - set(coverage.probes)


def test_runs_count_with_what_came_of_their_calls() -> None:
    done = Heard("q0", (3,), 1, 1, 0.0, ended_at=1.0, resumes=2)
    failed = Heard("q1", (3,), 1, 1, 0.0, ended_at=1.0, error="Unavailable")
    left = Heard("q2", (3,), 1, 1, 0.0, ended_at=1.0, was_left=True)
    outcome = Outcome(
        Scenario(1),
        broken=Broken("a promise", "found"),
        simulated_s=3.0,
        struck=Counter({("kill", "router", "decode"): 1}),
        calls=[done, failed, left],
    )
    coverage = covered([outcome, Outcome(Scenario(2), simulated_s=2.0)])
    assert (coverage.runs, coverage.broken, coverage.simulated_s) == (2, 1, 5.0)
    assert coverage.probes == {"call completed": 1, "call failed": 1, "call left": 1, "call resumed": 1}
    assert ("kill", "router", "decode") not in missing_strikes(coverage)


def test_every_kind_of_fault_has_roles_that_it_can_strike() -> None:
    assert set(ROLES_OF) == set(KINDS)
    for seed in range(300):
        for fault in draw(seed).faults:
            if fault.kind != "island":
                assert struck_by(fault) in ROLES_OF[fault.kind]


def test_probes_name_what_can_happen() -> None:
    kinds = {*dir(actions), *dir(events)}
    reasons = {f"failed: {reason.name}" for reason in FailureReason}
    assert {probe for probe in PROBES if not probe.startswith("call ")} <= kinds | reasons


def test_two_faults_of_one_run_are_a_pair_in_the_later_ones_phase() -> None:
    scenario = Scenario(
        3,
        requests=(Request("q0", 0, 0.8, prompt_tokens=8, max_tokens=8),),
        faults=(
            Fault("slow", "r0", "d0", at=0.2, lasts_s=0.1),
            Fault("jump", "d1", upon=("q0", "decode")),
            Fault("stop", "p0", upon=("q0", "ended"), lasts_s=0.1),
        ),
    )
    with virtual():
        outcome = play(scenario)
    assert outcome.broken is None
    assert outcome.struck == {
        ("slow", "decode–router", "none"): 1,
        ("jump", "decode", "decode"): 1,
        ("stop", "prefill", "ended"): 1,
    }
    assert outcome.pairs == {
        ("jump", "slow", "decode"): 1,
        ("slow", "stop", "ended"): 1,
        ("jump", "stop", "ended"): 1,
    }


def test_the_table_names_what_was_never_seen() -> None:
    seen = [strike for strike in all_strikes() if strike != ("drain", "decode", "handoff")]
    probes = Counter(set(PROBES) - {"TakeHolds"})
    coverage = Coverage(4, 1, 7200.0, Counter(seen), Counter(all_pairs()), probes)
    console = Console(record=True, width=140)
    print_coverage(console, coverage)
    lines = console.export_text().splitlines()
    assert "faults never seen: drain decode handoff" in lines
    assert "pairs of faults never seen: none" in lines
    assert "probes never seen: TakeHolds" in lines
    assert lines[-1] == summary(coverage)
    assert f"{len(seen)} of {len(all_strikes())} fault × role × phase" in summary(coverage)
    assert "2.00 simulated hours" in summary(coverage)
    (row,) = [line for line in lines if line.startswith("│ drain     │ decode ")]
    assert row.split("│")[3:][PHASES.index("handoff")].strip() == "0"
