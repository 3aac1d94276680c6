"""How long a silence is borne: under a second where a worker is regular, longer where it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.links.failure_detector import (
    ASK_TICKS,
    GAPS,
    HALF_LIFE_TICKS,
    LEAST_TICKS,
    MOST_EXCUSED_TICKS,
    MOST_TICKS,
    FailureDetector,
)
from router.links.ticker import TICK_S, Ticker

REGULAR = st.integers(0, LEAST_TICKS // GAPS)
"""Gaps of a worker that has its turn when it wants it."""


class Worker:
    """Speaks after given gaps; a tick that finds it silent for too long loses it."""

    def __init__(self) -> None:
        self.silence = FailureDetector()
        self.tick = 0
        self.silence.begin(0)
        self.silence.heard(0)

    def is_borne(self, gap: int) -> bool:
        """Whether it is still there when it speaks after so many ticks."""
        for _ in range(gap):
            self.tick += 1
            if self.silence.is_too_long(self.tick):
                self.silence.heard(self.tick)
                return False
        self.silence.heard(self.tick)
        return True

    def ticks_until_lost(self) -> int:
        since = self.tick
        while not self.silence.is_too_long(self.tick):
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
    assert LEAST_TICKS <= worker.ticks_until_lost() <= MOST_TICKS


@given(before=st.lists(REGULAR, max_size=20), gap=st.integers(1, LEAST_TICKS - 1))
def test_a_gap_that_was_borne_may_come_again_and_be_almost_three_times_as_long(
    before: list[int], gap: int
) -> None:
    worker = Worker()
    assert all(worker.is_borne(one) for one in before)
    assert worker.is_borne(gap)
    assert worker.is_borne(GAPS * gap - 1)


def test_who_was_given_up_has_three_times_as_long_on_its_next_stream() -> None:
    worker = Worker()
    assert not worker.is_borne(LEAST_TICKS)
    worker.silence.begin(worker.tick + 1000)
    worker.silence.heard(worker.tick + 1001)
    worker.tick += 1001
    assert worker.is_borne(GAPS * LEAST_TICKS - 1)


def test_a_large_gap_is_forgotten_while_the_worker_is_regular() -> None:
    worker = Worker()
    largest = LEAST_TICKS - 1
    assert worker.is_borne(largest)
    num_beats = HALF_LIFE_TICKS // 2
    assert all(worker.is_borne(2) for _ in range(num_beats))
    assert worker.silence.bound == pytest.approx(GAPS * largest / 2)
    assert all(worker.is_borne(2) for _ in range(num_beats))
    assert worker.ticks_until_lost() == LEAST_TICKS


def test_the_first_word_of_a_stream_may_take_longer_and_is_no_gap() -> None:
    silence = FailureDetector()
    silence.begin(100)
    assert not silence.is_too_long(100 + MOST_TICKS - 1)
    assert silence.is_too_long(100 + MOST_TICKS)
    silence.heard(100 + MOST_TICKS)
    assert silence.bound == LEAST_TICKS


@given(st.lists(st.floats(0, 60), max_size=LEAST_TICKS - 1))
def test_a_router_that_stood_still_blames_nobody(late_s: list[float]) -> None:
    ticker, silence = Ticker(), FailureDetector()
    silence.begin(ticker.num_ticks)
    silence.heard(ticker.num_ticks)
    for one in late_s:
        ticker.take(one)
        assert not silence.is_too_long(ticker.num_ticks)


def test_a_silent_worker_is_asked_long_before_it_is_lost() -> None:
    worker = Worker()
    asked = [tick for tick in range(LEAST_TICKS) if worker.silence.is_to_be_asked(tick)]
    assert asked == list(range(ASK_TICKS, LEAST_TICKS))


@given(
    gaps=st.lists(REGULAR, max_size=50),
    excuses=st.lists(st.integers(ASK_TICKS, LEAST_TICKS - 1), min_size=1, max_size=8),
)
def test_a_worker_that_is_excused_is_given_the_same_time_again(gaps: list[int], excuses: list[int]) -> None:
    worker = Worker()
    assert all(worker.is_borne(gap) for gap in gaps)
    for after in excuses:
        for _ in range(after):
            worker.tick += 1
            assert not worker.silence.is_too_long(worker.tick)
        worker.silence.excuse(worker.tick)
    assert worker.ticks_until_lost() == LEAST_TICKS
    worker.silence.heard(worker.tick)
    assert worker.silence.bound == pytest.approx(GAPS * LEAST_TICKS), "the excused part is no gap of its own"


def test_a_worker_that_says_nothing_is_not_excused_for_ever() -> None:
    worker = Worker()
    while not worker.silence.is_too_long(worker.tick):
        worker.tick += 1
        worker.silence.excuse(worker.tick)
    assert worker.tick == MOST_EXCUSED_TICKS
