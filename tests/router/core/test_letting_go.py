"""A failed prefill or a client that left leaves nothing behind on workers and in the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.core.core import RouterCore
from router.core.model.actions import (
    AskGrants,
    AttemptFailed,
    Dequeue,
    Enqueue,
    Reject,
    ReleaseCredit,
    ReleaseLease,
    SendCancel,
    SendPrefill,
    SendReceive,
    Settle,
    TellFinished,
)
from router.core.model.events import (
    Arrived,
    ClientGone,
    Event,
    Granted,
    GrantsAnswered,
    QueueWasFull,
    SequenceFailed,
    SettleAnswered,
    StepReported,
    WorkerFacts,
    WorkerLoad,
    WorkerLoaded,
    WorkerLost,
)
from router.errors import Overloaded
from runtime.state.records import Settled
from scheduling.columns import TokenColumns
from scheduling.placement import Placement
from scheduling.request import FailureReason, SamplingParams
from tests.router.core_driver import ARRIVAL, arrive, call, core_of, tell

PREFILL, DECODE = (
    WorkerFacts(role, "1", role, f"{role}:1", "fp", 4, 64, 8, 64) for role in ("prefill", "decode")
)
KEY = "t/r1/0"
FREE = WorkerLoad(free_blocks=64)


def disaggregated() -> RouterCore:
    return core_of("slack", PREFILL, DECODE, placement=Placement.DISAGGREGATED)


def dispatched(core: RouterCore, event: Arrived = ARRIVAL) -> int:
    """A request is on both workers and has no token yet; its handle."""
    (ask,) = [action for action in arrive(core, 1, event) if isinstance(action, AskGrants)]
    given = tell(core, Granted(KEY, ask.worker.key, DECODE.key), GrantsAnswered(ask.worker.key))
    (settle,) = [action for action in given if isinstance(action, Settle)]
    sent = tell(core, SettleAnswered(KEY, settle.prefill_key, settle.decoders[0].key, Settled.OK))
    (prefill,) = [action for action in sent if isinstance(action, SendPrefill)]
    (receive,) = [action for action in sent if isinstance(action, SendReceive)]
    assert prefill.spec.handle == receive.spec.handle
    return prefill.spec.handle


def failure(worker: WorkerFacts, handle: int) -> StepReported:
    failed = SequenceFailed(handle, FailureReason.INTERNAL, "out of memory")
    return StepReported(worker.key, TokenColumns(), FREE, failures=(failed,))


def ends_of_a_prefill(handle: int) -> dict[str, Event]:
    return {"failed": failure(PREFILL, handle), "died": WorkerLost(PREFILL.key, "killed")}


@pytest.mark.parametrize("end", ["failed", "died"])
def test_no_decode_runs_on_kv_of_a_prefill_that_failed(end: str) -> None:
    core = disaggregated()
    handle = dispatched(core)
    assert SendCancel(DECODE.key, (handle,)) in tell(core, ends_of_a_prefill(handle)[end])
    late = StepReported(DECODE.key, TokenColumns([handle], [0], [0], [9], [0]), FREE)
    tell(core, late)
    assert core.state.counters.relayed_tokens == 0, "what it decodes all the same is nobody's"


@pytest.mark.parametrize("end", ["failed", "died"])
def test_a_failed_prefill_pins_no_decode_slot(end: str) -> None:
    core = disaggregated()
    decode = core.state.fleet.workers[DECODE.key]
    handle = dispatched(core)
    assert (decode.decode_seqs, decode.free_blocks) == (1, 64 - core.state.groups[KEY].blocks)
    ended = tell(core, ends_of_a_prefill(handle)[end])
    assert ReleaseLease(KEY, DECODE.key) in ended
    assert (decode.decode_seqs, decode.free_blocks) == (0, 64)


def test_a_dead_prefill_worker_takes_no_healthy_decode_along() -> None:
    core = disaggregated()
    handle = dispatched(core)
    tell(core, StepReported(DECODE.key, TokenColumns([handle], [0], [0], [9], [0]), FREE))
    lost = tell(core, WorkerLost(PREFILL.key, "killed"))
    assert not [action for action in lost if isinstance(action, SendCancel | Enqueue)]
    told = StepReported(DECODE.key, TokenColumns([handle], [0], [1], [9], [3]), FREE)
    assert [action.listener for action in tell(core, told) if isinstance(action, TellFinished)] == [1]
    assert core.state.counters.retried_attempts == 0


RELEASED, LEFT = "the decode worker holds nothing", "the prefill worker has left"


@pytest.mark.parametrize("order", [(RELEASED, LEFT), (LEFT, RELEASED)], ids=["told first", "told last"])
def test_a_last_report_that_a_leaving_worker_loses_ends_no_request(order: tuple[str, str]) -> None:
    """All choices ended with it, so the decode worker reports nothing but that it holds none of them."""
    core = disaggregated()
    handle = dispatched(core)
    tell(core, WorkerLoaded(PREFILL.key, replace(FREE, draining=True)))
    events: dict[str, Event] = {
        RELEASED: StepReported(DECODE.key, TokenColumns(), FREE, released=(handle,)),
        LEFT: WorkerLost(PREFILL.key, "it has left"),
    }
    first, second = (tell(core, events[name]) for name in order)
    assert not [action for action in first if isinstance(action, Enqueue)], "its report may still come"
    assert [action.entry.request_key for action in second if isinstance(action, Enqueue)] == [KEY]
    assert core.state.counters.retried_attempts == 0, "nothing has failed"


def test_a_prefill_worker_s_report_ends_what_the_decoder_released() -> None:
    core = disaggregated()
    handle = dispatched(core)
    tell(core, StepReported(DECODE.key, TokenColumns(), FREE, released=(handle,)))
    told = tell(core, StepReported(PREFILL.key, TokenColumns([handle], [0], [0], [9], [1]), FREE))
    assert [action.listener for action in told if isinstance(action, TellFinished)] == [1]
    assert not core.state.groups


def test_a_group_that_its_worker_dropped_is_tried_again() -> None:
    core = disaggregated()
    handle = dispatched(core)
    tell(core, StepReported(DECODE.key, TokenColumns([handle], [0], [0], [9], [0]), FREE))
    dropped = tell(core, StepReported(DECODE.key, TokenColumns(), FREE, released=(handle,)))
    assert [action.reason for action in dropped if isinstance(action, AttemptFailed)]
    assert [action.entry.request_key for action in dropped if isinstance(action, Enqueue)] == [KEY]


def test_a_group_that_was_handed_over_is_not_missed_at_its_source() -> None:
    core = disaggregated()
    handle = dispatched(core)
    first = TokenColumns([handle], [0], [0], [9], [0])
    tell(core, StepReported(PREFILL.key, first, FREE), StepReported(DECODE.key, first, FREE))
    freed = tell(core, StepReported(PREFILL.key, TokenColumns(), FREE, released=(handle,)))
    assert not [action for action in freed if isinstance(action, AttemptFailed | Enqueue)]
    assert not core.state.groups[KEY].is_released


def test_log_probabilities_that_a_leaving_worker_loses_come_anew() -> None:
    """The decode worker has the KV, and never reports those of the prompt."""
    core = disaggregated()
    handle = dispatched(core, call(ARRIVAL, sampling=SamplingParams(prompt_logprobs=0)))
    tell(core, WorkerLoaded(PREFILL.key, replace(FREE, draining=True)))
    tell(core, StepReported(DECODE.key, TokenColumns([handle], [0], [0], [9], [0]), FREE))
    left = tell(core, WorkerLost(PREFILL.key, "it has left"))
    assert [action.entry.request_key for action in left if isinstance(action, Enqueue)] == [KEY]
    assert core.state.counters.retried_attempts == 0, "nothing has failed"


def test_no_prefill_goes_on_for_a_client_that_left() -> None:
    core = disaggregated()
    handle = dispatched(core)
    gone = tell(core, ClientGone(1))
    for worker in (PREFILL, DECODE):
        assert SendCancel(worker.key, (handle,)) in gone
    assert ReleaseCredit(KEY, PREFILL.key) in gone, "it would keep the next prompt from the worker"
    assert ReleaseLease(KEY, DECODE.key) in gone
    tell(core, StepReported(PREFILL.key, TokenColumns(), FREE))
    assert [action.worker.key for action in arrive(core, 2) if isinstance(action, AskGrants)] == [PREFILL.key]


def test_nothing_starts_for_a_client_that_went_while_it_waited() -> None:
    core = disaggregated()
    (ask,) = [action for action in arrive(core, 1) if isinstance(action, AskGrants)]
    assert Dequeue(KEY) in tell(core, ClientGone(1))
    late = tell(core, Granted(KEY, ask.worker.key, DECODE.key), GrantsAnswered(ask.worker.key))
    assert ReleaseCredit(KEY, ask.worker.key) in late
    assert not [action for action in late if isinstance(action, Settle)]


def test_a_full_queue_takes_nobody_in_and_says_when_to_come_back() -> None:
    core = disaggregated()
    tell(core, call(ARRIVAL, request_id="r1"))
    (refused,) = [action for action in tell(core, QueueWasFull(KEY, 64)) if isinstance(action, Reject)]
    assert isinstance(refused.error, Overloaded)
    assert refused.error.retry_after_s is not None
    assert refused.error.retry_after_s > 0
    assert not core.state.groups


def test_a_later_router_does_not_take_filling_blocks_for_empty() -> None:
    """It dispatched none of it: its workers say what they have."""
    core = core_of("slack", DECODE)
    busy = WorkerLoad(running=DECODE.max_num_seqs, free_blocks=1, context_tokens=200)
    tell(core, StepReported(DECODE.key, TokenColumns(), busy))
    worker = core.state.fleet.workers[DECODE.key]
    assert (worker.num_seqs, worker.free_blocks) == (DECODE.max_num_seqs, 1)
    (ask,) = [action for action in arrive(core, 1) if isinstance(action, AskGrants)]
    given = tell(core, Granted(KEY, ask.worker.key, DECODE.key), GrantsAnswered(ask.worker.key))
    assert not [action for action in given if isinstance(action, Settle)]
