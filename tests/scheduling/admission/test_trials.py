"""An idle fleet tries again soon, and no failed trial speaks for a request that is easier."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.learnt import PAUSE_S, Trials
from scheduling.request import Slo

TOKENS = st.integers(1, 5000)
SLOS = st.builds(Slo, ttft_ms=st.none() | st.integers(1, 60_000))
LATER_S = st.integers(0, int(16 * PAUSE_S)).map(lambda eighths: eighths / 8)
"""Up to two pauses, in fractions that sums and differences of floats keep exactly."""


@given(TOKENS, SLOS, st.lists(st.tuples(TOKENS, SLOS, LATER_S), max_size=10))
def test_whoever_waits_as_long_as_told_may_be_tried(
    tokens: int, slo: Slo, failed: list[tuple[int, Slo, float]]
) -> None:
    trials, now = Trials(), 0.0
    assert trials.wait_s(tokens, slo, now) == 0
    for more, theirs, later_s in failed:
        trials.begin(more, theirs, now)
        now += later_s
    wait_s = trials.wait_s(tokens, slo, now)
    assert wait_s <= PAUSE_S
    assert trials.wait_s(tokens, slo, now + wait_s) == 0


def test_a_failed_trial_holds_back_what_is_no_easier() -> None:
    trials = Trials()
    trials.begin(100, Slo(ttft_ms=500), 0.0)
    assert trials.wait_s(100, Slo(ttft_ms=500), 1.0) == PAUSE_S - 1.0
    assert trials.wait_s(2000, Slo(ttft_ms=20), 1.0) == PAUSE_S - 1.0
    assert trials.wait_s(99, Slo(ttft_ms=500), 1.0) == 0
    assert trials.wait_s(100, Slo(ttft_ms=501), 1.0) == 0
    assert trials.wait_s(100, Slo(tpot_ms=1), 1.0) == 0


def test_after_a_trial_that_went_well_the_next_may_begin_at_once() -> None:
    trials = Trials()
    trials.begin(100, Slo(ttft_ms=500), 0.0)
    trials.succeed()
    assert trials.wait_s(100, Slo(ttft_ms=500), 0.0) == 0
