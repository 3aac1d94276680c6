"""Calls of the store that fail and are executed all the same, at once or at any later time.

Nobody knows whether a call that failed was executed, or will be. So none takes anything from what runs, and
nothing is left over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import hypothesis
import hypothesis.strategies as st
import pytest

from router.core.core import RouterCore
from router.core.model.actions import (
    Action,
    AskGrants,
    AskQueue,
    ChargeTenant,
    Dequeue,
    Enqueue,
    ReleaseCredit,
    ReleaseLease,
    Renew,
    SendDecode,
    SetTimer,
    Settle,
    StoreAction,
    TakeHolds,
    TellFinished,
)
from router.core.model.events import (
    CancelAsked,
    Charged,
    Enqueued,
    Event,
    Granted,
    GrantsAnswered,
    HoldsLost,
    QueueSeen,
    QueueWasFull,
    SettleAnswered,
    StepReported,
    TimerFired,
    WorkerFacts,
    WorkerJoined,
    WorkerLoad,
    WorkerLost,
)
from router.core.model.state import CoreConfig
from router.core.outage import PATIENCE_S
from runtime.state.errors import QueueFull
from runtime.state.records import GRANT_TTL_MS, LEASE_TTL_S, QueueEntry
from scheduling.columns import TokenColumns
from scheduling.placement import Placement
from scheduling.request import FinishReason, SequenceSpec
from sim.store.memory_store import MemoryStore
from tests.router.core_driver import ARRIVAL, COST, ONE, TWO, call, failure_of

KINDS = (Enqueue, Settle, ReleaseCredit, ReleaseLease, Dequeue)
LOAD = WorkerLoad(free_blocks=64)
START = 100.0
MOST_TURNS = 200
CONFIG = CoreConfig("router-a", placement=Placement.AGGREGATED, router_incarnation="i")


@dataclass
class Fleet:
    """Two workers, one store and one router, whose calls are executed when `call` says so."""

    call: Callable[[Fleet, Action], None]
    workers: tuple[WorkerFacts, ...] = (ONE, TWO)
    config: CoreConfig = CONFIG
    now: float = START
    core: RouterCore = field(init=False)
    store: MemoryStore = field(init=False)
    calls: list[Action] = field(default_factory=list)
    timers: list[SetTimer] = field(default_factory=list)
    running: dict[int, tuple[str, SequenceSpec]] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    away: bool = False

    def __post_init__(self) -> None:
        self.store = MemoryStore(lambda: self.now)
        self.core = RouterCore(self.config)
        for facts in self.workers:
            self.join(facts.key)

    def tell(self, event: Event) -> None:
        for action in self.core.on(event, self.now):
            match action:
                case SetTimer():
                    self.timers.append(action)
                case SendDecode(worker_key, spec):
                    self.running[spec.handle] = worker_key, spec
                case TellFinished(listener):
                    self.finished.append(listener)
                case _ if isinstance(action, StoreAction):
                    self.calls.append(action)

    def join(self, worker_key: str) -> None:
        (facts,) = [facts for facts in self.workers if facts.key == worker_key]
        self.tell(WorkerJoined(facts, replace(LOAD, free_blocks=facts.num_blocks), COST))

    def lose(self, worker_key: str) -> None:
        """Break a worker's stream for a moment: all that it had is tried again."""
        self.running = {handle: row for handle, row in self.running.items() if row[0] != worker_key}
        self.tell(WorkerLost(worker_key, "its link broke"))
        self.join(worker_key)

    def arrive(self, number: int) -> None:
        self.tell(call(ARRIVAL, listener=number, request_id=f"r{number}", received_at=self.now))

    def finish(self) -> None:
        """End all that runs with its first token."""
        for handle, (worker_key, _) in list(self.running.items()):
            del self.running[handle]
            tokens = TokenColumns([handle], [0], [0], [9], [int(FinishReason.EOS)])
            report = StepReported(worker_key, tokens, LOAD, 0.01, prefilled=[handle], cached_tokens=[0])
            self.tell(report)

    def turn(self, seconds: float = 0.1) -> None:
        """Let time pass, and carry out what the router calls."""
        self.now += seconds
        due = [timer for timer in self.timers if timer.at <= self.now]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            self.tell(TimerFired(timer.timer))
        while self.calls:
            self.call(self, self.calls.pop(0))

    def until(self, is_so: Callable[[], object]) -> None:
        for _ in range(MOST_TURNS):
            if is_so():
                return
            self.turn()
        pytest.fail("it never came to this")

    def execute(self, call: Action) -> Sequence[Event]:
        """Execute a call at the store, and return the events of its answer."""
        events: Sequence[Event] = ()
        match call:
            case Enqueue(entry, capacity):
                events = (self._enqueue(entry, capacity),)
            case Dequeue(key):
                self.store.dequeue(key)
            case AskGrants(room, decoders):
                grants = self.store.grant(self.config.caller, room, decoders)
                own = [Granted(grant.request_key, grant.worker_key, grant.decode_key) for grant in grants]
                events = (*own, GrantsAnswered(room.key))
            case Settle(key, prefill_key, decoders):
                done = self.store.settle(key, prefill_key, decoders, LEASE_TTL_S)
                events = (SettleAnswered(key, prefill_key, done.decode_key, done.outcome),)
            case ReleaseCredit(key, worker_key):
                self.store.release_credit(key, worker_key)
            case ReleaseLease(key, worker_key):
                self.store.release_lease(key, worker_key)
            case Renew(credits, leases):
                lost = self.store.renew(credits, leases, LEASE_TTL_S)
                events = (HoldsLost(lost.credits, lost.leases),) if lost.credits or lost.leases else ()
            case TakeHolds(credits, leases):
                self.store.take_holds(credits, leases, LEASE_TTL_S)
            case ChargeTenant(request_key, tenant, tokens, lead, band):
                events = (Charged(request_key, self.store.charge_tenant(tenant, tokens, lead, band)),)
            case AskQueue():
                events = (QueueSeen(0, 0),)
        return events

    def _enqueue(self, entry: QueueEntry, capacity: int) -> Event:
        try:
            place = self.store.enqueue(entry, capacity)
        except QueueFull as full:
            return QueueWasFull(entry.request_key, full.capacity)
        return Enqueued(entry.request_key, place.position, place.work_ahead_tokens)

    def answer(self, call: Action) -> None:
        if self.away:
            self.tell(failure_of(call))
            return
        for event in self.execute(call):
            self.tell(event)

    def held(self) -> dict[tuple[str, str, str], int]:
        """Return what the store holds of both workers: credits and leases by name."""
        return {
            (kind, key, facts.key): amount
            for facts in (ONE, TWO)
            for kind, held in (
                ("credit", self.store.credits(facts.key)),
                ("lease", self.store.leases(facts.key)),
            )
            for key, amount in held.items()
        }

    def owned(self) -> dict[tuple[str, str, str], int]:
        """Return what the router holds."""
        groups = self.core.state.groups.values()
        bound = {("credit", group.key, group.credit_on): group.work_tokens for group in groups}
        leases = {("lease", group.key, group.lease_on): group.blocks for group in groups}
        return {(kind, key, on): amount for (kind, key, on), amount in (bound | leases).items() if on}


