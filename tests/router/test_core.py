"""The core under arbitrary interleavings: every token once and in order, everything held returned once."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.actions import (
    Action,
    AskGrants,
    AskQueue,
    ChargeTenant,
    Dequeue,
    Enqueue,
    Reject,
    Relay,
    ReleaseCredit,
    ReleaseLease,
    SendCancel,
    SendDecode,
    SendPrefill,
    SendReceive,
    SetTimer,
    Settle,
    TellAccepted,
    TellChoiceFinished,
    TellFinished,
)
from router.book import IN_QUEUE, CoreConfig
from router.core import RouterCore
from router.events import (
    Arrived,
    CancelAsked,
    Charged,
    ClientGone,
    Event,
    GrantsAnswered,
    QueueSeen,
    SequenceFailed,
    SettleAnswered,
    StepReported,
    StoreCall,
    StoreFailed,
    TimerFired,
    WorkerJoined,
    WorkerLoaded,
    WorkerLost,
)
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.request import (
    FailureReason,
    FinishReason,
    SamplingParams,
    SequenceSpec,
    Slo,
    SloClass,
    StopRules,
)
from scheduling.shares import Standing
from tests.router.core_model import Heard, ModelStore, ModelWorker, Running
from tests.router.scripted_worker import token_at

ROUTER = "router-a"
PROMPT = (3, 5, 7)
COST = CostModel((0.01, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)


@hypothesis.settings(max_examples=100, stateful_step_count=60)
class CoreMachine(RuleBasedStateMachine):
    """Clients, a store and workers that behave as badly as they may."""

    def __init__(self) -> None:
        super().__init__()
        self.core = RouterCore(CoreConfig(ROUTER))
        self.now = 100.0
        self.store = ModelStore()
        self.calls: list[Action] = []
        self.timers: list[SetTimer] = []
        self.workers: dict[str, ModelWorker] = {}
        self.heard: dict[int, Heard] = {}
        self.listeners = 0
        self.incarnations = 0
        self.names = 0
        self.store_up = True
        self.log: list[tuple[Event, float, list[Action]]] = []

    # Carrying actions out

    def tell(self, event: Event) -> None:
        actions = self.core.on(event, self.now)
        self.log.append((event, self.now, actions))
        for action in actions:
            self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        match action:
            case (
                Enqueue()
                | Dequeue()
                | AskGrants()
                | Settle()
                | ReleaseCredit()
                | ReleaseLease()
                | AskQueue()
                | ChargeTenant()
            ):
                self.calls.append(action)
            case SetTimer():
                self.timers.append(action)
            case SendPrefill(worker_key, spec):
                self.start(worker_key, spec, prefills=True)
            case SendReceive(worker_key, spec, _):
                self.start(worker_key, spec, prefills=False)
            case SendDecode(worker_key, spec):
                self.start(worker_key, spec, prefills=False)
            case SendCancel(worker_key, handles):
                self.stop(worker_key, handles)
            case Relay():
                self.relay(action)
            case TellAccepted(listener):
                self.heard[listener].accepted += 1
            case TellChoiceFinished(listener, choice, reason, count):
                heard = self.heard[listener]
                assert choice not in heard.ended
                assert count == heard.first + len(heard.tokens[choice])
                heard.ended[choice] = reason
            case TellFinished(listener) | Reject(listener):
                self.heard[listener].over += 1

    def start(self, worker_key: str, spec: SequenceSpec, *, prefills: bool) -> None:
        worker = self.workers[worker_key]
        assert spec.handle not in worker.running
        first = len(spec.output_token_ids)
        assert spec.output_token_ids == tuple(token_at(PROMPT, spec.choices[0], i) for i in range(first))
        worker.running[spec.handle] = Running(spec, prefills, dict.fromkeys(spec.choices, first))

    def stop(self, worker_key: str, handles: tuple[int, ...]) -> None:
        worker = self.workers[worker_key]
        for handle in handles:
            running = worker.running.pop(handle, None)
            if running is not None:
                for choice, index in running.next_index.items():
                    worker.forgotten.append((handle, choice, index, token_at(PROMPT, choice, index)))

    def relay(self, relay: Relay) -> None:
        for listener, choice, index, token_id, reason in zip(
            relay.listeners, relay.choices, relay.indexes, relay.token_ids, relay.finish_reasons, strict=True
        ):
            heard = self.heard[listener]
            assert heard.accepted == 1
            assert not heard.over
            assert choice not in heard.ended
            assert index == heard.first + len(heard.tokens[choice])
            assert token_id == token_at(PROMPT, choice, index)
            heard.tokens[choice].append(token_id)
            if reason:
                heard.ended[choice] = FinishReason(reason)

    # Clients

    def arrival(self, request_id: str, n: int, max_tokens: int, grace_s: float, **fields: object) -> Arrived:
        self.listeners += 1
        self.heard[self.listeners] = Heard(max_tokens)
        return Arrived(
            listener=self.listeners,
            tenant="t",
            request_id=request_id,
            digest=bytes([n, max_tokens]),
            prompt_token_ids=PROMPT,
            sampling=SamplingParams(n=n),
            seed_given=False,
            stop=StopRules(max_tokens),
            received_at=self.now,
            resume_grace_s=grace_s,
            **({"session": 0, "slo": Slo()} | fields),  # type: ignore[arg-type]  # fields of Arrived
        )

    @initialize()
    def two_of_each(self) -> None:
        for name, role in (("p0", "prefill"), ("p1", "prefill"), ("d0", "decode"), ("d1", "decode")):
            self.join(name, role)

    @rule(
        n=st.integers(1, 3),
        max_tokens=st.integers(1, 5),
        grace_s=st.sampled_from([0.0, 5.0]),
        slo=st.sampled_from(
            [
                Slo(),
                Slo(ttft_ms=500),
                Slo(ttft_ms=200, allow_at_risk=True, slo_class=SloClass.BATCH),
                Slo(deadline_ms=2000),
                Slo(tpot_ms=5, allow_at_risk=True),
            ]
        ),
    )
    def client_calls(self, n: int, max_tokens: int, grace_s: float, slo: Slo) -> None:
        self.names += 1
        self.tell(self.arrival(f"r{self.names}", n, max_tokens, grace_s, slo=slo))

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def client_calls_again(self, data: st.DataObject) -> None:
        known = self.core.book.find("t", f"r{data.draw(st.integers(1, self.names))}")
        if known is not None:
            n, max_tokens = known.sampling.n, known.stop.max_tokens
            self.tell(self.arrival(known.request_id, n, max_tokens, 5.0))

    @precondition(lambda self: self.listeners)
    @rule(data=st.data())
    def client_goes(self, data: st.DataObject) -> None:
        listener = data.draw(st.integers(1, self.listeners))
        self.heard[listener].gone = True
        self.tell(ClientGone(listener))

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def client_cancels(self, data: st.DataObject) -> None:
        self.tell(CancelAsked("t", f"r{data.draw(st.integers(1, self.names))}"))

    # The store

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def store_answers(self, data: st.DataObject) -> None:
        """Any call, but those of one key in order."""
        candidates = [
            i for i, call in enumerate(self.calls) if key_of(call) not in map(key_of, self.calls[:i])
        ]
        call = self.calls.pop(data.draw(st.sampled_from(candidates)))
        if self.store_up:
            self.answer(call)
        else:
            self.refuse(call)

    def answer(self, call: Action) -> None:
        match call:
            case Enqueue(entry):
                self.tell(self.store.enqueue(entry))
            case Dequeue(key):
                self.store.dequeue(key)
            case AskGrants(worker):
                for grant in self.store.grant(call):
                    self.tell(grant)
                self.tell(GrantsAnswered(worker.key))
            case Settle():
                done = self.store.settle(call)
                self.tell(SettleAnswered(call.request_key, call.prefill_key, done.decode_key, done.outcome))
            case ReleaseCredit(key, worker_key):
                self.store.release_credit(key, worker_key)
            case ReleaseLease(key, worker_key):
                self.store.release_lease(key, worker_key)
            case AskQueue():
                self.tell(QueueSeen(len(self.store.queue), 0))
            case ChargeTenant(request_key):
                self.tell(Charged(request_key, Standing(0.0, None, 0, is_over=False)))

    def refuse(self, call: Action) -> None:
        match call:
            case Enqueue(entry):
                self.tell(StoreFailed(StoreCall.ENQUEUE, entry.request_key, "away"))
            case AskGrants(worker):
                self.tell(StoreFailed(StoreCall.GRANT, worker.key, "away"))
            case Settle():
                self.tell(StoreFailed(StoreCall.SETTLE, call.request_key, "away"))
            case ReleaseCredit(key, worker_key):
                self.tell(StoreFailed(StoreCall.RELEASE_CREDIT, key, "away", worker_key))
            case ReleaseLease(key, worker_key):
                self.tell(StoreFailed(StoreCall.RELEASE_LEASE, key, "away", worker_key))
            case Dequeue(key):
                self.tell(StoreFailed(StoreCall.DEQUEUE, key, "away"))
            case ChargeTenant(request_key):
                self.tell(StoreFailed(StoreCall.CHARGE, request_key, "away"))
            case other:
                self.tell(StoreFailed(StoreCall.OTHER, key_of(other), "away"))

    @rule()
    def store_goes_or_comes(self) -> None:
        self.store_up = not self.store_up

    @rule()
    def grants_expire(self) -> None:
        self.store.expire()

    # Workers

    def join(self, name: str, role: str) -> None:
        self.incarnations += 1
        worker = ModelWorker(name, role, self.incarnations)
        self.workers[worker.facts.key] = worker
        self.tell(WorkerJoined(worker.facts, worker.load, COST))

    @rule(data=st.data())
    def worker_computes(self, data: st.DataObject) -> None:
        worker = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        if worker.running:
            handles = data.draw(st.sets(st.sampled_from(sorted(worker.running)), min_size=1))
            self.step(worker, sorted(handles))

    def step(self, worker: ModelWorker, handles: list[int]) -> None:
        rows: list[tuple[int, int, int, int, int]] = []
        prefilled = []
        for handle in handles:
            running = worker.running[handle]
            spec = running.spec
            if min(running.next_index.values()) == len(spec.output_token_ids):
                prefilled.append(handle)
            for choice, index in list(running.next_index.items()):
                ended = index + 1 >= spec.stop.max_tokens
                reason = FinishReason.LENGTH if ended else FinishReason.NONE
                rows.append((handle, choice, index, token_at(PROMPT, choice, index), int(reason)))
                running.next_index[choice] += 1
                if ended:
                    del running.next_index[choice]
            if running.prefills or not running.next_index:
                del worker.running[handle]
        self.report(worker, rows, prefilled)

    def report(
        self,
        worker: ModelWorker,
        rows: list[tuple[int, int, int, int, int]],
        prefilled: list[int] | None = None,
    ) -> None:
        handles, choices, indexes, token_ids, reasons = zip(*rows, strict=True) if rows else ((),) * 5
        tokens = TokenColumns(handles, choices, indexes, token_ids, reasons)
        done = prefilled or []
        self.tell(
            StepReported(
                worker.facts.key, tokens, worker.load, 0.01, prefilled=done, cached_tokens=[0] * len(done)
            )
        )

    @rule(data=st.data())
    def worker_repeats_itself(self, data: st.DataObject) -> None:
        worker = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        rows = [
            (handle, choice, index, token_at(PROMPT, choice, index), 0)
            for handle, running in worker.running.items()
            for choice, next_index in running.next_index.items()
            for index in range(len(running.spec.output_token_ids), next_index)
        ]
        self.report(worker, rows)

    @rule(data=st.data())
    def worker_reports_late(self, data: st.DataObject) -> None:
        worker = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        self.report(worker, [(*row, 0) for row in worker.forgotten])

    @rule(data=st.data(), wrong_token=st.booleans())
    def worker_breaks_the_protocol(self, data: st.DataObject, wrong_token: bool) -> None:
        worker = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        if worker.running:
            handle = data.draw(st.sampled_from(sorted(worker.running)))
            running = worker.running[handle]
            choice, next_index = next(iter(running.next_index.items()))
            first = len(running.spec.output_token_ids)
            index = first if wrong_token and next_index > first else 77
            self.report(worker, [(handle, choice, index, 0, 0)])
            assert handle not in worker.running, "the attempt is given up"

    @rule(data=st.data())
    def worker_gives_up(self, data: st.DataObject) -> None:
        worker = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        if worker.running:
            handle = data.draw(st.sampled_from(sorted(worker.running)))
            failure = SequenceFailed(handle, FailureReason.HANDOFF, "lost")
            self.tell(StepReported(worker.facts.key, TokenColumns(), worker.load, failures=(failure,)))

    @rule(data=st.data(), running_step_s=st.sampled_from([0.0, 1.0, 60.0]))
    def worker_says_how_long_its_step_runs(self, data: st.DataObject, running_step_s: float) -> None:
        worker = self.workers[data.draw(st.sampled_from(sorted(self.workers)))]
        self.tell(WorkerLoaded(worker.facts.key, worker.load, running_step_s))

    @rule(data=st.data())
    def worker_dies_and_another_comes(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.workers)))
        worker = self.workers.pop(key)
        self.tell(WorkerLost(key, "killed"))
        self.join(worker.facts.worker_id, worker.facts.role)

    # Time

    @rule(seconds=st.floats(0.01, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.fire_timers()

    def fire_timers(self) -> None:
        due = [one for one in self.timers if one.at <= self.now]
        self.timers = [one for one in self.timers if one.at > self.now]
        for one in due:
            self.tell(TimerFired(one.timer))

    # What must hold

    @invariant()
    def workers_are_told_of_nothing_that_is_over(self) -> None:
        held = {group.handle for group in self.core.book.groups.values()}
        for key, worker in self.core.book.fleet.workers.items():
            assert set(worker.groups) <= held, key

    @invariant()
    def sums_are_those_of_what_is_there(self) -> None:
        book = self.core.book
        waiting = [one for one in book.groups.values() if one.phase in IN_QUEUE]
        assert {one.key for one in book.waiting} == {one.key for one in waiting}
        assert book.waiting.backlog.tokens == sum(one.work_tokens for one in waiting)
        for worker in book.fleet.workers.values():
            groups = [one for one in worker.groups.values() if one.decode_key == worker.key]
            assert worker.decode_seqs == sum(one.num_seqs for one in groups)
            assert worker.leased_blocks == sum(one.blocks for one in groups)
            expected = sum(one.expected_tokens - one.delivered_tokens for one in groups)
            assert worker.remaining_tokens == expected
        assert book.fleet.bound_tokens == sum(one.bound_tokens for one in book.fleet.computing)

    @invariant()
    def whoever_has_a_lease_keeps_it(self) -> None:
        leased = {(one.key, one.lease_on) for one in self.core.book.groups.values() if one.lease_on}
        assert leased <= self.store.leases.keys() - self.store.unsettled

    @invariant()
    def nothing_is_told_after_the_end(self) -> None:
        assert all(heard.over <= 1 for heard in self.heard.values())

    def teardown(self) -> None:
        """Everyone behaves: then every call ends, complete, and nothing is left held."""
        self.store_up = True
        for _ in range(400):
            while self.calls:
                self.answer(self.calls.pop(0))
            for worker in list(self.workers.values()):
                if worker.running:
                    self.step(worker, sorted(worker.running))
            self.now += 0.2
            self.grants_expire()
            self.fire_timers()
            book = self.core.book
            if not (book.live or book.to_dequeue or book.to_release or self.calls):
                break
        self.everything_has_ended()
        self.log_fed_again_gives_the_same_actions()

    def log_fed_again_gives_the_same_actions(self) -> None:
        again = RouterCore(CoreConfig(ROUTER))
        for event, now, actions in self.log:
            assert again.on(event, now) == actions

    def everything_has_ended(self) -> None:
        assert not self.core.book.live
        assert not self.core.book.groups
        assert not self.store.leases
        assert not self.store.credits
        assert not self.store.queue
        for heard in self.heard.values():
            assert heard.over or heard.gone
            for choice, reason in heard.ended.items():
                if reason is FinishReason.LENGTH and not heard.first:
                    assert len(heard.tokens[choice]) == heard.max_tokens


TestCore = CoreMachine.TestCase


def key_of(call: Action) -> str:
    match call:
        case Enqueue(entry):
            return entry.request_key
        case AskGrants(worker):
            return worker.key
        case Dequeue(key) | ReleaseCredit(key) | ReleaseLease(key) | Settle(key) | ChargeTenant(key):
            return key
        case _:
            return ""
