"""Numbers of messages: whatever a stream loses, repeats or turns round is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.rpc.numbering import Incoming, Outgoing, OutOfOrder


@given(st.lists(st.integers(1, 6), max_size=8))
def test_only_all_messages_in_their_order_are_taken(numbers: list[int]) -> None:
    incoming = Incoming()
    in_order = next((i for i, number in enumerate(numbers) if number != i + 1), len(numbers))
    for number in numbers[:in_order]:
        incoming.take(number)
    if in_order < len(numbers):
        with pytest.raises(OutOfOrder) as caught:
            incoming.take(numbers[in_order])
        assert (caught.value.number, caught.value.expected) == (numbers[in_order], in_order + 1)
    assert incoming.taken == in_order


TIMEOUT = 6.0
TIMES = st.floats(0, 2 * TIMEOUT)


def lost(outgoing: Outgoing, taken: int, now: float) -> int | None:
    """Return the lost message, if any, once the other side has said how many it has taken."""
    outgoing.acknowledge(taken, now)
    return outgoing.lost(now, TIMEOUT)


def send_all(outgoing: Outgoing, gaps: list[float]) -> list[float]:
    """Send a message after each gap, and return when each was sent."""
    sent_at: list[float] = []
    for gap in gaps:
        sent_at.append((sent_at[-1] if sent_at else 0.0) + gap)
        assert outgoing.next(sent_at[-1]) == len(sent_at)
    return sent_at


@given(gaps=st.lists(TIMES, min_size=1, max_size=8), later=TIMES)
def test_the_oldest_message_not_taken_in_time_is_the_lost_one(gaps: list[float], later: float) -> None:
    outgoing = Outgoing()
    sent_at = send_all(outgoing, gaps)
    now = sent_at[-1] + later
    late = now - sent_at[0] > TIMEOUT
    assert lost(outgoing, 0, now) == (1 if late else None)


@given(gaps=st.lists(TIMES, min_size=2, max_size=8), data=st.data(), later=TIMES, idle=TIMES)
def test_who_takes_messages_however_slowly_has_lost_none(
    gaps: list[float], data: st.DataObject, later: float, idle: float
) -> None:
    outgoing = Outgoing()
    taken_at = send_all(outgoing, gaps)[-1] + later
    taken = data.draw(st.integers(1, len(gaps) - 1))
    assert lost(outgoing, taken, taken_at) is None
    now = taken_at + idle
    late = now - taken_at > TIMEOUT
    assert lost(outgoing, taken, now) == (taken + 1 if late else None)


def test_what_was_taken_is_never_lost_again() -> None:
    outgoing = Outgoing()
    outgoing.next(0.0)
    assert lost(outgoing, 1, 0.1) is None
    assert lost(outgoing, 0, 100.0) is None


@given(gaps=st.lists(TIMES, min_size=1, max_size=8), excused=TIMES, later=TIMES)
def test_nothing_is_lost_while_the_other_side_could_take_nothing(
    gaps: list[float], excused: float, later: float
) -> None:
    outgoing = Outgoing()
    restarted_at = send_all(outgoing, gaps)[-1] + excused
    outgoing.restart_timeout(restarted_at)
    now = restarted_at + later
    late = now - restarted_at > TIMEOUT
    assert lost(outgoing, 0, now) == (1 if late else None)