def answered(fleet: Fleet, call: Action) -> None:
    fleet.answer(call)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_settle_that_was_executed_and_failed_leaves_nothing_behind(*, is_cancelled: bool) -> None:
    failed: list[Action] = []

    def call(fleet: Fleet, action: Action) -> None:
        if not isinstance(action, Settle) or failed:
            fleet.answer(action)
            return
        failed.append(action)
        fleet.execute(action)
        if is_cancelled:
            fleet.tell(CancelAsked("t", "r1"))
        fleet.tell(failure_of(action))

    fleet = Fleet(call)
    fleet.arrive(1)
    fleet.until(lambda: failed)
    assert len(fleet.held()) == 2
    fleet.until(lambda: fleet.running or (is_cancelled and not fleet.held()))
    assert fleet.held() == fleet.owned()
    assert fleet.now < START + LEASE_TTL_S / 2, "nothing had to expire"


def test_a_settle_executed_between_two_dequeues_leaves_nothing_behind() -> None:
    """The settle failed, and so did the first of the calls that give its place back."""
    failed: list[Action] = []
    late: list[Action] = []

    def call(fleet: Fleet, action: Action) -> None:
        if isinstance(action, Settle) and not failed:
            failed.append(action)
            late.append(action)
            fleet.tell(failure_of(action))
        elif isinstance(action, Dequeue) and len(failed) == 1:
            failed.append(action)
            fleet.tell(failure_of(action))
        else:
            if isinstance(action, Dequeue) and late:
                fleet.execute(late.pop())
                assert len(fleet.held()) == 2
            fleet.answer(action)

    fleet = Fleet(call)
    fleet.arrive(1)
    fleet.until(lambda: fleet.running and not late)
    fleet.until(lambda: fleet.held() == fleet.owned())
    assert fleet.now < START + LEASE_TTL_S / 2, "nothing had to expire"


