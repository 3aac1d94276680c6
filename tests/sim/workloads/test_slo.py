from __future__ import annotations

import math

import pytest

from sim.workloads.slo import References


def test_promises_are_ratios_of_the_references() -> None:
    references = References(decode_step_s=0.008, prefill_s=0.05)
    assert (references.ttft_ms(5.0), references.tpot_ms(2.5)) == (250, 20)


def test_a_promise_is_never_below_a_millisecond() -> None:
    assert References(1e-5, 1e-5).tpot_ms(1.5) == 1


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match=r"the TTFT ratio is .*; accepted: a finite number above 0"):
        References(0.01, 0.01).ttft_ms(ratio)


def test_a_reference_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="prefill_s is 0"):
        References(0.01, 0.0)
