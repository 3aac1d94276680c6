"""Only the newest attempt of each choice is accepted."""

import dataclasses
from collections.abc import Iterable, Sequence

import hypothesis.strategies as st
import pytest
import torch
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from engine.kv.kv_pool import BlockLayout, KVPool
from kvtransfer.errors import LaterSessionError, StaleFenceError
from kvtransfer.fence import MAX_ROUTERS, FenceGuard, router_key, supersedes
from kvtransfer.pools.host_blocks import InPlace
from kvtransfer.sending.sender import Handoffs
from scheduling.request import Fence

FENCE = Fence("t", "r", 1, 1, 0, "source", "target", "router", "life", 1)


def admit(guard: FenceGuard, fence: Fence, begun_s: float, choices: Sequence[int] = ()) -> None:
    """Admit an attempt at the fence's own choice unless others are given."""
    guard.admit(fence, choices or (fence.choice,), begun_s)


def refused(guard: FenceGuard, fence: Fence, choices: Sequence[int] = ()) -> bool:
    """Return whether an attempt is refused; it is admitted otherwise."""
    try:
        admit(guard, fence, 0.0, choices)
    except StaleFenceError:
        return True
    return False


@pytest.mark.parametrize("router", ["router", "another"])
def test_a_session_whose_work_is_over_bars_no_call_that_came_after_it(router: str) -> None:
    """A second use of an id counts sessions from 0, and may resume on a worker that remembers the first."""
    guard = FenceGuard()
    earlier = dataclasses.replace(FENCE, session=3)
    admit(guard, earlier, 1.0)
    again = dataclasses.replace(FENCE, session=1, router_id=router, run=2)
    with pytest.raises(LaterSessionError):
        admit(guard, again, 6.0)
    guard.over(earlier, (0,), 5.0)
    for session, begun_s in ((1, 4.0), (0, 6.0)):
        with pytest.raises(LaterSessionError):
            admit(guard, dataclasses.replace(again, session=session), begun_s)
    admit(guard, again, 6.0)
    guard.check(again)
    assert refused(guard, again)
    admit(guard, dataclasses.replace(FENCE, session=2, router_id="a third"), 7.0)


def test_an_attempt_that_is_over_says_nothing_of_the_one_after_it() -> None:
    guard = FenceGuard()
    first, second = (dataclasses.replace(FENCE, session=3, attempt=attempt) for attempt in (1, 2))
    admit(guard, first, 1.0)
    admit(guard, second, 1.0)
    guard.over(first, (0,), 5.0)
    with pytest.raises(LaterSessionError):
        admit(guard, FENCE, 6.0)


@pytest.mark.parametrize(("session", "attempt"), [(0, 9), (1, 0), (1, 1)])
def test_an_older_or_equal_attempt_is_refused(session: int, attempt: int) -> None:
    guard = FenceGuard()
    admit(guard, FENCE, 0.0)
    with pytest.raises(StaleFenceError, match="session 1 attempt 1 has been seen"):
        admit(guard, dataclasses.replace(FENCE, session=session, attempt=attempt), 0.0)
    guard.check(FENCE)


def test_choices_do_not_compete() -> None:
    guard = FenceGuard()
    admit(guard, FENCE, 0.0)
    for other in ({"choice": 1}, {"request_id": "s"}, {"tenant": "u"}):
        admit(guard, dataclasses.replace(FENCE, session=0, attempt=0, **other), 0.0)


def test_attempts_compete_by_every_choice_they_cover() -> None:
    guard = FenceGuard()
    admit(guard, dataclasses.replace(FENCE, session=2, choice=1), 5.0, choices=(1, 2))
    both = dataclasses.replace(FENCE, session=1)
    with pytest.raises(LaterSessionError, match="session 2 attempt 1 has been seen"):
        guard.admit(both, (0, 1), 9.0)
    guard.admit(both, (0,), 9.0)  # what was refused is not remembered
    retried = dataclasses.replace(FENCE, session=2, attempt=2)
    guard.admit(retried, (0, 1), 9.0)
    assert refused(guard, dataclasses.replace(retried, choice=1, attempt=1))
    assert not refused(guard, dataclasses.replace(retried, choice=2, attempt=2))


def test_a_request_id_that_is_used_again_is_new() -> None:
    guard = FenceGuard()
    for run in (1, 4, 5, 9):
        for attempt in (1, 2, 3):
            admit(guard, dataclasses.replace(FENCE, run=run, attempt=attempt), 0.0)
    late = dataclasses.replace(FENCE, run=5, attempt=9)
    with pytest.raises(StaleFenceError, match=r"attempt 9 of router in run 5: .* attempt 3 .* in run 9"):
        admit(guard, late, 0.0)
    with pytest.raises(StaleFenceError):
        admit(guard, dataclasses.replace(late, session=2), 0.0)


