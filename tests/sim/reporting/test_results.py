from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from baton import Slo
from benchmarks.doors.metrics import RequestRecord, summarise
from sim.reporting.results import Results, Run, StepSample, Summary, capacity, paired_ratios, read, write
from sim.reporting.tables import cell, print_results, ratio_rows, table_rows


def summary(good: int, total: int = 10) -> Summary:
    """`total` requests, one a second, of which `good` met their SLO."""
    records = []
    for place in range(total):
        one = RequestRecord(float(place), 10, 2, Slo(ttft_ms=1000))
        one.token_times = [place + 0.5, place + 0.6]
        one.finished_at, one.ttft_s, one.tpot_s = place + 0.6, 0.5 if place < good else 2.0, 0.1
        records.append(one)
    return summarise(records, warmup_share=0.0)


def results() -> Results:
    runs = [
        Run("ours", 1.0, 1, summary(10), 7.0, 9.0, (0.5,), (0.1,), (StepSample(0.1, 0.01, "d-0", 3, 64),)),
        Run("ours", 1.0, 2, summary(8)),
        Run("theirs", 1.0, 2, summary(4)),
        Run("theirs", 1.0, 1, summary(10)),
        Run("ours", 2.0, 1, summary(5)),
    ]
    return Results("chat", {"commit": "abc"}, tuple(runs))


def test_ratios_are_paired_by_seed() -> None:
    assert paired_ratios(results(), "goodput_per_s", "ours", "theirs", 1.0) == [1.0, 2.0]


def test_a_seed_without_a_figure_on_either_side_has_no_ratio() -> None:
    none_good = dataclasses.replace(results(), runs=(*results().runs[:4], Run("x", 1.0, 2, summary(0))))
    assert paired_ratios(none_good, "goodput_per_s", "ours", "x", 1.0) == []


def test_capacity_is_the_highest_rate_that_nine_in_ten_survive() -> None:
    assert capacity(results(), "ours") == 1.0
    assert capacity(results(), "theirs") is None


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write(results(), tmp_path / "bench.json")
    assert read(json.loads((tmp_path / "bench.json").read_text())) == results()


@pytest.mark.parametrize("document", [{}, {"kind": "baton bench"}, {"kind": "other", "runs": []}])
def test_another_file_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"kind is|not the JSON"):
        read(document)


def test_tables_show_the_median_and_the_range() -> None:
    assert cell([3.0, 1.0, 2.0], spec=".1f") == "2.0 (1.0 – 3.0)"
    assert cell([2.0], spec=".0f") == "2"
    rows = dict(table_rows(results(), 1.0))
    assert rows["good, of those sent (%)"] == ["90.0 (80.0 – 100.0)", "70.0 (40.0 – 100.0)"]
    assert dict(ratio_rows(results(), 1.0))["good"] == ["0.75 (0.50 – 1.00)"]


def test_a_title_stays_on_one_line_however_narrow_its_table() -> None:
    console = Console(file=io.StringIO(), width=40)
    found = dataclasses.replace(results(), title="chat on h200-llama-3.1-8b, policies side by side")
    print_results(console, found)
    assert isinstance(console.file, io.StringIO)
    assert f"{found.title} at 1 requests/s\n" in console.file.getvalue()