def test_a_release_executed_late_takes_nothing_from_a_later_attempt() -> None:
    late: list[Action] = []

    def call(fleet: Fleet, action: Action) -> None:
        if isinstance(action, ReleaseCredit | ReleaseLease) and action not in late:
            late.append(action)
            fleet.tell(failure_of(action))
        else:
            fleet.answer(action)

    fleet = Fleet(call, workers=(ONE,))
    fleet.arrive(1)
    fleet.until(lambda: fleet.running)
    fleet.lose(ONE.key)
    fleet.until(lambda: fleet.running)
    assert len(late) == 2
    for action in late:
        fleet.execute(action)
    assert len(fleet.held()) == 2
    assert fleet.held() == fleet.owned()


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_a_grant_left_is_not_taken_from_the_next_one(*, is_lost: bool) -> None:
    """Its settle failed, or its worker was gone when the answer came. All releases are executed late."""
    settled: list[Action] = []
    late: list[Action] = []

    def call(fleet: Fleet, action: Action) -> None:
        if isinstance(action, Settle) and not settled:
            settled.append(action)
            answer = fleet.execute(action)
            if not is_lost:
                fleet.tell(failure_of(action))
                return
            fleet.tell(WorkerLost(ONE.key, "its link broke"))
            for event in answer:
                fleet.tell(event)
            fleet.join(ONE.key)
        elif isinstance(action, ReleaseCredit | ReleaseLease) and action not in late:
            late.append(action)
            fleet.tell(failure_of(action))
        elif action not in late:
            fleet.answer(action)

    fleet = Fleet(call, workers=(ONE,))
    fleet.arrive(1)
    fleet.until(lambda: fleet.running)
    assert len(late) == 2
    for action in late:
        fleet.execute(action)
    assert len(fleet.held()) == 2
    assert fleet.held() == fleet.owned()


def test_what_one_router_releases_another_keeps() -> None:
    """Both were sent the same request, and its names are theirs alone."""
    fleet = Fleet(answered)
    fleet.arrive(1)
    fleet.until(lambda: fleet.running)
    (key,) = fleet.core.state.groups
    peer = RouterCore(CoreConfig("router-b", placement=Placement.AGGREGATED, router_incarnation="j"))
    peer.on(WorkerJoined(ONE, LOAD, COST), fleet.now)
    actions = peer.on(call(ARRIVAL, received_at=fleet.now), fleet.now)
    names = {action.entry.request_key for action in actions if isinstance(action, Enqueue)}
    assert len(names) == 1
    assert names != {key}


def test_each_process_of_a_router_waits_under_its_own_name() -> None:
    """Nobody listens for what an earlier one left in the queue, so it is granted to nobody."""
    names = set()
    for incarnation in "ij":
        core = RouterCore(replace(CONFIG, router_incarnation=incarnation))
        core.on(WorkerJoined(ONE, LOAD, COST), START)
        actions = core.on(call(ARRIVAL, received_at=START), START)
        names |= {action.entry.router_id for action in actions if isinstance(action, Enqueue)}
    assert names == {"router-a~i", "router-a~j"}


