"""The results of two routers are printed as JSON, failures included."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.failures.crowd import Outcome
from benchmarks.failures.many_routers import Plan, Report, section
from benchmarks.failures.redis_watch import OrderFacts


def test_errors_of_all_clients_are_counted_and_told_as_json() -> None:
    outcome = Outcome(sent=3, finished=1)
    for refused in (1, 2):
        one = Outcome()
        for _ in range(refused):
            one.count("Overloaded: the queue is full")
        outcome.add(one)
    report = Report(1, outcome, OrderFacts(granted=3), (), (), {"router-0": 0.1})
    told = section(Plan(Path("model"), rate=1.0, seconds=1.0, scale=1.0), [report]).as_dict()
    (said,) = json.loads(json.dumps(told))["reports"]
    assert said["outcome"]["errors"] == {"Overloaded: the queue is full": 3}
