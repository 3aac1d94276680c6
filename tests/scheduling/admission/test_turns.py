"""The next free seat goes to the tenant with the fewest; promises keep their places."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.shares import (
    SEAT_SHARE,
    Place,
    SeatTurns,
    may_yield,
    share_of,
    takes_turns,
    tenant_of,
)
from scheduling.request import Slo

KEYS = st.builds(lambda tenant, number: f"{tenant}/q{number}", st.sampled_from("abc"), st.integers(0, 99))
WAITING = st.dictionaries(KEYS, st.tuples(st.integers(0, 50), st.booleans()), max_size=20)
RUNNING = st.dictionaries(KEYS.map(lambda key: f"{key}r"), st.integers(1, 5), max_size=20)
NEVER = 1 << 60


def filled(waiting: dict[str, tuple[int, bool]], running: dict[str, int]) -> tuple[SeatTurns, Counter[str]]:
    """Return turns with requests that wait, each due and with or without turns, and seats that are held."""
    turns, held = SeatTurns(), Counter[str]()
    for key, (due, turned) in waiting.items():
        turns.join(2, (due, key), takes_turns=turned)
    for key, seats in running.items():
        turns.take(key, seats, NEVER)
        held[tenant_of(key)] += seats
    return turns, held


def next_of(turns: SeatTurns) -> Place | None:
    return turns.next(2, 99, lambda _: True)


@given(WAITING, RUNNING)
def test_the_turn_is_with_the_fewest_seats_and_passes_no_promise(
    waiting: dict[str, tuple[int, bool]], running: dict[str, int]
) -> None:
    turns, held = filled(waiting, running)
    firm = [(due, key) for key, (due, turned) in waiting.items() if not turned]
    may_go = [
        (due, key)
        for key, (due, turned) in waiting.items()
        if turned and (not firm or (due, key) < min(firm))
    ]
    found = next_of(turns)
    if found is None:
        assert not may_go
    else:
        assert found in may_go
        assert all(
            (held[tenant_of(found[1])], found) <= (held[tenant_of(key)], (due, key)) for due, key in may_go
        )


@given(WAITING, RUNNING, st.lists(st.integers(0, 99), max_size=20))
def test_what_has_left_has_no_turn_and_no_seat(
    waiting: dict[str, tuple[int, bool]], running: dict[str, int], leaving: list[int]
) -> None:
    turns, _ = filled(waiting, running)
    for number in leaving:
        if waiting:
            key = sorted(waiting)[number % len(waiting)]
            due, turned = waiting.pop(key)
            turns.leave(2, (due, key), takes_turns=turned)
        if running:
            key = sorted(running)[number % len(running)]
            turns.drop(key)
            del running[key]
    assert next_of(turns) == next_of(filled(waiting, running)[0])


@given(st.dictionaries(st.integers(0, 99).map(lambda number: f"a/q{number}"), st.integers(0, 50), min_size=1))
def test_one_tenant_alone_goes_in_the_order_of_the_queue(waiting: dict[str, int]) -> None:
    turns, _ = filled({key: (due, True) for key, due in waiting.items()}, {"a/r": 7})
    for due, key in sorted((due, key) for key, due in waiting.items()):
        assert next_of(turns) == (due, key)
        turns.leave(2, (due, key), takes_turns=True)
        turns.take(key, 1, NEVER)


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=60), st.integers(1, 4))
def test_none_is_passed_for_ever(tenants: list[str], num_seats: int) -> None:
    """A turn for each request serves all of them, whatever ends when."""
    turns, running = SeatTurns(), list[str]()
    for number, tenant in enumerate(tenants):
        turns.join(2, (number, f"{tenant}/q{number}"), takes_turns=True)
    served = Counter[str]()
    for _ in tenants:
        if len(running) == num_seats:
            turns.drop(running.pop(0))
        place = next_of(turns)
        assert place is not None
        turns.leave(2, place, takes_turns=True)
        turns.take(place[1], SEAT_SHARE, NEVER)
        running.append(place[1])
        served[tenant_of(place[1])] += 1
    assert served == Counter(tenants)


def test_expired_seats_do_not_count() -> None:
    turns, _ = filled({"a/q": (1, True), "b/q": (2, True)}, {})
    turns.take("a/r", SEAT_SHARE, 100)
    turns.purge(99)
    assert next_of(turns) == (2, "b/q")
    turns.keep("a/r", 200)
    turns.purge(100)
    assert next_of(turns) == (2, "b/q")
    turns.purge(200)
    assert next_of(turns) == (1, "a/q")


@given(st.integers(0, 99), st.integers(1, 9), st.integers(0, 99), st.integers(1, 9))
def test_whoever_yields_keeps_at_least_as_many(holder: int, yielded: int, waiter: int, wanted: int) -> None:
    if may_yield(holder, yielded, waiter, wanted):
        assert holder - yielded >= waiter + wanted
        assert not may_yield(waiter + wanted, wanted, holder - yielded, yielded), "it does not go back"


@given(st.integers(1, 128), st.floats(0.001, 1000))
def test_a_seat_counts_less_for_a_tenant_of_more_weight(seats: int, weight: float) -> None:
    assert share_of(seats, 1.0) == seats * SEAT_SHARE
    assert 1 <= share_of(seats, 2 * weight) <= share_of(seats, weight)


def test_what_is_promised_takes_no_turns() -> None:
    assert takes_turns(Slo(), has_output=False)
    assert not takes_turns(Slo(ttft_ms=100), has_output=False)
    assert takes_turns(Slo(tpot_ms=100), has_output=False)
    assert takes_turns(Slo(ttft_ms=100), has_output=True), "its first token is out"
    assert not takes_turns(Slo(tpot_ms=100), has_output=True)