def test_what_expired_while_nobody_renewed_it_is_entered_again() -> None:
    """A router that stands still for nine seconds, or twice for five, renews what has expired."""
    is_deaf = False

    def call(fleet: Fleet, action: Action) -> None:
        if not (is_deaf and isinstance(action, Renew)):
            fleet.answer(action)

    fleet = Fleet(call)
    fleet.arrive(1)
    fleet.until(lambda: fleet.running)
    is_deaf = True  # what it sent before the standstill is lost
    fleet.turn(1.1)
    is_deaf = False
    for _ in range(2):
        fleet.now += 5.0
    assert not fleet.held()
    fleet.turn()
    assert len(fleet.held()) == 2
    assert fleet.held() == fleet.owned()


def test_what_was_accepted_waits_for_the_store_for_a_while_at_most() -> None:
    fleet = Fleet(answered)
    fleet.away = False
    granted: list[Action] = []

    def call(fleet: Fleet, action: Action) -> None:
        fleet.away = fleet.away or isinstance(action, Settle)
        if isinstance(action, Settle):
            granted.append(action)
        fleet.answer(action)

    fleet.call = call
    fleet.arrive(1)
    fleet.until(lambda: granted)
    lost_at = fleet.now
    fleet.until(lambda: fleet.running)
    assert PATIENCE_S <= fleet.now - lost_at < PATIENCE_S + 0.5
    fleet.finish()
    assert fleet.finished == [1]


@dataclass
class Trouble:
    """Lets calls fail as drawn, and executes some of them later."""

    data: st.DataObject
    is_over: bool = False
    late: list[Action] = field(default_factory=list)

    def call(self, fleet: Fleet, action: Action) -> None:
        outcome = "answered"
        if not self.is_over and isinstance(action, KINDS):
            outcome = self.data.draw(st.sampled_from(["answered", "answered", "lost", "executed", "late"]))
        if outcome == "answered":
            fleet.answer(action)
            return
        if outcome == "executed":
            fleet.execute(action)
        elif outcome == "late":
            self.late.append(action)
        fleet.tell(failure_of(action))

    def execute_one(self, fleet: Fleet) -> None:
        if self.late:
            fleet.execute(self.late.pop(self.data.draw(st.integers(0, len(self.late) - 1))))


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.data())
def test_no_failed_call_takes_what_runs_or_leaves_anything(data: st.DataObject) -> None:
    trouble = Trouble(data)
    fleet = Fleet(trouble.call)
    for number in range(1, data.draw(st.integers(2, 12))):
        match data.draw(st.sampled_from(["arrive", "again", "lose", "finish", "late", "cancel", "wait"])):
            case "arrive":
                fleet.arrive(number)
            case "again":
                fleet.tell(CancelAsked("t", "r1"))
                fleet.core.state.retained.clear()
                fleet.tell(call(ARRIVAL, listener=number, request_id="r1", received_at=fleet.now))
            case "lose":
                fleet.lose(data.draw(st.sampled_from([ONE.key, TWO.key])))
            case "finish":
                fleet.finish()
            case "late":
                trouble.execute_one(fleet)
            case "cancel":
                fleet.tell(CancelAsked("t", f"r{number - 1}"))
        fleet.turn(data.draw(st.sampled_from([0.1, 1.0])))
        assert fleet.owned().items() <= fleet.held().items()
    trouble.is_over = True
    fleet.arrive(100)  # whoever asks for grants meets what was left in the queue
    for _ in range(40):
        trouble.execute_one(fleet)
        fleet.turn()
        fleet.finish()
        assert fleet.owned().items() <= fleet.held().items()
    assert not trouble.late
    assert 100 in fleet.finished
    assert not fleet.core.state.live
    fleet.turn(2 * GRANT_TTL_MS / 1000)
    assert fleet.held() == {}
    assert fleet.now < START + 30.0
