"""A group leaves a worker that drains only once that worker has stopped it, and never twice."""

from __future__ import annotations

from dataclasses import replace

from router.core.core import RouterCore
from router.core.model.actions import (
    Action,
    AttemptFailed,
    Enqueue,
    SendCancel,
    SendDecode,
    SendDrain,
    SendPreCopy,
    SendReceive,
    SendStopAndCopy,
)
from router.core.model.events import (
    DrainAsked,
    SequenceFailed,
    StepReported,
    Timer,
    TimerFired,
    TimerKind,
    WorkerFacts,
    WorkerJoined,
    WorkerLoad,
    WorkerLost,
)
from scheduling.columns import TokenColumns
from scheduling.request import FailureReason, ReceiveKind, SamplingParams
from tests.router.core.asking import COST
from tests.router.core_driver import ARRIVAL, ONE, TWO, call, core_of, start, tell

CHORES = TimerFired(Timer(TimerKind.CHORES))
DRAINING = WorkerLoad(running=1, free_blocks=40, draining=True)
N = 2
PAIR = call(ARRIVAL, sampling=SamplingParams(n=N))


def other(worker_key: str) -> WorkerFacts:
    return TWO if worker_key == ONE.key else ONE


def rows(handle: int, index: int, choices: tuple[int, ...] = (0, 1)) -> TokenColumns:
    count = len(choices)
    return TokenColumns([handle] * count, choices, [index] * count, [9] * count, [0] * count)


def draining(core: RouterCore) -> tuple[str, int, list[Action]]:
    """Two choices have three tokens each; their worker drains, and the chores are due."""
    key, handle = start(core, 1, PAIR)
    for index in range(3):
        tell(core, StepReported(key, rows(handle, index), WorkerLoad(running=2)), now=2.0)
    tell(core, StepReported(key, TokenColumns(), DRAINING), now=2.0)
    return key, handle, tell(core, CHORES, now=2.1)


