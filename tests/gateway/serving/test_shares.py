"""Shares of a total: always something for the next caller, and nothing is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.shares import UNPROVEN, WHOLE, Shares

TOTAL = 1000


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 400), st.sampled_from((WHOLE, UNPROVEN)))),
    st.data(),
)
def test_callers_never_hold_more_than_the_total_and_give_all_back(
    asked: list[tuple[str, int, float]], data: st.DataObject
) -> None:
    shares = Shares(TOTAL)
    taken: list[tuple[str, int]] = []
    for caller, amount, weight in asked:
        if taken and data.draw(st.booleans()):
            shares.give_back(*taken.pop(data.draw(st.integers(0, len(taken) - 1))))
        if shares.take(caller, amount, weight):
            taken.append((caller, amount))
        assert shares.held == sum(amount for _, amount in taken) <= TOTAL
    for caller, amount in taken:
        shares.give_back(caller, amount)
    assert shares.held == sum(map(shares.held_by, "abc")) == 0


@given(st.integers(1, 9))
def test_who_comes_after_greedy_callers_has_as_much_as_they(greedy: int) -> None:
    shares = Shares(TOTAL)
    for _ in range(TOTAL):
        for caller in range(greedy):
            shares.take(str(caller), 1)
    assert max(shares.held_by(str(caller)) for caller in range(greedy)) <= TOTAL // 2
    assert shares.take("next", (TOTAL - shares.held) // 2)


def test_those_who_prove_nothing_have_the_smallest_share() -> None:
    shares = Shares(TOTAL)
    while shares.take("", 1, UNPROVEN):
        pass
    assert shares.held == TOTAL // 9
