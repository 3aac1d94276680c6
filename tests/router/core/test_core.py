"""The core under arbitrary interleavings: every token once and in order, everything held returned once."""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.core.arrive import find
from router.core.core import RouterCore
from router.core.model.events import (
    CancelAsked,
    ClientGone,
    SequenceFailed,
    StepReported,
    WorkerHeld,
    WorkerJoined,
    WorkerLoaded,
    WorkerLost,
)
from router.core.model.session import IN_QUEUE, Phase
from scheduling.columns import TokenColumns
from scheduling.placement import Placement
from scheduling.request import FailureReason, FinishReason, Slo, SloClass
from tests.router.core_driver import COST, failure_of
from tests.router.core_model import ModelWorker
from tests.router.core_world import PROMPT, World, key_of
from tests.router.scripted_worker import token_at

FORGOTTEN_S = 63.0
"""Longer than a router remembers what has ended."""


@hypothesis.settings(max_examples=100, stateful_step_count=60)
class CoreMachine(RuleBasedStateMachine):
    """Clients, a store and workers that behave as badly as they may."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.names = 0

    @initialize(placement=st.sampled_from(Placement))
    def two_of_each(self, placement: Placement) -> None:
        self.world = World(placement)
        for name, role in (("p0", "prefill"), ("p1", "prefill"), ("d0", "decode"), ("d1", "decode")):
            self.world.join(name, role)

    # Clients

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
        self.world.arrive(f"r{self.names}", n, max_tokens, grace_s, slo)

    @rule(slo=st.sampled_from([Slo(), Slo(ttft_ms=500), Slo(tpot_ms=5)]), tokens=st.integers(1, 60))
    def client_asks_for_a_quote(self, slo: Slo, tokens: int) -> None:
        state = self.world.core.state
        held = len(state.live), len(state.groups)
        self.world.ask_for_a_quote(slo, tokens)
        assert (len(state.live), len(state.groups)) == held

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def client_calls_again(self, data: st.DataObject) -> None:
        known = find(self.world.core.state, "t", f"r{data.draw(st.integers(1, self.names))}")
        if known is not None:
            first = known.request
            self.world.arrive(first.request_id, first.sampling.n, first.stop.max_tokens, 5.0, Slo())

    @precondition(lambda self: self.names and not self.world.core.state.live)
    @rule(data=st.data())
    def forgotten_id_comes_again(self, data: st.DataObject) -> None:
        self.world.pass_time(FORGOTTEN_S)
        self.world.arrive(f"r{data.draw(st.integers(1, self.names))}", 1, 3, 5.0, Slo())

    @precondition(lambda self: self.world.heard)
    @rule(data=st.data())
    def client_goes(self, data: st.DataObject) -> None:
        listener = data.draw(st.integers(1, len(self.world.heard)))
        self.world.heard[listener].gone = True
        self.world.tell(ClientGone(listener))

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def client_cancels(self, data: st.DataObject) -> None:
        self.world.tell(CancelAsked("t", f"r{data.draw(st.integers(1, self.names))}"))

    # The store

    @precondition(lambda self: self.world.calls)
    @rule(data=st.data())
    def store_answers(self, data: st.DataObject) -> None:
        """Any call, but those of one key in order."""
        calls = self.world.calls
        candidates = [i for i, call in enumerate(calls) if key_of(call) not in map(key_of, calls[:i])]
        call = calls.pop(data.draw(st.sampled_from(candidates)))
        if self.world.store_up:
            self.world.answer(call)
        else:
            self.world.tell(failure_of(call))

    @precondition(lambda self: self.world.calls and self.world.store_up)
    @rule()
    def store_answers_everything(self) -> None:
        """All calls, and those that follow from the answers: without this, few requests reach a worker."""
        while self.world.calls:
            self.world.answer(self.world.calls.pop(0))

    @precondition(lambda self: self.world.calls)
    @rule(data=st.data(), is_late=st.booleans())
    def store_executes_a_call_that_fails(self, data: st.DataObject, is_late: bool) -> None:
        """At once, or at any later time."""
        calls = self.world.calls
        candidates = [i for i, call in enumerate(calls) if key_of(call) not in map(key_of, calls[:i])]
        self.world.lose(calls.pop(data.draw(st.sampled_from(candidates))), is_late=is_late)

    @precondition(lambda self: self.world.late)
    @rule(data=st.data())
    def late_call_is_executed(self, data: st.DataObject) -> None:
        late = self.world.late
        self.world.execute(late.pop(data.draw(st.integers(0, len(late) - 1))))

    @rule()
    def store_goes_or_comes(self) -> None:
        self.world.store_up = not self.world.store_up

    @rule()
    def grants_expire(self) -> None:
        self.world.store.expire()

    # Workers

    def some_worker(self, data: st.DataObject) -> ModelWorker:
        return self.world.workers[data.draw(st.sampled_from(sorted(self.world.workers)))]

    @rule(data=st.data())
    def worker_computes(self, data: st.DataObject) -> None:
        worker = self.some_worker(data)
        if worker.running:
            handles = data.draw(st.sets(st.sampled_from(sorted(worker.running)), min_size=1))
            self.world.step(worker, sorted(handles))

    @rule(data=st.data())
    def worker_repeats_itself(self, data: st.DataObject) -> None:
        worker = self.some_worker(data)
        rows = [
            (handle, choice, index, token_at(PROMPT, choice, index), 0)
            for handle, running in worker.running.items()
            for choice, next_index in running.next_index.items()
            for index in range(len(running.spec.output_token_ids), next_index)
        ]
        self.world.report(worker, rows)

    @rule(data=st.data())
    def worker_reports_late(self, data: st.DataObject) -> None:
        worker = self.some_worker(data)
        self.world.report(worker, [(*row, 0) for row in worker.forgotten])

    @rule(data=st.data(), wrong_token=st.booleans())
    def worker_breaks_the_protocol(self, data: st.DataObject, wrong_token: bool) -> None:
        worker = self.some_worker(data)
        if worker.running:
            handle = data.draw(st.sampled_from(sorted(worker.running)))
            running = worker.running[handle]
            choice, next_index = next(iter(running.next_index.items()))
            first = len(running.spec.output_token_ids)
            index = first if wrong_token and next_index > first else 77
            self.world.report(worker, [(handle, choice, index, 0, 0)])
            assert handle not in worker.running, "the attempt is given up"

    @rule(data=st.data(), reason=st.sampled_from(FailureReason))
    def worker_gives_up(self, data: st.DataObject, reason: FailureReason) -> None:
        worker = self.some_worker(data)
        if worker.running:
            handle = data.draw(st.sampled_from(sorted(worker.running)))
            failure = SequenceFailed(handle, reason, "lost")
            report = StepReported(worker.facts.key, TokenColumns(), worker.load, failures=(failure,))
            self.world.tell(report)

    @rule(data=st.data(), running_step_s=st.sampled_from([0.0, 1.0, 60.0]))
    def worker_says_how_long_its_step_runs(self, data: st.DataObject, running_step_s: float) -> None:
        worker = self.some_worker(data)
        self.world.tell(WorkerLoaded(worker.facts.key, worker.load, running_step_s))

    @rule(data=st.data())
    def worker_s_event_loop_is_held_up(self, data: st.DataObject) -> None:
        self.world.tell(WorkerHeld(self.some_worker(data).facts.key))

    @rule(data=st.data())
    def worker_drains(self, data: st.DataObject) -> None:
        self.world.drain(self.some_worker(data))

    @rule()
    def stopped_groups_are_reported(self) -> None:
        self.world.park()

    @rule(data=st.data())
    def worker_dies_and_another_comes(self, data: st.DataObject) -> None:
        facts = self.some_worker(data).facts
        del self.world.workers[facts.key]
        self.world.tell(WorkerLost(facts.key, "killed"))
        self.world.join(facts.worker_id, facts.role)

    def prefilling(self) -> list[ModelWorker]:
        workers = self.world.workers.values()
        return [worker for worker in workers if worker.facts.role == "prefill" and worker.running]

    @precondition(lambda self: self.prefilling())
    @rule(data=st.data(), is_told_first=st.booleans())
    def prefill_worker_drains_and_its_last_report_is_lost(
        self, data: st.DataObject, is_told_first: bool
    ) -> None:
        """Some groups ended with that report. Decode workers release them, before or after the loss."""
        worker = data.draw(st.sampled_from(self.prefilling()))
        ended = data.draw(st.sets(st.sampled_from(sorted(worker.running))))
        self.world.tell(WorkerLoaded(worker.facts.key, replace(worker.load, draining=True)))
        if is_told_first:
            self.world.release(ended)
        del self.world.workers[worker.facts.key]
        self.world.tell(WorkerLost(worker.facts.key, "it has left"))
        if not is_told_first:
            self.world.release(ended)
        self.world.join(worker.facts.worker_id, "prefill")

    @rule(data=st.data())
    def link_breaks_and_stands_again(self, data: st.DataObject) -> None:
        """The worker lives, and has ended what came over the link."""
        worker = self.some_worker(data)
        worker.running.clear()
        self.world.tell(WorkerLost(worker.facts.key, "the link was cut"))
        self.world.tell(WorkerJoined(worker.facts, worker.load, COST))

    # Time

    @rule(seconds=st.floats(0.01, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    # What must hold

    @invariant()
    def workers_are_told_of_nothing_that_is_over(self) -> None:
        state = self.world.core.state
        held = {group.handle for group in state.groups.values()}
        for key, worker in state.fleet.workers.items():
            assert set(worker.groups) <= held, key

    @invariant()
    def sums_are_those_of_what_is_there(self) -> None:
        state = self.world.core.state
        waiting = [group for group in state.groups.values() if group.phase in IN_QUEUE]
        assert {request.key for request in state.waiting} == {request.key for request in waiting}
        assert state.waiting.backlog.tokens == sum(request.work_tokens for request in waiting)
        for worker in state.fleet.workers.values():
            groups = [group for group in worker.groups.values() if group.decode_key == worker.key]
            assert worker.decode_seqs == sum(group.num_seqs for group in groups)
            assert worker.leased_blocks == sum(group.blocks for group in groups)
            expected = sum(group.expected_tokens - group.delivered_tokens for group in groups)
            assert worker.remaining_tokens == expected
            settling = [group for group in state.groups.values() if group.phase is Phase.SETTLING]
            coming = sum(group.work_tokens for group in settling if group.prefill_key == worker.key)
            assert worker.coming_tokens == coming
        assert state.fleet.bound_tokens == sum(entry.bound_tokens for entry in state.fleet.computing)

    @invariant()
    def whoever_has_a_lease_keeps_it(self) -> None:
        world = self.world
        leased = {(group.key, group.lease_on) for group in world.core.state.groups.values() if group.lease_on}
        assert leased <= world.store.leases.keys() - world.store.unsettled

    @invariant()
    def nothing_is_told_after_the_end(self) -> None:
        assert all(heard.over <= 1 for heard in self.world.heard.values())

    def teardown(self) -> None:
        """Everyone behaves: then every call ends, complete, and nothing is left held."""
        self.world.behave()
        self.everything_has_ended()
        self.log_fed_again_gives_the_same_actions()

    def log_fed_again_gives_the_same_actions(self) -> None:
        again = RouterCore(self.world.config)
        for event, now, actions in self.world.log:
            assert again.on(event, now) == actions

    def everything_has_ended(self) -> None:
        world = self.world
        assert not world.core.state.live
        assert not world.core.state.groups
        assert not world.store.leases
        assert not world.store.credits
        # A place that was entered late stays until the next grant takes it out.
        assert {entry.request_key for entry in world.store.queue} <= world.store.forgiven
        for heard in world.heard.values():
            assert heard.over or heard.gone
            for choice, reason in heard.ended.items():
                if reason is FinishReason.LENGTH and not heard.first:
                    assert len(heard.tokens[choice]) == heard.max_tokens


TestCore = CoreMachine.TestCase
