"""The order of tokenising: tenants take turns, short texts pass long ones, and none waits forever."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.intake.helpers.tokenizer_line import Place, TokenizerLine

T = "tenant"
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
        line.join(T, LONG)
    line.join(T, SHORT)
    assert SHORT in taken(line)[:2]


def test_many_short_texts_leave_half_of_the_work_to_long_ones() -> None:
    line = TokenizerLine()
    for _ in range(3):
        line.join(T, LONG)
    short = long = 0
    while long < 3:
        line.join(T, SHORT)
        place = line.take()
        assert place is not None
        short, long = short + (place.size == SHORT), long + (place.size == LONG)
    assert 2 * LONG / SHORT - 2 <= short <= 2 * LONG / SHORT + 2


def test_a_line_that_was_empty_owes_nothing() -> None:
    line = TokenizerLine()
    line.join(T, LONG)
    line.join(T, SHORT)
    taken(line)
    line.join(T, LONG)
    line.join(T, SHORT)
    assert taken(line) == [SHORT, LONG]


@given(st.lists(SIZES, max_size=60))
def test_each_is_taken_once_and_equal_sizes_in_order_of_arrival(sizes: list[int]) -> None:
    line = TokenizerLine()
    places = [line.join(T, size) for size in sizes]
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
        place = line.join(T, size)
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
        line.join(T, size)
    foreseen = line.before(T, newcomer)
    place = line.join(T, newcomer)
    before = 0
    while (other := line.take()) is not place:
        assert other is not None
        before += other.size
    assert before <= foreseen + max(sizes, default=0)


TENANTS = st.sampled_from("abcd")


def test_a_tenant_waits_for_one_text_of_another_at_most() -> None:
    line = TokenizerLine()
    for _ in range(100):
        line.join("big", SHORT)
    assert line.take()
    line.join("small", LONG)
    taken_of = [place.tenant for _ in range(2) if (place := line.take()) is not None]
    assert "small" in taken_of


@given(st.lists(st.tuples(TENANTS, SIZES), min_size=1, max_size=60))
def test_tenants_that_wait_have_had_as_much_but_for_one_text_each(asked: list[tuple[str, int]]) -> None:
    line = TokenizerLine()
    for tenant, size in asked:
        line.join(tenant, size)
    left = Counter(tenant for tenant, _ in asked)
    had = Counter[str]()
    largest = max(size for _, size in asked)
    while (place := line.take()) is not None:
        had[place.tenant] += place.size
        left[place.tenant] -= 1
        waiting = [tenant for tenant in left if left[tenant]]
        for tenant in waiting:
            assert had[place.tenant] - had[tenant] <= largest
    assert not +left


@given(st.lists(st.tuples(TENANTS, SIZES, st.integers(0, 2), st.integers(0, 9)), max_size=80))
def test_what_comes_leaves_and_is_taken_adds_up(steps: list[tuple[str, int, int, int]]) -> None:
    line, waiting, gone = TokenizerLine(), list[Place](), list[Place]()
    for tenant, size, step, which in steps:
        if step == 0:
            waiting.append(line.join(tenant, size))
        elif step == 1 and (waiting or gone):
            place = (waiting + gone)[which % len(waiting + gone)]
            line.leave(place)
            if place in waiting:
                waiting.remove(place)
        else:
            taken_now = line.take()
            assert (taken_now is None) == (not waiting)
            if taken_now is not None:
                waiting.remove(taken_now)
                gone.append(taken_now)
        assert len(line) == len(waiting)
        assert line.size == sum(place.size for place in waiting)
        assert line.num_tenants == len({place.tenant for place in waiting})
        assert line.size_of(tenant) == sum(place.size for place in waiting if place.tenant == tenant)


def test_other_tenants_have_as_much_work_before_a_newcomer() -> None:
    line = TokenizerLine()
    for _ in range(100):
        line.join("big", LONG)
    assert line.before("big", LONG) == 100 * LONG
    assert line.before("small", SHORT) == SHORT
    line.join("small", SHORT)
    assert line.before("small", SHORT) == 3 * SHORT


def test_tenants_that_come_once_each_pass_none_for_ever() -> None:
    line = TokenizerLine()
    for _ in range(2):
        line.join("first", 100 * SHORT)
    numbers = itertools.count()
    while line.size_of("first"):
        line.join(f"tenant {next(numbers)}", SHORT)
        assert line.take()
        assert len(line._shares.had) < 200
    assert next(numbers) < 20_000
