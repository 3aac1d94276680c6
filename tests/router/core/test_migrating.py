"""A group without blocks goes where it has some, and no attempt is counted as failed."""

from __future__ import annotations

from router.core.core import RouterCore
from router.core.model.actions import (
    Action,
    AttemptFailed,
    Enqueue,
    GroupMigrated,
    GroupPreempted,
    SendCancel,
)
from router.core.model.events import (
    Enqueued,
    StepReported,
    Timer,
    TimerFired,
    TimerKind,
    WorkerFacts,
    WorkerLoad,
)
from scheduling.columns import TokenColumns
from tests.router.core_driver import ARRIVAL, ONE, TWO, call, core_of, grant, start, tell

CHORES = TimerFired(Timer(TimerKind.CHORES))


def preempted(core: RouterCore, worker_key: str, handle: int, now: float = 2.0) -> list[Action]:
    """A token was delivered; then the worker takes the group's blocks, and has none left."""
    tokens = TokenColumns([handle], [0], [0], [9], [0])
    tell(core, StepReported(worker_key, tokens, WorkerLoad(running=1, free_blocks=0)), now=now)
    load = WorkerLoad(running=5, preempted=1, free_blocks=0, context_tokens=200)
    return tell(core, StepReported(worker_key, TokenColumns(), load, preempted=(handle,)), now=now)


def other(worker_key: str) -> WorkerFacts:
    return TWO if worker_key == ONE.key else ONE


def test_a_preempted_group_moves_to_a_worker_with_room() -> None:
    core = core_of("slack")
    key, handle = start(core, 1)
    told = preempted(core, key, handle)
    assert GroupPreempted("t/r1/0", key) in told
    moved = tell(core, CHORES, now=2.1)
    assert GroupMigrated("t/r1/0", key) in moved
    assert SendCancel(key, (handle,)) in moved
    (asked,) = [action for action in moved if isinstance(action, Enqueue)]
    assert asked.entry.due_in_ms <= 0
    assert not [action for action in moved if isinstance(action, AttemptFailed)]
    tell(core, Enqueued("t/r1/0", 0, 0), now=2.1)
    (sent,) = grant(core, 1, other(key).key, now=2.1)
    assert sent.spec.output_token_ids == (9,)
    assert sent.spec.fence.attempt == 2
    assert core.state.counters.retried_attempts == 0


def test_it_stays_when_it_runs_again() -> None:
    core = core_of("slack")
    key, handle = start(core, 1)
    preempted(core, key, handle)
    again = StepReported(key, TokenColumns(), WorkerLoad(running=1), resumed=(handle,))
    tell(core, again, now=2.05)
    assert not [action for action in tell(core, CHORES, now=2.1) if isinstance(action, GroupMigrated)]


def test_it_stays_where_no_other_worker_has_room() -> None:
    core = core_of("slack")
    key, handle = start(core, 1)
    full = StepReported(other(key).key, TokenColumns(), WorkerLoad(running=8, free_blocks=0))
    tell(core, full, now=1.5)
    preempted(core, key, handle)
    assert not [action for action in tell(core, CHORES, now=2.1) if isinstance(action, GroupMigrated)]


def test_it_moves_at_most_once_a_second_without_using_attempts() -> None:
    core = core_of("slack")
    key, handle = start(core, 1, call(ARRIVAL, resume_grace_s=5.0))
    now = 2.0
    for _ in range(5):
        preempted(core, key, handle, now)
        assert GroupMigrated("t/r1/0", key) in tell(core, CHORES, now=now)
        tell(core, Enqueued("t/r1/0", 0, 0), now=now)
        (sent,) = grant(core, 1, other(key).key, now=now)
        key, handle = sent.worker_key, sent.spec.handle
        preempted(core, key, handle, now + 0.5)
        told = tell(core, CHORES, now=now + 0.5)
        assert not [action for action in told if isinstance(action, GroupMigrated)]
        tell(core, StepReported(key, TokenColumns(), WorkerLoad(), resumed=(handle,)), now=now + 0.6)
        for facts in (ONE, TWO):
            tell(core, StepReported(facts.key, TokenColumns(), WorkerLoad(free_blocks=64)), now=now + 0.6)
        now += 2.0
