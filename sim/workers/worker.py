"""One simulated worker: an engine's own core, with steps that last what they would and compute nothing.

`engine.core.WorkerCore` decides as it does for a live step loop: between two steps commands are applied,
blocks are found, sequences let in, and the policy's `plan` decides the step. While only decodes run there is
nothing to decide until a sequence ends, a report is due, blocks run short or a command comes: those steps are
taken as one stretch, whose ends are computed together. A command cuts it after the step under way.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np

from engine.core import commands
from engine.core.admission import EngineLimits
from engine.core.report import Failure
from engine.core.sequence import Choice, Goal, SequenceGroup
from engine.core.step import Step
from engine.core.worker_core import WorkerCore
from reporting.results import StepSample
from router.core.actions import (
    SendCancel,
    SendDecode,
    SendDrain,
    SendPreCopy,
    SendPrefill,
    SendReceive,
    SendStopAndCopy,
)
from router.core.capacity.worker_facts import WorkerFacts
from router.core.events import SequenceFailed, StepReported
from scheduling.columns import TokenColumns
from scheduling.cost.cost_model import StepShape
from scheduling.memory.preemption import SwapSpeed
from scheduling.request import SequenceSpec
from sim.clock import Clock
from sim.requests import Requests
from sim.result import WorkerResult
from sim.spec import SimSpec
from sim.workers.counted_pool import CountedPool, CountedSwap
from sim.workers.handoff import Handoffs
from sim.workers.reporter import Reporter
from sim.workers.sequence import CountedChoice, SharedNames, SimSequence
from sim.workers.step_record import StepRecord
from sim.workers.step_times import LONGEST_STRETCH, StepEnds, StepTimes, Times

WorkerCommand = (
    SendPrefill | SendReceive | SendDecode | SendCancel | SendPreCopy | SendStopAndCopy | SendDrain
)


@dataclass(slots=True)
class Totals:
    """The work of a worker in totals."""

    num_steps: int = 0
    num_mixed_steps: int = 0
    busy_s: float = 0.0
    chunk_tokens: int = 0
    decode_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0


class SimWorker:
    """One worker; `told`, `accept` and `let_go` are called when they reach its step loop."""

    def __init__(
        self,
        facts: WorkerFacts,
        spec: SimSpec,
        step_times: StepTimes,
        clock: Clock,
        requests: Requests,
        handoffs: Handoffs,
        report: Callable[[int, StepReported], None],
    ) -> None:
        self.facts = facts
        self.key = facts.key
        self.sequences: dict[int, SimSequence] = {}
        """By the handle that the core knows them by."""
        self.pool = CountedPool(facts.num_blocks, facts.block_size)
        profile, cost = spec.profile, spec.profile.cost
        self._record = StepRecord(self.sequences)
        self._swap = CountedSwap(facts.num_blocks, SwapSpeed(profile.block_bytes, profile.swap_bytes_per_s))
        self._core = WorkerCore(
            self.pool,
            SharedNames(self.sequences),
            self._swap,
            self._record,
            limits=EngineLimits(1, profile.max_context, facts.max_num_seqs, facts.token_budget, ()),
            policy=spec.rules,
            cost=cost,
            refuse=_run_all,
            new_choice=self._new_choice,
        )
        self._batch = self._record.batch = self._core.batch
        self._reports = Reporter(
            facts.key, self._core, self.pool, self.sequences, spec.overheads, report, spec.num_routers
        )
        self._news = self._reports.news
        self._totals = Totals()
        self._log: list[StepSample] | None = [] if spec.log_steps else None
        self._step_ends = StepEnds(cost, step_times)
        self._clock = clock
        self._requests = requests
        self._handoffs = handoffs
        self._num_routers = spec.num_routers
        self._send_token_s = spec.send_token_s
        self._link_free_at = 0.0
        """When what it sends to other workers will have been sent."""
        self._stretches = spec.stretch
        self._inbox: list[Callable[[], None]] = []
        self._is_stepping = False
        self._turn_number = 0
        """Calls of the clock that are for an earlier turn are void."""
        self._ends: Times | list[float] = []
        self._began = 0.0

    def result(self) -> WorkerResult:
        """Return what the worker has done."""
        ends, sizes = self._record.token_times()
        return WorkerResult(
            name=self.facts.worker_id,
            role=self.facts.role,
            **asdict(self._totals),
            kv_allocated=self._reports.kv_allocated,
            kv_held=self._reports.kv_held,
            step_ends=ends,
            step_sizes=sizes,
            steps=tuple(self._log or ()),
        )

    # In

    def told(self, router: int, command: WorkerCommand) -> None:
        """A router's command has come."""
        self._hear(lambda: self._apply(router, command))

    def accept(self, sequence: SimSequence) -> None:
        """A hand-over to this worker is complete."""
        self._hear(lambda: self._arrive(sequence))

    def let_go(self, sequence: SimSequence) -> None:
        """A hand-over from this worker is acknowledged."""
        self._hear(lambda: self._do(commands.Release(sequence.spec.handle)))

    def _hear(self, act: Callable[[], None]) -> None:
        self._inbox.append(act)
        if not self._is_stepping:
            self._turn()
        elif len(self._ends) > 1:
            self._cut()

    def _cut(self) -> None:
        """End the stretch with the step that is under way."""
        count = bisect_left(self._ends, self._clock.now) + 1
        if count < len(self._ends):
            self._ends = self._ends[:count]
            self._turn_number += 1
            self._clock.at(float(self._ends[-1]), self._stretch_done, self._turn_number)

    def _apply(self, router: int, command: WorkerCommand) -> None:
        match command:
            case SendDecode(_, spec):
                self._do(commands.Decode(self._enter(router, spec)))
            case SendPrefill(_, spec):
                self._do(commands.Prefill(self._enter(router, spec)))
            case SendReceive(_, spec):
                self._do(commands.Receive(self._enter(router, spec)))
            case SendCancel(_, handles):
                for handle in handles:
                    self._cancel(self._own_handle(router, handle))
            case SendDrain() | SendPreCopy() | SendStopAndCopy():
                pass  # nothing drains in a simulation

    def _do(self, command: commands.Command) -> None:
        self._core.apply(command, self._clock.now)

    def _enter(self, router: int, spec: SequenceSpec) -> SequenceSpec:
        """Return the sequence as the core knows it, whose handles are those of all routers."""
        handle = self._own_handle(router, spec.handle)
        own = spec if spec.handle == handle else replace(spec, handle=handle)
        sequence = SimSequence(router, spec.handle, own)
        self.sequences[handle] = sequence
        self._requests.describe(sequence)
        return sequence.spec

    def _own_handle(self, router: int, handle: int) -> int:
        return handle * self._num_routers + router

    def _cancel(self, handle: int) -> None:
        sequence = self.sequences.get(handle)
        if sequence is None:
            return
        self._do(commands.Cancel(handle))
        if sequence.is_receiving:  # copies into its blocks stop at once
            self._do(commands.KVFailed(handle, "cancelled"))

    def _arrive(self, sequence: SimSequence) -> None:
        if sequence.is_ended:
            return
        assert sequence.first_at is not None, "a hand-over brings the first token"
        sequence.is_receiving = False
        first = TokenColumns([sequence.spec.handle], [0], [sequence.generated], [0], [0])
        num_blocks = -(-sequence.prompt_tokens // self.facts.block_size)
        age_s = self._clock.now - sequence.first_at
        self._do(commands.KVArrived(sequence.spec.handle, num_blocks, first, age_s))

    def _new_choice(self, group: SequenceGroup, index: int) -> Choice:
        return CountedChoice(group, index, self.sequences[group.handle], self._batch)

    # Turns

    def _turn(self) -> None:
        """Between two steps: take in what came, and begin the next step if there is one."""
        self._turn_number += 1
        self._is_stepping = False
        inbox, self._inbox = self._inbox, []
        for act in inbox:
            act()
        self._make_room()
        self._take_events()
        if self._begin():
            return
        self._reports.idle(self._clock.now)
        if not self.sequences:
            assert self.pool.is_empty, f"{self.key} is idle and holds blocks"

    def _make_room(self) -> None:
        now = self._clock.now
        self._core.grow_rows(now)
        num_rows = self._batch.num_rows
        for group in self._core.start_waiting():
            self._adopt(group)
        if self._batch.num_rows > num_rows:
            self._core.grow_rows(now)

    def _adopt(self, group: SequenceGroup) -> None:
        """Its KV came complete: repeat its first token and go on."""
        sequence = self.sequences[group.handle]
        self._core.adopt(group)
        sequence.generated += 1
        self._news(sequence.router).add_token(sequence, sequence.finish_reason)
        for choice in group.choices:
            choice.is_finished = sequence.is_over
        self._core.go_on(group)

    def _take_events(self) -> None:
        """Pass on what the core reports."""
        if not self._core.groups.report.has_events:
            return
        report, sequences = self._core.take_report(), self.sequences
        for prefilled in report.prefilled:
            sequence = sequences[prefilled.handle]
            self._news(sequence.router).add_prefilled(sequence, prefilled.cached_tokens)
        for handle in report.preempted:
            self._totals.preemptions += 1
            self._news(sequences[handle].router).preempted.append(sequences[handle].handle)
        for handle in report.resumed:
            self._news(sequences[handle].router).resumed.append(sequences[handle].handle)
        for received in report.received:
            sequences[received.handle].is_receiving = True
            self._handoffs.receive(sequences[received.handle], self.accept)
        self._tell_failures(report.failures)
        for handle in report.freed:
            sequence = sequences.pop(handle)
            sequence.is_ended = True
            self._handoffs.forget(sequence)
            self._requests.ended(sequence)

    def _tell_failures(self, failures: Iterable[Failure]) -> None:
        for failure in failures:
            sequence = self.sequences[failure.handle]
            if not sequence.is_receiving:  # cancelled: its router knows
                told = SequenceFailed(sequence.handle, failure.reason, failure.message)
                self._news(sequence.router).failures.append(told)

    def _begin(self) -> bool:
        """Begin a step; False when nothing is to be done now."""
        if not self._core.groups.queues.prefilling:
            if not self._batch.num_rows:
                return False
            self._stretch()
            return True
        now = self._clock.now
        plan = self._core.plan(now, now)
        if not plan.num_decodes and not plan.chunks:
            if plan.wait_s < math.inf:
                self._clock.at(now + max(plan.wait_s, 1e-3), self._wait_over, self._turn_number)
            return False
        step = self._core.begin(plan)
        self._core.cover(step)
        self._mixed(step)
        return True

    def _wait_over(self, turn_number: int) -> None:
        if turn_number == self._turn_number and not self._is_stepping:
            self._turn()

    # Steps with prompts in them

    def _mixed(self, step: Step) -> None:
        copy_s = self._swap.take_copied_s()
        end = self._step_ends.of_mixed(step.shape, self._totals.num_steps, self._clock.now, copy_s)
        self._begin_steps([end], lambda turn_number: self._mixed_done(turn_number, step))

    def _begin_steps(self, ends: Times | list[float], done: Callable[[int], None]) -> None:
        self._is_stepping = True
        self._began = self._clock.now
        self._ends = ends
        self._clock.at(float(ends[-1]), done, self._turn_number)

    def _mixed_done(self, turn_number: int, step: Step) -> None:
        if turn_number != self._turn_number:
            return
        now, shape = self._clock.now, step.shape
        self._count_steps([now], step.num_decodes, shape.num_tokens - step.num_decodes)
        self._totals.num_mixed_steps += bool(step.chunks)
        self._core.join(step)
        self._core.advance(step)
        self._core.mark_written(step)
        self._core.count_tokens(step, now)
        self._totals.recomputed_tokens += step.num_recomputed
        self._send_chunks(step, now)
        self._first_tokens(step, now)
        for group in self._core.finish(step, step.choices[step.num_decodes :], self._finished(step.last)):
            self._adopt(group)
        self._take_events()
        self._reports.step_done(now, shape, now - self._began)
        self._turn()

    def _send_chunks(self, step: Step, now: float) -> None:
        """The blocks of chunks that another worker wants go out while the next chunk is computed."""
        for chunk in step.chunks:
            if chunk.group.goal is Goal.HAND_OVER:
                begins = max(now, self._link_free_at)
                self._link_free_at = begins + (chunk.end - chunk.begin) * self._send_token_s
                self.sequences[chunk.group.handle].sent_at = self._link_free_at

    def _first_tokens(self, step: Step, now: float) -> None:
        """The last chunks of prompts brought a token each."""
        for group in step.joining:
            sequence = self.sequences[group.handle]
            (choice,) = group.choices
            sequence.add_token(now)
            sequence.generated = choice.num_outputs
            self._news(sequence.router).add_token(sequence, sequence.finish_reason)
            if group.goal is Goal.HAND_OVER:
                self._handoffs.send(sequence, self.let_go)

    def _finished(self, last: Iterable[Choice]) -> list[Choice]:
        """Return the choices that have all their tokens, and report those that decodes have brought."""
        finished = []
        for choice in last:
            sequence = self.sequences[choice.group.handle]
            if sequence.is_over:
                choice.is_finished = True
                finished.append(choice)
                if choice.group.goal is not Goal.HAND_OVER:
                    news = self._news(sequence.router)
                    news.add_run(sequence, sequence.generated, sequence.finish_reason)
        return finished

    # Steps of decodes only

    def _stretch(self) -> None:
        """Begin as many decode steps as are sure to come one after another."""
        size, context, first = self._batch.num_rows, self._batch.num_context_tokens, self._totals.num_steps
        count = 1
        if self._stretches and not self._reports.has_news:
            count = self._core.num_steps_alike(LONGEST_STRETCH)
        copy_s = self._swap.take_copied_s()
        ends = self._step_ends.of_decodes(size, context, first, count, self._clock.now, copy_s)
        # A report that is due ends the stretch.
        self._begin_steps(ends[: bisect_left(ends, self._reports.due_at) + 1], self._stretch_done)

    def _stretch_done(self, turn_number: int) -> None:
        if turn_number != self._turn_number:
            return
        ends = self._ends
        count, end, size = len(ends), float(ends[-1]), self._batch.num_rows
        context = self._batch.num_context_tokens + (count - 1) * size
        shape = StepShape(size, size, context, 0.0, 0, size)
        self._count_steps(ends, size, 0)
        last_step_s = end - (float(ends[-2]) if count > 1 else self._began)
        self._core.end(self._finished(self._core.decode(np.asarray(ends))))
        self._take_events()
        self._reports.step_done(end, shape, last_step_s)
        self._turn()

    def _count_steps(self, ends: Times | list[float], num_decodes: int, chunk_tokens: int) -> None:
        """Record steps that are over, before the core counts their tokens."""
        totals, count = self._totals, len(ends)
        if self._log is not None:
            for begin, end in pairwise((self._began, *map(float, ends))):
                step = StepSample(end, end - begin, self.facts.worker_id, num_decodes, chunk_tokens)
                self._log.append(step)
        if num_decodes:
            self._record.add(ends, num_decodes)
        totals.num_steps += count
        totals.busy_s += float(ends[-1]) - self._began
        totals.chunk_tokens += chunk_tokens
        totals.decode_tokens += count * num_decodes


def _run_all(_: SequenceSpec) -> None:
    """Refuse nothing: no model reads the tokens."""
