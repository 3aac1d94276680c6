from __future__ import annotations

import pytest

from baton import Slo
from benchmarks.doors.metrics import RequestRecord, summarise


def record(sent_at: float, **changes: object) -> RequestRecord:
    one = RequestRecord(sent_at, prompt_tokens=10, output_tokens=3)
    one.token_times = [sent_at + 1.0, sent_at + 1.5, sent_at + 2.5]
    one.finished_at = sent_at + 2.5
    one.ttft_s, one.tpot_s = 1.0, 0.75
    for name, value in changes.items():
        setattr(one, name, value)
    return one


def test_gaps_and_rates_follow_their_definitions() -> None:
    found = summarise([record(0.0), record(1.0)], warmup_share=0.0)
    assert found.itl is not None
    assert (found.itl.count, found.itl.mean) == (4, pytest.approx(0.75))
    assert found.duration_s == pytest.approx(3.5)
    assert found.output_tokens_per_s == pytest.approx(6 / 3.5)
    assert found.total_tokens_per_s == pytest.approx(26 / 3.5)


def test_goodput_counts_only_requests_that_met_every_stated_slo() -> None:
    records = [
        record(0.0, slo=Slo(ttft_ms=1000, tpot_ms=750)),
        record(0.0, slo=Slo(ttft_ms=900)),
        record(0.0, slo=Slo(tpot_ms=700)),
        record(0.0, error="broken"),
        record(0.0),
    ]
    found = summarise(records, warmup_share=0.0)
    assert found.goodput_per_s == pytest.approx(2 / 2.5)
    assert found.failed == 1


def test_nothing_is_good_or_bad_where_nothing_was_promised() -> None:
    found = summarise([record(0.0), record(1.0)], warmup_share=0.0)
    assert (found.goodput_per_s, found.good_share) == (None, None)
    assert summarise([record(0.0, slo=Slo(itl_ms=1000))], warmup_share=0.0).good_share == 1.0


def test_a_refusal_is_neither_completed_nor_a_broken_promise() -> None:
    refused = record(
        0.0, finished_at=None, ttft_s=None, slo=Slo(ttft_ms=1000), refused_after_s=0.01, token_times=[]
    )
    found = summarise([refused, record(0.0, slo=Slo(ttft_ms=1000))], warmup_share=0.0)
    assert (found.completed, found.refused, found.accepted_that_kept_ttft) == (1, 1, 1.0)


def test_the_first_tenth_is_dropped() -> None:
    assert summarise([record(float(i)) for i in range(20)]).requests == 18
