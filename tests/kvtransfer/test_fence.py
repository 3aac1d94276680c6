"""Only the newest attempt of each group is accepted."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.errors import StaleFenceError
from kvtransfer.fence import FenceGuard
from kvtransfer.pools.in_place import InPlace
from kvtransfer.sender import Handoffs
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


def test_equal_sessions_of_two_routers_do_not_end_each_other() -> None:
    guard = FenceGuard()
    one, other = (dataclasses.replace(FENCE, router_id=name) for name in ("one", "other"))
    for fence in (one, other):
        guard.admit(fence)
        with pytest.raises(StaleFenceError):
            guard.admit(fence)
    guard.admit(dataclasses.replace(one, attempt=2))
    assert (guard.newest(one), guard.newest(other)) == ((1, 2), (1, 1))
    resumed = dataclasses.replace(FENCE, session=2, attempt=1, router_id="third")
    guard.admit(resumed)
    for fence in (one, other):
        with pytest.raises(StaleFenceError, match="session 2 attempt 1 has been seen"):
            guard.admit(dataclasses.replace(fence, attempt=9))


def test_a_refusal_tells_when_the_later_session_was_called() -> None:
    guard = FenceGuard()
    guard.admit(FENCE, begun_s=5.0)
    guard.admit(dataclasses.replace(FENCE, attempt=2), begun_s=9.0)
    guard.admit(dataclasses.replace(FENCE, attempt=3), begun_s=7.0)
    guard.admit(dataclasses.replace(FENCE, attempt=4))
    with pytest.raises(StaleFenceError) as refused:
        guard.admit(dataclasses.replace(FENCE, session=0, attempt=9), begun_s=11.0)
    assert (refused.value.session, refused.value.begun_s) == (1, 9.0)
    guard.admit(dataclasses.replace(FENCE, session=2))
    with pytest.raises(StaleFenceError) as refused:
        guard.admit(FENCE)
    assert (refused.value.session, refused.value.begun_s) == (2, None)


async def test_a_handoff_is_opened_by_its_own_routers_receiver_only() -> None:
    pool = KVPool(BlockLayout(1, 16, 1, 8, torch.float32), 4)
    handoffs = Handoffs("source", InPlace(pool), FenceGuard(), lambda handle, outcome: None)
    one, other = (dataclasses.replace(FENCE, router_id=name) for name in ("one", "other"))
    handoffs.begin(1, one, num_blocks=1)
    handoffs.begin(2, other, num_blocks=2)
    assert [handoffs.open(fence, 0).handle for fence in (one, other)] == [1, 2]
    handoffs.close()


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
