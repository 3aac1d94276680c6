"""Runs on all cores: results by key, arrivals of all processes, and failures."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from sim.play.all_cores import on_all_cores
from tests.patience import PATIENCE_S


def square(number: int, arrived: Callable[[], None]) -> int:
    for _ in range(number):
        arrived()
    return number * number


def fail(arrived: Callable[[], None]) -> int:
    arrived()
    raise ValueError("this run cannot be played")


def test_each_task_gives_its_result_and_counts_its_arrivals() -> None:
    counts: list[int] = []
    results = dict(on_all_cores(((n, partial(square, n)) for n in range(20)), counts.append))
    assert results == {n: n * n for n in range(20)}
    assert sum(counts) == sum(range(20))


def test_tasks_are_asked_for_when_they_can_begin() -> None:
    num_asked = 0

    def tasks() -> Iterator[tuple[int, Callable[[Callable[[], None]], int]]]:
        nonlocal num_asked
        for n in range(1000):
            num_asked += 1
            yield n, partial(square, n)

    results = on_all_cores(tasks())
    next(results)
    assert num_asked < 1000
    results.close()


def test_the_first_failure_is_raised_and_the_processes_end() -> None:
    others = set(multiprocessing.active_children())
    with pytest.raises(ValueError, match="this run cannot be played"):
        list(on_all_cores([(0, fail)]))
    deadline = time.monotonic() + PATIENCE_S
    while set(multiprocessing.active_children()) - others:
        assert time.monotonic() < deadline
        time.sleep(0.01)
