"""Step reports and lost streams that fall together in ways that are rare by chance."""

from __future__ import annotations

from router.core.core import RouterCore
from router.core.model.actions import (
    Action,
    AskGrants,
    Dequeue,
    Enqueue,
    ReleaseCredit,
    ReleaseLease,
    SendDecode,
    SendReceive,
    Settle,
    TakeHolds,
    TellFinished,
)
from router.core.model.events import (
    Enqueued,
    Event,
    Granted,
    GrantsAnswered,
    HoldsLost,
    QueueSeen,
    SettleAnswered,
    StepReported,
    StoreCall,
    StoreFailed,
    StoreForgot,
    WorkerFacts,
    WorkerJoined,
    WorkerLoad,
    WorkerLost,
)
from router.core.model.state import CoreConfig
from router.request import Received
from runtime.state.records import Hold, Settled
from scheduling.columns import TokenColumns
from scheduling.request import FinishReason, SamplingParams, SequenceSpec, StopRules
from tests.router.core_driver import ARRIVAL, COST, call

CALLED = call(ARRIVAL, request_id="r", prompt_token_ids=(3, 5, 7), stop=StopRules(max_tokens=2))
PREFILL, DECODE = (
    WorkerFacts(role, "1", role, f"{role}:1", "fp", 4, 64, 8, 64) for role in ("prefill", "decode")
)


class Driver:
    """A core whose store always says yes; remembers what was dispatched to decode workers."""

    def __init__(self, *workers: WorkerFacts) -> None:
        self.core = RouterCore(CoreConfig("router-a"))
        self.specs: list[SequenceSpec] = []
        self.waiting: list[str] = []
        self.finished: list[int] = []
        self.released: list[ReleaseCredit | ReleaseLease] = []
        self.entered: list[TakeHolds] = []
        for facts in workers:
            self.tell(WorkerJoined(facts, WorkerLoad(free_blocks=64), COST))

    def tell(self, event: Event, now: float = 1.0) -> None:
        for action in self.core.on(event, now):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Enqueue(entry):
                self.waiting.append(entry.request_key)
                self.tell(Enqueued(entry.request_key, 0, 0))
            case AskGrants(worker, decoders):
                waiting, self.waiting = self.waiting, []
                for request_key in waiting:
                    self.tell(Granted(request_key, worker.key, decoders[0].key))
                self.tell(GrantsAnswered(worker.key))
            case Settle():
                answer = (action.request_key, action.prefill_key, action.decoders[0].key, Settled.OK)
                self.tell(SettleAnswered(*answer))
            case SendDecode(_, spec) | SendReceive(_, spec, _):
                self.specs.append(spec)
            case ReleaseCredit() | ReleaseLease():
                self.released.append(action)
            case TakeHolds():
                self.entered.append(action)
            case TellFinished(listener):
                self.finished.append(listener)

    def arrive(self, n: int, *received: Received) -> None:
        self.tell(call(CALLED, sampling=SamplingParams(n=n), session=int(bool(received)), received=received))

    def step(self, worker: WorkerFacts, index: int, reason: FinishReason = FinishReason.NONE) -> None:
        """A token of every dispatched choice, in one report."""
        rows = [(spec.handle, choice) for spec in self.specs for choice in spec.choices]
        tokens = TokenColumns(
            handles=[handle for handle, _ in rows],
            choices=[choice for _, choice in rows],
            indexes=[index] * len(rows),
            token_ids=[9] * len(rows),
            finish_reasons=[int(reason)] * len(rows),
        )
        self.tell(StepReported(worker.key, tokens, WorkerLoad(free_blocks=64)))


def test_two_groups_of_a_request_may_end_in_one_step() -> None:
    driver = Driver(DECODE)
    driver.arrive(2, Received(0, (9,), FinishReason.NONE), Received(1, (9,), FinishReason.NONE))
    assert [spec.choices for spec in driver.specs] == [(0,), (1,)]
    driver.step(DECODE, 1, FinishReason.LENGTH)
    assert driver.finished == [1]
    assert not driver.core.state.groups