def test_a_router_that_was_started_again_is_another_one() -> None:
    guard = FenceGuard()
    admit(guard, dataclasses.replace(FENCE, run=70, attempt=3), 0.0)
    started_again = dataclasses.replace(FENCE, router_incarnation="next life", run=1, attempt=1)
    admit(guard, started_again, 0.0)
    assert not supersedes(started_again, FENCE)


def test_equal_sessions_of_two_routers_do_not_end_each_other() -> None:
    guard = FenceGuard()
    one, other = (dataclasses.replace(FENCE, router_id=name) for name in ("one", "other"))
    for fence in (one, other):
        admit(guard, fence, 0.0)
        with pytest.raises(StaleFenceError):
            admit(guard, fence, 0.0)
    admit(guard, dataclasses.replace(one, attempt=2), 0.0)
    with pytest.raises(StaleFenceError, match="session 1 attempt 2 has been seen"):
        guard.check(one)
    guard.check(other)
    resumed = dataclasses.replace(FENCE, session=2, attempt=1, router_id="third")
    admit(guard, resumed, 0.0)
    for fence in (one, other):
        with pytest.raises(LaterSessionError, match="session 2 attempt 1 has been seen"):
            admit(guard, dataclasses.replace(fence, attempt=9), 0.0)


def test_a_refusal_tells_when_the_later_session_was_called() -> None:
    guard = FenceGuard()
    for attempt, begun_s in ((1, 5.0), (2, 9.0), (3, 7.0)):
        admit(guard, dataclasses.replace(FENCE, attempt=attempt), begun_s)
    with pytest.raises(LaterSessionError) as refusal:
        admit(guard, dataclasses.replace(FENCE, session=0, attempt=9), begun_s=11.0)
    assert (refusal.value.session, refusal.value.begun_s) == (1, 9.0)
    admit(guard, dataclasses.replace(FENCE, session=2, attempt=4), begun_s=8.0)
    with pytest.raises(LaterSessionError) as refusal:
        admit(guard, FENCE, 12.0)
    assert (refusal.value.session, refusal.value.begun_s) == (2, 8.0)


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
    for request_id, attempt in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        admit(guard, dataclasses.replace(FENCE, request_id=request_id, attempt=attempt), 0.0)
    assert refused(guard, dataclasses.replace(FENCE, request_id="a", attempt=2))
    assert not refused(guard, dataclasses.replace(FENCE, request_id="b", attempt=1))


def test_memory_of_routers_is_bounded_however_often_they_start_again() -> None:
    guard = FenceGuard()
    lives = [dataclasses.replace(FENCE, router_incarnation=f"life {number}") for number in range(99)]
    for fence in lives:
        admit(guard, fence, 0.0)
    assert all(refused(guard, fence) for fence in lives[-MAX_ROUTERS:])
    assert not refused(guard, lives[0])


FENCES = st.builds(
    Fence,
    tenant=st.just("t"),
    request_id=st.just("r"),
    session=st.integers(0, 3),
    attempt=st.integers(1, 3),
    choice=st.integers(0, 1),
    source_incarnation=st.just(""),
    target_incarnation=st.just("me"),
    router_id=st.sampled_from(["one", "other"]),
    router_incarnation=st.sampled_from(["first", "second"]),
    run=st.integers(1, 3),
)


CHOICES = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)


class Guarding(RuleBasedStateMachine):
    """Offers attempts in any order, and compares the guard with a list of all that were admitted."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = FenceGuard()
        self.admitted: list[tuple[Fence, list[int]]] = []

    def _rivals_of(self, choices: Iterable[int]) -> list[Fence]:
        return [seen for seen, covered in self.admitted if not set(choices).isdisjoint(covered)]

    def _is_stale(self, fence: Fence, seen: Iterable[Fence]) -> bool:
        def number(one: Fence) -> tuple[int, int, int]:
            return (one.run, one.session, one.attempt)

        return any(
            other.session > fence.session
            or (router_key(other) == router_key(fence) and number(other) >= number(fence))
            for other in seen
        )

    @rule(fence=FENCES, choices=CHOICES)
    def offer(self, fence: Fence, choices: list[int]) -> None:
        """Any attempt may come at any time, also one that was sent long ago."""
        is_stale = self._is_stale(fence, self._rivals_of(choices))
        assert refused(self.guard, fence, choices) == is_stale
        if not is_stale:
            self.admitted.append((fence, choices))

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def use_again(self, data: st.DataObject) -> None:
        """A router takes the request in anew, in the newest session: its first attempt is always admitted."""
        last, choices = data.draw(st.sampled_from(self.admitted))
        rivals = self._rivals_of(choices)
        mine = [seen.run for seen in rivals if router_key(seen) == router_key(last)]
        session = max(seen.session for seen in rivals)
        again = dataclasses.replace(last, run=max(mine) + 1, attempt=1, session=session)
        assert not refused(self.guard, again, choices)
        self.admitted.append((again, choices))

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """No attempt starts twice."""
        fence, choices = data.draw(st.sampled_from(self.admitted))
        assert refused(self.guard, fence, choices)


test_only_what_is_newer_than_all_that_it_competes_with_is_admitted = Guarding.TestCase
