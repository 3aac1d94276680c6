"""Of every group only the newest attempt is listened to."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.errors import StaleFenceError
from kvtransfer.fence import FenceGuard
from scheduling.request import Fence

FENCE = Fence("t", "r", 1, 1, 0, "source", "target")


@pytest.mark.parametrize(("session", "attempt"), [(0, 9), (1, 0), (1, 1)])
def test_an_older_or_equal_attempt_is_refused(session: int, attempt: int) -> None:
    guard = FenceGuard()
    guard.admit(FENCE)
    with pytest.raises(StaleFenceError, match="session 1 attempt 1 has been seen"):
        guard.admit(dataclasses.replace(FENCE, session=session, attempt=attempt))
    assert guard.newest(FENCE) == (1, 1)


def test_groups_do_not_compete() -> None:
    guard = FenceGuard()
    guard.admit(FENCE)
    for other in ({"choice": 1}, {"request_id": "s"}, {"tenant": "u"}):
        guard.admit(dataclasses.replace(FENCE, session=0, attempt=0, **other))


def test_memory_is_bounded_and_keeps_what_was_heard_of_last() -> None:
    guard = FenceGuard(capacity=2)
    for request_id in ("a", "b", "a", "c"):
        newest = guard.newest(dataclasses.replace(FENCE, request_id=request_id))
        attempt = 1 if newest is None else newest[1] + 1
        guard.admit(dataclasses.replace(FENCE, request_id=request_id, attempt=attempt))
    assert guard.newest(dataclasses.replace(FENCE, request_id="b")) is None
    assert guard.newest(dataclasses.replace(FENCE, request_id="a")) == (1, 2)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))))
def test_what_is_admitted_only_ever_grows(attempts: list[tuple[int, int]]) -> None:
    guard, admitted = FenceGuard(), []
    for session, attempt in attempts:
        try:
            guard.admit(dataclasses.replace(FENCE, session=session, attempt=attempt))
        except StaleFenceError:
            continue
        admitted.append((session, attempt))
    assert admitted == sorted(set(admitted))
    assert guard.newest(FENCE) == (max(attempts) if attempts else None)