def test_a_returning_prefill_worker_disturbs_no_handed_over_group() -> None:
    driver = Driver(PREFILL, DECODE)
    driver.arrive(1)
    driver.step(DECODE, 0)
    driver.tell(WorkerLost(PREFILL.key, "silent for 5 s"))
    driver.tell(WorkerJoined(PREFILL, WorkerLoad(free_blocks=64), COST))
    driver.step(DECODE, 1, FinishReason.LENGTH)
    assert driver.finished == [1]
    assert not driver.core.state.groups


def test_returns_that_redis_missed_are_repeated_when_it_is_back() -> None:
    driver = Driver(DECODE)
    driver.arrive(1)
    driver.step(DECODE, 0, FinishReason.EOS)
    credit, lease = driver.released
    for failed in (StoreCall.RELEASE_CREDIT, StoreCall.RELEASE_LEASE):
        driver.tell(StoreFailed(failed, "t/r/0", "away", DECODE.key))
    assert driver.released == [credit, lease]
    driver.tell(QueueSeen(0, 0))
    driver.tell(QueueSeen(0, 0))
    assert driver.released == [credit, lease, credit, lease]


def test_no_more_places_are_given_up_later_than_the_queue_has() -> None:
    """An outage may be long, and a request that ends meanwhile leaves a place that Redis may still have."""
    core = RouterCore(CoreConfig("router-a", queue_capacity=3))
    for number in range(10):
        core.on(StoreFailed(StoreCall.DEQUEUE, f"t/r{number}/0", "away"), 1.0)
    actions = core.on(QueueSeen(0, 0), 2.0)
    assert [action for action in actions if isinstance(action, Dequeue)] == [
        Dequeue(f"t/r{number}/0") for number in range(3)
    ]


def test_what_runs_is_entered_again_where_the_store_forgot_it() -> None:
    driver = Driver(DECODE)
    driver.arrive(1)
    running = Hold("t/r/0", DECODE.key, driver.core.state.groups["t/r/0"].blocks)
    bound = Hold("t/r/0", DECODE.key, driver.core.state.groups["t/r/0"].work_tokens)
    driver.tell(StoreForgot())
    assert driver.entered == [TakeHolds((bound,), (running,))]
    driver.step(DECODE, 0, FinishReason.LENGTH)
    driver.tell(StoreForgot())
    assert len(driver.entered) == 1, "nothing runs any more"


def test_what_could_not_be_entered_is_entered_when_the_store_answers() -> None:
    driver = Driver(DECODE)
    driver.arrive(1)
    driver.tell(StoreForgot())
    for times in (2, 3):
        driver.tell(StoreFailed(StoreCall.TAKE_HOLDS, "", "away"))
        driver.tell(QueueSeen(0, 0))
        driver.tell(QueueSeen(0, 0))
        assert driver.entered == [driver.entered[0]] * times
    driver.tell(StoreFailed(StoreCall.TAKE_HOLDS, "", "away"))
    driver.step(DECODE, 0, FinishReason.LENGTH)
    driver.tell(QueueSeen(0, 0))
    assert len(driver.entered) == 3, "nothing runs any more"


def test_holds_that_may_have_expired_meanwhile_are_entered_again() -> None:
    driver = Driver(DECODE)
    driver.arrive(1)
    driver.tell(StoreFailed(StoreCall.OTHER, "renew", "away"))
    driver.tell(QueueSeen(0, 0))
    group = driver.core.state.groups["t/r/0"]
    bound, running = (Hold("t/r/0", DECODE.key, amount) for amount in (group.work_tokens, group.blocks))
    assert driver.entered == [TakeHolds((bound,), (running,))]


def test_holds_that_could_not_be_renewed_are_entered_again() -> None:
    driver = Driver(DECODE)
    driver.arrive(1)
    group = driver.core.state.groups["t/r/0"]
    bound, running = (Hold("t/r/0", DECODE.key, amount) for amount in (group.work_tokens, group.blocks))
    here, elsewhere, ended = ("t/r/0", DECODE.key), ("t/r/0", "other:1"), ("t/gone/0", DECODE.key)
    driver.tell(HoldsLost((here, elsewhere, ended), ()))
    driver.tell(HoldsLost((), (here, elsewhere, ended)))
    assert driver.entered == [TakeHolds((bound,), ()), TakeHolds((), (running,))]
    driver.step(DECODE, 0, FinishReason.LENGTH)
    driver.tell(HoldsLost((here,), (here,)))
    assert len(driver.entered) == 2, "it was given back meanwhile"
