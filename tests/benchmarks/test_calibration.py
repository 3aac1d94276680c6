from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fleets.calibration import delays, overheads, profile, worker_facts
from benchmarks.fleets.fidelity import Medians, Repetition, error, outside
from benchmarks.fleets.recorded import Window
from router.core.model.events import WorkerJoined, WorkerLoad
from sim.spec import Overheads
from tests.benchmarks.test_recorded import COST, FACTS, arrived, write


def test_what_is_spent_between_parts_is_measured(tmp_path: Path) -> None:
    joined = WorkerJoined(FACTS, WorkerLoad(), COST)
    found = overheads(write(tmp_path / "log", [(1.0, joined), (2.003, arrived(1, 2.0))]))
    assert found.receive_s == pytest.approx(0.003)
    assert found.store_s == Overheads().store_s, "no store call was seen"


def test_a_worker_is_simulated_as_it_announced_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "log", [(1.0, WorkerJoined(FACTS, WorkerLoad(), COST))])
    found = profile(worker_facts(path)["decode-0"], COST, 4096)
    assert (found.num_blocks, found.max_num_seqs, found.token_budget) == (100, 8, 256)


def repetition(number: int, live: float, recorded: float, fitted: float) -> Repetition:
    medians = [Medians(value, value / 10) for value in (live, recorded, fitted)]
    return Repetition(number, medians[0], medians[1], medians[2])


def test_errors_are_relative_and_leave_out_what_is_out_of_range() -> None:
    close = [repetition(1, 1.0, 1.01, 1.05), repetition(2, 1.1, 1.1, 1.0)]
    assert [error(close[0], name) for name in ("ttft_s", "tpot_s")] == [pytest.approx(0.01)] * 2
    assert outside(close, "ttft_s") == 0.0
    assert outside([repetition(1, 1.0, 1.0, 1.1)], "tpot_s") == pytest.approx(0.1)
    assert outside([repetition(1, 1.1, 1.0, 1.0)], "ttft_s") == pytest.approx(0.1)


def test_what_was_spent_outside_of_the_windows_does_not_count(tmp_path: Path) -> None:
    joined = WorkerJoined(FACTS, WorkerLoad(), COST)
    path = write(tmp_path / "log", [(1.0, joined), (2.003, arrived(1, 2.0)), (5.009, arrived(2, 5.0))])
    assert overheads(path, [Window(4.0, 6.0)]).receive_s == pytest.approx(0.009)


def test_each_delay_is_recorded_with_its_time(tmp_path: Path) -> None:
    joined = WorkerJoined(FACTS, WorkerLoad(), COST)
    path = write(tmp_path / "log", [(1.0, joined), (2.003, arrived(1, 2.0)), (5.009, arrived(2, 5.0))])
    found = delays(path)["receive"]
    assert [(each.at_s, each.lasted_s) for each in found] == [
        (2.0, pytest.approx(0.003)),
        (5.0, pytest.approx(0.009)),
    ]
    assert [each.at_s for each in delays(path, [Window(4.0, 6.0)])["receive"]] == [5.0]
