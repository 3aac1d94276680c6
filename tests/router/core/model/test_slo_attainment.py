"""A promise is kept when what was delivered is within it; what was not asked for cannot be broken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.model.actions import Marks, Outcome, Promise, RequestEnded, attained
from router.links.metrics import RouterMetrics, is_good
from scheduling.request import FinishReason, Path, SloClass

MS = st.none() | st.integers(1, 1000)
DELIVERED = st.floats(0.0, 2000.0)
PROMISE = Promise(50.0, 5.0, ttft_ms=100, tpot_ms=10, at_risk=False, itl_ms=40)
OUTCOME = Outcome(
    SloClass.STANDARD, PROMISE, Marks(0.0, 0.01, 0.05, 0.06, 1.0), has_tokens=True, prompt_tokens=1,
    cached_prompt_tokens=0, output_tokens=9, attempts=1, path=Path.AGGREGATED, tpot_s=0.009, max_gap_s=0.04,
    reasons=(FinishReason.EOS,), error="",
)  # fmt: skip


@given(MS, MS, MS, DELIVERED, st.none() | DELIVERED, DELIVERED)
def test_each_is_judged_by_its_own_limit(
    ttft: int | None, tpot: int | None, itl: int | None, first: float, pace: float | None, gap: float
) -> None:
    found = attained(Promise(0.0, 0.0, ttft, tpot, at_risk=False, itl_ms=itl), first, pace, gap)
    assert found.ttft == (ttft is None or first <= ttft)
    assert found.tpot == (tpot is None or pace is None or pace <= tpot)
    assert found.itl == (itl is None or gap <= itl)
    assert found.all == (found.ttft and found.tpot and found.itl)


def counted(outcome: Outcome) -> dict[tuple[str, str], float]:
    metrics = RouterMetrics()
    metrics.ended(RequestEnded("t/r/0", outcome))
    (family,) = metrics.promises.collect()
    return {
        (sample.labels["promise"], sample.labels["outcome"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def test_every_stated_promise_is_counted_by_what_became_of_it() -> None:
    assert counted(OUTCOME) == {("ttft", "kept"): 1, ("tpot", "kept"): 1, ("itl", "kept"): 1}
    late = replace(OUTCOME, max_gap_s=0.041)
    assert counted(late) == {("ttft", "kept"): 1, ("tpot", "kept"): 1, ("itl", "broken"): 1}
    assert is_good(OUTCOME)
    assert not is_good(late)


@pytest.mark.parametrize(
    "outcome",
    [
        replace(OUTCOME, promise=replace(PROMISE, at_risk=True)),
        replace(OUTCOME, promise=Promise(1.0, 1.0, None, None, at_risk=False)),
        replace(OUTCOME, reasons=(FinishReason.CANCELLED,)),
    ],
)
def test_unpromised_or_cancelled_requests_are_not_counted(outcome: Outcome) -> None:
    assert counted(outcome) == {}
