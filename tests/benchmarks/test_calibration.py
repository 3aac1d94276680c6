from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.calibration import overheads, profile, worker_facts
from benchmarks.fidelity import Medians, Repetition, errors, inside
from router.events import WorkerJoined
from router.fleet import WorkerLoad
from sim.spec import Overheads
from tests.benchmarks.test_recorded import COST, FACTS, arrived, step, write


def test_what_is_spent_between_parts_is_measured(tmp_path: Path) -> None:
    busy = replace(step(1, 0), load=WorkerLoad(running=1))
    path = write(
        tmp_path / "log",
        [
            (1.0, WorkerJoined(FACTS, WorkerLoad(), COST)),
            (2.003, arrived(1, 2.0)),
            (3.0, busy),
            (3.012, busy),  # a step of 10 ms, and 2 ms around it
            (3.026, busy),
        ],
    )
    found = overheads(path)
    assert found.receive_s == pytest.approx(0.003)
    assert found.between_steps_s == pytest.approx(0.003)
    assert found.store_s == Overheads().store_s, "no store call was seen"


def test_a_worker_is_simulated_as_it_announced_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "log", [(1.0, WorkerJoined(FACTS, WorkerLoad(), COST))])
    found = profile(worker_facts(path)["decode-0"], COST, 4096)
    assert (found.num_blocks, found.max_num_seqs, found.token_budget) == (100, 8, 256)


def repetition(number: int, live: float, recorded: float, fitted: float) -> Repetition:
    return Repetition(number, *(Medians(value, value / 10) for value in (live, recorded, fitted)))


def test_bounds_hold_where_every_repetition_is_close() -> None:
    close = [repetition(1, 1.0, 1.01, 1.05), repetition(2, 1.1, 1.1, 1.0)]
    assert errors(close)[0] == (pytest.approx(0.01), pytest.approx(0.01))
    assert inside(close) == (2, 2)
    assert inside([*close, repetition(3, 1.0, 1.0, 0.9)]) == (2, 2)
