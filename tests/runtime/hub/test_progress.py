"""Progress in words: bytes, rate and rest."""

from __future__ import annotations

import pytest

from runtime.hub.progress import Fetching, Rate, in_words


@pytest.mark.parametrize(
    ("done", "bytes_per_s", "words"),
    [
        (0, 0.0, "downloading"),
        (10**9, 24e6, "downloading at 24 MB/s, 83 s left"),
        (0, 2.5e6, "downloading at 2.5 MB/s, 20 min left"),
        (0, 1e5, "downloading at 0.1 MB/s, 8 h 20 min left"),
        (3 * 10**9, 24e6, "downloading"),
    ],
)
def test_rate_and_rest_are_told_once_they_are_known(done: int, bytes_per_s: float, words: str) -> None:
    assert in_words(Fetching("downloading", done, 3 * 10**9), bytes_per_s) == words


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.bytes_per_s == 0
    for second in range(100):
        rate.add(second, second * 10)
    for second in range(100, 120):
        rate.add(second, 1000 + (second - 100) * 70)
    assert rate.bytes_per_s == pytest.approx(70)


def test_a_part_that_is_fetched_again_does_not_make_the_rate_negative() -> None:
    rate = Rate()
    for second, done in enumerate((0, 500, 100, 200)):
        rate.add(second, done)
    assert rate.bytes_per_s == pytest.approx(100)
