"""The order of tokenising: short texts do not wait for long ones, and long ones are not passed forever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.preprocess.tokenizer_line import TokenizerLine

SHORT, LONG = 2_000, 2_000_000
SIZES = st.integers(1, 1 << 22)


def taken(line: TokenizerLine) -> list[int]:
    found = []
    while (place := line.take()) is not None:
        found.append(place.size)
    return found


def test_a_short_text_waits_for_one_long_one_at_most() -> None:
    line = TokenizerLine()
    for _ in range(100):
        line.join(LONG)
    line.join(SHORT)
    assert SHORT in taken(line)[:2]


def test_many_short_texts_leave_half_of_the_work_to_long_ones() -> None:
    line = TokenizerLine()
    for _ in range(3):
        line.join(LONG)
    short = long = 0
    while long < 3:
        line.join(SHORT)
        place = line.take()
        assert place is not None
        short, long = short + (place.size == SHORT), long + (place.size == LONG)
    assert 2 * LONG / SHORT - 2 <= short <= 2 * LONG / SHORT + 2


def test_a_line_that_was_empty_owes_nothing() -> None:
    line = TokenizerLine()
    line.join(LONG)
    line.join(SHORT)
    taken(line)
    line.join(LONG)
    line.join(SHORT)
    assert taken(line) == [SHORT, LONG]


@given(st.lists(SIZES, max_size=60))
def test_each_is_taken_once_and_equal_sizes_in_order_of_arrival(sizes: list[int]) -> None:
    line = TokenizerLine()
    places = [line.join(size) for size in sizes]
    assert (len(line), line.size) == (len(sizes), sum(sizes))
    found = []
    while (place := line.take()) is not None:
        found.append(place)
    assert sorted(entry.number for entry in found) == [entry.number for entry in places]
    for size in set(sizes):
        numbers = [entry.number for entry in found if entry.size == size]
        assert numbers == sorted(numbers)
    assert (len(line), line.size) == (0, 0)


@given(st.lists(st.tuples(SIZES, st.booleans()), max_size=60))
def test_who_leaves_is_never_taken(asked: list[tuple[int, bool]]) -> None:
    line = TokenizerLine()
    stay = []
    for size, leaves in asked:
        place = line.join(size)
        if leaves:
            line.leave(place)
            line.leave(place)
        else:
            stay.append(size)
    assert line.size == sum(stay)
    assert sorted(taken(line)) == sorted(stay)


@given(st.lists(SIZES, max_size=60), SIZES)
def test_at_most_one_text_more_than_foreseen_is_before_a_newcomer(sizes: list[int], newcomer: int) -> None:
    line = TokenizerLine()
    for size in sizes:
        line.join(size)
    foreseen = line.before(newcomer)
    place = line.join(newcomer)
    before = 0
    while (other := line.take()) is not place:
        assert other is not None
        before += other.size
    assert before <= foreseen + max(sizes, default=0)
