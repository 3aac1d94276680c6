"""How long a silence is borne: under a second where a worker is regular, longer where it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.links.failure_detector import (
    GAP_FACTOR,
    HALF_LIFE_TICKS,
    MAX_SILENT_TICKS,
    MAX_THRESHOLD_TICKS,
    MIN_THRESHOLD_TICKS,
    PROBE_TICKS,
    FailureDetector,
)
from router.links.ticker import TICK_S, Ticker

REGULAR = st.integers(0, MIN_THRESHOLD_TICKS // GAP_FACTOR)
"""Gaps of a worker that has its turn when it wants it."""


class Worker:
    """Speaks after given gaps; a tick that finds it silent for too long loses it."""

    def __init__(self) -> None:
        self.detector = FailureDetector()
        self.tick = 0
        self.detector.start_stream(0)
        self.detector.record_message(0)

    def is_borne(self, gap: int) -> bool:
        """Whether it is still there when it speaks after so many ticks."""
        for _ in range(gap):
            self.tick += 1
            if self.detector.is_lost(self.tick):
                self.detector.record_message(self.tick)
                return False
        self.detector.record_message(self.tick)
        return True

    def ticks_until_lost(self) -> int:
        since = self.tick
        while not self.detector.is_lost(self.tick):
            self.tick += 1
        return self.tick - since


@given(st.lists(REGULAR, max_size=200))
def test_a_regular_worker_that_stops_is_lost_within_a_second(gaps: list[int]) -> None:
    worker = Worker()
    assert all(worker.is_borne(gap) for gap in gaps)
    assert worker.ticks_until_lost() * TICK_S < 1.0


@given(gaps=st.lists(st.integers(0, 100), max_size=50))
def test_whatever_came_before_a_silence_is_not_borne_for_ever(gaps: list[int]) -> None:
    worker = Worker()
    for gap in gaps:
        worker.is_borne(gap)
    assert MIN_THRESHOLD_TICKS <= worker.ticks_until_lost() <= MAX_THRESHOLD_TICKS


@given(before=st.lists(REGULAR, max_size=20), gap=st.integers(1, MIN_THRESHOLD_TICKS - 1))
def test_a_tolerated_gap_may_come_again_almost_three_times_as_long(before: list[int], gap: int) -> None:
    worker = Worker()
    assert all(worker.is_borne(entry) for entry in before)
    assert worker.is_borne(gap)
    assert worker.is_borne(GAP_FACTOR * gap - 1)


def test_who_was_given_up_has_three_times_as_long_on_its_next_stream() -> None:
    worker = Worker()
    assert not worker.is_borne(MIN_THRESHOLD_TICKS)
    worker.detector.start_stream(worker.tick + 1000)
    worker.detector.record_message(worker.tick + 1001)
    worker.tick += 1001
    assert worker.is_borne(GAP_FACTOR * MIN_THRESHOLD_TICKS - 1)


def test_a_large_gap_is_forgotten_while_the_worker_is_regular() -> None:
    worker = Worker()
    largest = MIN_THRESHOLD_TICKS - 1
    assert worker.is_borne(largest)
    num_beats = HALF_LIFE_TICKS // 2
    assert all(worker.is_borne(2) for _ in range(num_beats))
    assert worker.detector.threshold == pytest.approx(GAP_FACTOR * largest / 2)
    assert all(worker.is_borne(2) for _ in range(num_beats))
    assert worker.ticks_until_lost() == MIN_THRESHOLD_TICKS


def test_the_first_word_of_a_stream_may_take_longer_and_is_no_gap() -> None:
    detector = FailureDetector()
    detector.start_stream(100)
    assert not detector.is_lost(100 + MAX_THRESHOLD_TICKS - 1)
    assert detector.is_lost(100 + MAX_THRESHOLD_TICKS)
    detector.record_message(100 + MAX_THRESHOLD_TICKS)
    assert detector.threshold == MIN_THRESHOLD_TICKS


@given(st.lists(st.floats(0, 60), max_size=MIN_THRESHOLD_TICKS - 1))
def test_a_router_that_stood_still_blames_nobody(late_s: list[float]) -> None:
    ticker, detector = Ticker(), FailureDetector()
    detector.start_stream(ticker.num_ticks)
    detector.record_message(ticker.num_ticks)
    for seconds in late_s:
        ticker.record(seconds)
        assert not detector.is_lost(ticker.num_ticks)


def test_a_silent_worker_is_asked_long_before_it_is_lost() -> None:
    worker = Worker()
    asked = [tick for tick in range(MIN_THRESHOLD_TICKS) if worker.detector.should_probe(tick)]
    assert asked == list(range(PROBE_TICKS, MIN_THRESHOLD_TICKS))


@given(
    gaps=st.lists(REGULAR, max_size=50),
    excuses=st.lists(st.integers(PROBE_TICKS, MIN_THRESHOLD_TICKS - 1), min_size=1, max_size=8),
)
def test_a_worker_that_is_excused_is_given_the_same_time_again(gaps: list[int], excuses: list[int]) -> None:
    worker = Worker()
    assert all(worker.is_borne(gap) for gap in gaps)
    for after in excuses:
        for _ in range(after):
            worker.tick += 1
            assert not worker.detector.is_lost(worker.tick)
        worker.detector.excuse(worker.tick)
    assert worker.ticks_until_lost() == MIN_THRESHOLD_TICKS
    worker.detector.record_message(worker.tick)
    assert worker.detector.threshold == pytest.approx(GAP_FACTOR * MIN_THRESHOLD_TICKS), (
        "the excused part is no gap of its own"
    )


def test_a_worker_that_says_nothing_is_not_excused_for_ever() -> None:
    worker = Worker()
    while not worker.detector.is_lost(worker.tick):
        worker.tick += 1
        worker.detector.excuse(worker.tick)
    assert worker.tick == MAX_SILENT_TICKS
