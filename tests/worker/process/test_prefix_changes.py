"""The prefix directory ends up with what a tier has, at a cost that does not grow with it."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tests.growth import MOST_GROWTH, growth
from worker.process.prefix_changes import PrefixChanges

hashes = st.integers(0, 4).map(lambda number: bytes([number]))
news = st.lists(
    st.tuples(
        st.lists(hashes, max_size=3), st.lists(hashes, max_size=3), st.sampled_from(["", "take", "lose"])
    ),
    max_size=12,
)


@given(news)
def test_the_directory_ends_up_with_what_is_held(steps: list[tuple[list[bytes], list[bytes], str]]) -> None:
    told = PrefixChanges()
    held: set[bytes] = set()
    directory: set[bytes] = set()
    for added, removed, what in steps:
        gone = [block_hash for block_hash in removed if block_hash not in added]
        told.note(added, gone)
        held = (held | set(added)) - set(gone)
        if what == "lose":
            directory.clear()
            told.announce_all_again()
        elif what == "take":
            now, no_more = told.take(1000)
            assert not set(now) & directory, "told twice"
            directory = (directory | set(now)) - set(no_more)
            assert directory == held
    now, no_more = told.take(1000)
    assert (directory | set(now)) - set(no_more) == held


def test_a_renewal_costs_what_changed_and_not_what_is_there() -> None:
    def prepare(num_cached: int) -> Callable[[], object]:
        told = PrefixChanges()
        told.note(_hashes(0, num_cached), [])
        told.take(num_cached)
        told.note(_hashes(num_cached, num_cached + 200), _hashes(0, 200))
        return lambda: told.take(1000)

    assert growth(prepare) < MOST_GROWTH


def test_to_announce_all_again_costs_the_same_for_any_number() -> None:
    def prepare(num_blocks: int) -> Callable[[], object]:
        told = PrefixChanges()
        told.note(_hashes(0, 2 * num_blocks), [])
        told.take(num_blocks)

        def again() -> None:
            told.announce_all_again()
            told.note(_hashes(0, 10), _hashes(10, 20))
            told.take(100)

        return again

    assert growth(prepare) < MOST_GROWTH


def test_what_was_not_announced_yet_survives_a_lost_directory() -> None:
    told = PrefixChanges()
    told.note(_hashes(0, 10), [])
    told.take(4)
    told.announce_all_again()
    told.take(3)
    told.announce_all_again()
    added, removed = told.take(1000)
    assert sorted(added) == _hashes(0, 10)
    assert removed == []


def _hashes(first: int, end: int) -> list[bytes]:
    return [number.to_bytes(16) for number in range(first, end)]