def sent(actions: list[Action], kind: type[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


def copied(core: RouterCore, key: str, actions: list[Action]) -> list[Action]:
    """Both copies are at the target."""
    done: list[Action] = []
    for action in actions:
        if isinstance(action, SendPreCopy):
            report = StepReported(
                other(key).key,
                TokenColumns(),
                WorkerLoad(),
                prefilled=(action.part.handle,),
                cached_tokens=(0,),
            )
            done += tell(core, report, now=2.2)
    return done


def test_full_blocks_are_copied_while_it_runs_on() -> None:
    core = core_of("slack")
    key, handle, actions = draining(core)
    lends = [action for action in actions if isinstance(action, SendPreCopy)]
    ahead = [action for action in actions if isinstance(action, SendReceive)]
    # 6 tokens of prompt and 3 of output: the newest's KV is not written, blocks have 4 tokens.
    assert [(lend.worker_key, lend.handle, lend.num_blocks) for lend in lends] == [(key, handle, 2)] * N
    assert [entry.kind for entry in ahead] == [ReceiveKind.AHEAD] * N
    assert [len(entry.spec.prompt_token_ids) for entry in ahead] == [8] * N
    assert [entry.spec.fence for entry in ahead] == [lend.part.fence for lend in lends]
    assert not sent(actions, SendStopAndCopy)
    assert not sent(actions, SendCancel)
    told = tell(core, StepReported(key, rows(handle, 3), DRAINING), now=2.15)
    assert core.state.counters.relayed_tokens == 4 * N, "the source decodes on"
    assert not sent(told, SendStopAndCopy)


def test_the_next_attempt_starts_only_after_the_source_stopped() -> None:
    core = core_of("slack")
    key, handle, actions = draining(core)
    (stop,) = [action for action in copied(core, key, actions) if isinstance(action, SendStopAndCopy)]
    assert (stop.worker_key, stop.handle) == (key, handle)
    assert not sent(tell(core, CHORES, now=2.3), SendReceive)
    # What it sampled before it stopped comes with, or before, the word that it has.
    parked = StepReported(key, rows(handle, 3), DRAINING, parked=(handle,))
    takes = [action for action in tell(core, parked, now=2.3) if isinstance(action, SendReceive)]
    assert [take.kind for take in takes] == [ReceiveKind.STOPPED] * N
    assert [take.spec.output_token_ids for take in takes] == [(9, 9, 9, 9)] * N
    assert [take.spec.choices for take in takes] == [(0,), (1,)]
    assert [take.spec.fence for take in takes] == [part.fence for part in stop.parts]
    assert [take.spec.handle for take in takes] == [part.handle for part in stop.parts]
    late = StepReported(key, rows(handle, 4), DRAINING)
    tell(core, late, now=2.4)
    assert core.state.counters.relayed_tokens == 4 * N, "what an older attempt says is not relayed"
    for part, choice in zip(stop.parts, (0, 1), strict=True):
        tell(core, StepReported(other(key).key, rows(part.handle, 4, (choice,)), WorkerLoad()), now=2.5)
    assert core.state.counters.relayed_tokens == 5 * N
    assert core.state.counters.retried_attempts == 0


def test_the_source_may_be_gone_before_the_target_has_spoken() -> None:
    core = core_of("slack")
    key, handle, actions = draining(core)
    copied(core, key, actions)
    tell(core, StepReported(key, TokenColumns(), DRAINING, parked=(handle,)), now=2.3)
    lost = tell(core, WorkerLost(key, "it left"), now=2.4)
    assert not sent(lost, AttemptFailed)
    assert not sent(lost, Enqueue)


def test_a_target_that_dies_during_the_copy_leaves_it_running() -> None:
    core = core_of("slack")
    key, handle, _ = draining(core)
    lost = tell(core, WorkerLost(other(key).key, "killed"), now=2.2)
    assert not sent(lost, Enqueue)
    tell(core, StepReported(key, rows(handle, 3), DRAINING), now=2.3)
    assert core.state.counters.relayed_tokens == 4 * N


def test_a_target_that_dies_after_the_stop_is_replaced_by_a_replay() -> None:
    core = core_of("slack")
    key, handle, actions = draining(core)
    (stop,) = [action for action in copied(core, key, actions) if isinstance(action, SendStopAndCopy)]
    lost = tell(core, WorkerLost(other(key).key, "killed"), now=2.25)
    assert SendCancel(key, tuple(part.handle for part in stop.parts)) in lost
    assert not sent(lost, Enqueue), "the source may still be decoding"
    parked = tell(core, StepReported(key, rows(handle, 3), DRAINING, parked=(handle,)), now=2.3)
    assert len(sent(parked, Enqueue)) == N
    assert not sent(parked, AttemptFailed)


def test_a_target_that_cannot_fetch_has_it_replayed() -> None:
    core = core_of("slack")
    key, handle, actions = draining(core)
    (stop,) = [action for action in copied(core, key, actions) if isinstance(action, SendStopAndCopy)]
    tell(core, StepReported(key, TokenColumns(), DRAINING, parked=(handle,)), now=2.3)
    failure = SequenceFailed(stop.parts[0].handle, FailureReason.HANDOFF, "lost")
    failed = tell(
        core, StepReported(other(key).key, TokenColumns(), WorkerLoad(), failures=(failure,)), now=2.4
    )
    assert len(sent(failed, Enqueue)) == 1


def test_copies_that_fail_again_and_again_end_in_a_replay() -> None:
    core = core_of("slack")
    key, _, actions = draining(core)
    now = 2.1
    for _ in range(2):
        (first, *_) = [action for action in actions if isinstance(action, SendPreCopy)]
        failure = SequenceFailed(first.part.handle, FailureReason.REFUSED, "cannot offer")
        told = tell(core, StepReported(key, TokenColumns(), DRAINING, failures=(failure,)), now=now)
        assert sent(told, SendCancel), "the other copy is called off"
        now += 0.1
        actions = tell(core, CHORES, now=now)
    assert len(sent(actions, Enqueue)) == N


def test_what_ends_meanwhile_is_called_off() -> None:
    core = core_of("slack")
    key, handle, actions = draining(core)
    lends = [action.part.handle for action in actions if isinstance(action, SendPreCopy)]
    last = TokenColumns([handle] * N, (0, 1), [3] * N, [9] * N, [3] * N)
    ended = tell(core, StepReported(key, last, DRAINING), now=2.2)
    called_off = [
        action for action in ended if isinstance(action, SendCancel) and set(action.handles) == set(lends)
    ]
    assert {entry.worker_key for entry in called_off} == {ONE.key, TWO.key}
    assert not core.state.moves
    assert not [worker for worker in core.state.fleet.workers.values() if worker.copies]


def test_without_room_elsewhere_it_stays() -> None:
    core = core_of("slack")
    key, handle = start(core, 1, PAIR)
    full = StepReported(other(key).key, TokenColumns(), WorkerLoad(running=8, free_blocks=0))
    tell(core, full, StepReported(key, rows(handle, 0), DRAINING), now=2.0)
    stays = tell(core, CHORES, now=2.1)
    assert not sent(stays, SendPreCopy)
    assert not sent(stays, Enqueue)
    assert not sent(stays, SendDecode)


def joined(load: WorkerLoad) -> WorkerJoined:
    return WorkerJoined(ONE, load, COST)


def test_a_worker_that_may_not_have_heard_it_is_told_again_to_drain() -> None:
    """The message that told it is lost with its stream, and whoever asked for it was told that it drains."""
    core = core_of("slack")
    assert sent(tell(core, DrainAsked(ONE.worker_id)), SendDrain) == [SendDrain(ONE.key)]
    tell(core, WorkerLost(ONE.key, "a report is missing"))
    assert sent(tell(core, joined(WorkerLoad())), SendDrain) == [SendDrain(ONE.key)]
    assert core.state.fleet.workers[ONE.key].draining
    tell(core, StepReported(ONE.key, TokenColumns(), DRAINING))
    tell(core, WorkerLost(ONE.key, "again"))
    assert not sent(tell(core, joined(DRAINING)), SendDrain)


def test_the_next_process_of_a_worker_does_not_drain() -> None:
    core = core_of("slack")
    tell(core, DrainAsked(ONE.worker_id), WorkerLost(ONE.key, "it died"))
    successor = replace(ONE, incarnation="next")
    assert not sent(tell(core, WorkerJoined(successor, WorkerLoad(), COST)), SendDrain)
    assert not core.state.fleet.workers[successor.key].draining
