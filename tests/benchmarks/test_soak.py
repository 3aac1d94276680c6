"""A soak reports its figures, and judges the ones that have a goal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.crowds.compilers import compilers
from benchmarks.crowds.crowd import Outcome
from benchmarks.crowds.soak import (
    STANDSTILL_GOAL_MS,
    ProcessReport,
    Rate,
    Report,
    Setting,
    measure,
    rate_of,
    section,
)
from sim.reporting.section import Section
from tests.fleets import DEMO_MODEL

MINUTES_10 = 600.0


def soaked(
    process: ProcessReport, outcome: Outcome, *, seconds: float = MINUTES_10, num_compilers: int = 0
) -> Section:
    setting = Setting(Path("model"), rate=1.0, seconds=seconds, num_compilers=num_compilers)
    fine = Report(1, {"chat": Outcome(sent=1, finished=1)}, {"router-0": ProcessReport()})
    return section(setting, "", [fine, Report(2, {"chat": outcome}, {"router-0": process})])


def missed(told: Section) -> int:
    return sum(not goal.is_met for goal in told.goals)


def outcome(finished: int = 5, wrong_length: int = 0) -> Outcome:
    return Outcome(sent=5, finished=finished, wrong_length=wrong_length)


def test_a_run_in_which_nothing_grows_meets_all_goals() -> None:
    told = soaked(ProcessReport(standstill_ms=STANDSTILL_GOAL_MS, memory_growth=1.01), outcome())
    assert missed(told) == 0
    assert "| seed 2, chat | 5 / 5 |" in told.markdown()
    (_, report) = json.loads(json.dumps(told.as_dict()))["reports"]
    assert report["processes"]["router-0"]["memory_growth"] == 1.01


@pytest.mark.parametrize(
    ("process", "requests"),
    [
        (ProcessReport(standstill_ms=51.0), outcome()),
        (ProcessReport(memory_growth=1.2), outcome()),
        (ProcessReport(num_given_up=1), outcome()),
        (ProcessReport(), outcome(finished=4)),
        (ProcessReport(), outcome(wrong_length=1)),
    ],
)
def test_one_bad_run_of_two_misses_a_goal(process: ProcessReport, requests: Outcome) -> None:
    assert missed(soaked(process, requests)) == 1


def test_who_is_refused_as_unavailable_is_told_apart() -> None:
    refused = outcome(finished=4)
    refused.count("Unavailable: no decode worker is connected")
    assert missed(soaked(ProcessReport(), refused)) == 2


def test_beside_compilers_waits_for_a_core_are_nobodys_fault() -> None:
    waits = ProcessReport(standstill_ms=900.0, own_standstill_ms=20.0)
    assert missed(soaked(waits, outcome(finished=4), num_compilers=2)) == 0
    assert missed(soaked(ProcessReport(own_standstill_ms=51.0), outcome(), num_compilers=2)) == 1
    assert missed(soaked(ProcessReport(num_given_up=1), outcome(), num_compilers=2)) == 1


def test_memory_is_not_judged_while_caches_fill() -> None:
    assert missed(soaked(ProcessReport(memory_growth=1.5), outcome(), seconds=60.0)) == 0


def test_the_rate_is_what_both_workers_and_cores_carry() -> None:
    found = rate_of("h200-llama-3.1-8b", 60_000)
    assert 15 < found.planned_per_s < 30
    assert found.per_s == min(found.planned_per_s, found.machine_per_s)
    assert str(Rate(20.0, 10.0)).startswith("the 10.0/s that")
    assert str(Rate(20.0, 30.0)) == "the 20.0/s that the workers carry"


def test_compilers_end_with_the_block_and_with_who_began_them() -> None:
    with compilers(0) as told:
        assert told == ""
    script = (
        "import os\nimport benchmarks.crowds.compilers as c\n"
        "with c.compilers(2) as told:\n"
        "    print(told, flush=True)\n"
        "    {then}\n"
    )
    for then in ("pass", "os._exit(1)"):
        began = subprocess.run(
            [sys.executable, "-c", script.format(then=then)],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,  # the compilers hold its output open
        )
        assert began.stdout.startswith("2 × "), began.stderr


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.timeout(180)
async def test_a_short_soak_serves_all_and_reports_each_process(tmp_path: Path) -> None:
    setting = Setting(DEMO_MODEL, rate=8.0, seconds=4.0, num_blocks=4000, scale=0.1)
    began_s = time.monotonic()
    report = await measure(setting, 1, tmp_path / "run")
    assert {name: entry.finished for name, entry in report.outcomes.items()} == {
        name: entry.sent for name, entry in report.outcomes.items()
    }
    assert sum(entry.sent for entry in report.outcomes.values()) > 10
    assert set(report.processes) == {"redis", "router-0", "router-1", "prefill-0", "decode-0", "decode-1"}
    most_ms = 1000 * (time.monotonic() - began_s)
    for name, process in report.processes.items():
        assert process.memory_mb > 1
        if name != "redis":
            assert 0 < process.own_standstill_ms <= process.standstill_ms < most_ms
