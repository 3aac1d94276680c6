"""Links are expected to be as fast as they were lately, and measurements are forgotten in time."""

from __future__ import annotations

import pytest

from kvtransfer.receiving.links import ASSUMED_BYTES_PER_S, ASSUMED_WAIT_S, FORGET_S, MOST_SOURCES, Links

BLOCK_BYTES = 1_000_000
ASSUMED_BLOCK_S = BLOCK_BYTES / ASSUMED_BYTES_PER_S


class Scene(Links):
    """Links with a clock of their own."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(BLOCK_BYTES, lambda: self.now)

    def fetched(self, source: str, num_blocks: int, wait_s: float, block_s: float, times: int = 1) -> None:
        for _ in range(times):
            fetch = self.begin(source, num_blocks)
            self.now += wait_s + num_blocks * block_s
            self.end(fetch, num_blocks, wait_s)


def test_a_new_link_is_taken_for_a_fast_one() -> None:
    links = Scene()
    assert links.fetch_s("a", 10) == pytest.approx(ASSUMED_WAIT_S + 10 * ASSUMED_BLOCK_S)
    assert links.state().by_source == {}


def test_the_speed_of_the_last_fetches_is_expected() -> None:
    links = Scene()
    links.fetched("a", 50, 0.2, 0.05, times=20)
    assert links.fetch_s("a", 10) == pytest.approx(0.2 + 10 * 0.05, rel=0.01)
    state = links.state()
    assert state.by_source["a"] == pytest.approx((0.2, 0.05), rel=0.01)
    assert (state.wait_s, state.block_s) == pytest.approx((0.2, 0.05), rel=0.01)


def test_each_link_has_its_own_speed() -> None:
    links = Scene()
    for _ in range(20):
        links.fetched("near", 50, 0.001, 0.001)
        links.fetched("far", 5, 0.1, 0.1)
    assert links.fetch_s("near", 10) == pytest.approx(0.011, rel=0.01)
    assert links.fetch_s("far", 10) == pytest.approx(1.1, rel=0.05)


def test_a_link_that_brings_nothing_makes_no_other_slow() -> None:
    links = Scene()
    fetch = links.begin("hangs", 10)
    links.now += 1.0
    links.end(fetch, 0, 1.0)
    assert links.fetch_s("hangs", 1) > 0.5
    assert links.fetch_s("other", 1) == pytest.approx(ASSUMED_WAIT_S + ASSUMED_BLOCK_S)


def test_a_fetch_that_was_refused_changes_nothing() -> None:
    links = Scene()
    fetch = links.begin("a", 10)
    links.now += 1.0
    links.cancel(fetch)
    assert links.fetch_s("a", 1) == pytest.approx(ASSUMED_WAIT_S + ASSUMED_BLOCK_S)


def test_what_was_measured_is_forgotten_in_time() -> None:
    links = Scene()
    links.fetched("a", 5, 1.0, 1.0)
    links.now += FORGET_S + 1
    assert links.fetch_s("a", 1) == pytest.approx(ASSUMED_WAIT_S + ASSUMED_BLOCK_S)
    assert links.state().by_source == {}


def test_fetches_under_way_share_the_link() -> None:
    links = Scene()
    fetch = links.begin("a", 100)
    busy_s = links.fetch_s("b", 10)
    assert busy_s == pytest.approx(ASSUMED_WAIT_S + 110 * ASSUMED_BLOCK_S)
    links.cancel(fetch)
    assert links.fetch_s("b", 10) < busy_s


def test_while_a_fetch_hangs_no_other_is_expected_to_be_faster() -> None:
    links = Scene()
    links.begin("a", 1)
    links.now += 5.0
    assert links.fetch_s("b", 1) > 4.9


def test_few_sources_are_remembered() -> None:
    links = Scene()
    for number in range(3 * MOST_SOURCES):
        links.fetched(f"s{number}", 5, 0.01, 0.01)
    assert list(links.state().by_source) == [
        f"s{number}" for number in range(2 * MOST_SOURCES, 3 * MOST_SOURCES)
    ]
