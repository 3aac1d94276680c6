"""Numbers of messages: whatever a stream loses, repeats or turns round is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.numbering import UNHEARD_S, Incoming, Outgoing, OutOfOrder


@given(st.lists(st.integers(1, 6), max_size=8))
def test_only_all_messages_in_their_order_are_taken(numbers: list[int]) -> None:
    incoming = Incoming()
    in_order = next((i for i, number in enumerate(numbers) if number != i + 1), len(numbers))
    for number in numbers[:in_order]:
        incoming.take(number)
    if in_order < len(numbers):
        with pytest.raises(OutOfOrder) as caught:
            incoming.take(numbers[in_order])
        assert (caught.value.found, caught.value.expected) == (numbers[in_order], in_order + 1)
    assert incoming.taken == in_order


@given(
    gaps_s=st.lists(st.floats(0, 2 * UNHEARD_S), min_size=1, max_size=8),
    taken=st.integers(0, 8),
    later_s=st.floats(0, 2 * UNHEARD_S),
)
def test_the_oldest_message_not_taken_in_time_is_the_lost_one(
    gaps_s: list[float], taken: int, later_s: float
) -> None:
    outgoing, now, sent_at = Outgoing(), 0.0, []
    for gap_s in gaps_s:
        now += gap_s
        sent_at.append(now)
        assert outgoing.next(now) == len(sent_at)
    now += later_s
    late = taken < len(sent_at) and now - sent_at[taken] > UNHEARD_S
    assert outgoing.lost(taken, now) == (taken + 1 if late else None)


def test_what_was_taken_is_never_lost_again() -> None:
    outgoing = Outgoing()
    outgoing.next(0.0)
    assert outgoing.lost(1, 0.1) is None
    assert outgoing.lost(0, 100.0) is None
