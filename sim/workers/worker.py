"""One simulated worker: commands in, steps that last what they would, reports out.

Its turns are those of `engine.execution.step_loop`: between two steps commands are applied, blocks are found,
sequences let in, and the policy's own `plan` decides the step. While only decodes run there is nothing to
decide until a sequence ends, a report is due, blocks run short or a command comes: those steps are taken as
one stretch, whose ends are computed together. A command cuts it after the step under way.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

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
from scheduling.cost.cost_model import CostModel, StepShape
from scheduling.memory.preemption import SwapSpeed
from scheduling.memory.reservation import blocks_needed
from scheduling.policies.policy import Policy
from scheduling.request import FailureReason, SequenceSpec
from scheduling.step import StepPlan, StepView
from sim.clock import Clock
from sim.spec import Overheads
from sim.workers.batch import Batch, Times
from sim.workers.handoff import Handoffs
from sim.workers.memory import Memory
from sim.workers.queues import Queues
from sim.workers.reporter import Reporter, Usage
from sim.workers.sequence import Goal, Phase, Sequence
from sim.workers.step_ends import StepEnds
from sim.workers.step_log import StepLog
from sim.workers.step_times import StepTimes

LONGEST_STRETCH = 512
WorkerCommand = (
    SendPrefill | SendReceive | SendDecode | SendCancel | SendPreCopy | SendStopAndCopy | SendDrain
)


class Surroundings(Protocol):
    """What a worker needs of the simulation around it."""

    def reported(self, router: int, report: StepReported) -> None:
        """A report leaves for a router."""
        ...

    def describe(self, sequence: Sequence) -> None:
        """Fill in what no command says: how long the answer will be, and what of the prompt is shared."""
        ...

    handoffs: Handoffs

    def ended(self, sequence: Sequence) -> None:
        """A sequence is over here; all its times are known."""
        ...


class SimWorker:
    """One worker; `told`, `accept` and `let_go` are called when they reach its step loop."""

    def __init__(
        self,
        facts: WorkerFacts,
        policy: Policy,
        cost: CostModel,
        swap: SwapSpeed,
        step_times: StepTimes,
        clock: Clock,
        overheads: Overheads,
        around: Surroundings,
        num_routers: int,
        *,
        send_token_s: float,
        stretch: bool,
    ) -> None:
        self.facts = facts
        self.key = facts.key
        self.usage = Usage()
        self.batch = Batch(facts.block_size)
        self.memory = Memory(
            facts.num_blocks, facts.block_size, self.batch, reserves_maximum=policy.reserves_maximum
        )
        self.queues = Queues(self.batch, self.memory, facts.max_num_seqs, swap)
        self._reports = Reporter(
            facts.key,
            (self.batch, self.memory.pool, self.queues, self.usage),
            overheads,
            around.reported,
            num_routers,
        )
        self._tell = self._reports.tell
        self.link_free_at = 0.0
        """When what it sends to other workers will have been sent."""
        self._policy = policy
        self._cost = cost
        self._step_ends = StepEnds(cost, step_times)
        self._clock = clock
        self._around = around
        self._send_token_s = send_token_s
        self._stretches = stretch
        self._inbox: list[Callable[[], None]] = []
        self._is_stepping = False
        self._turn_number = 0
        """Calls of the clock that are for an earlier turn are void."""
        self._ends: Times | list[float] = []
        self._began = 0.0
        self.log: StepLog | None = None
        self._chunks: list[tuple[Sequence, int]] = []
        self._num_decodes = 0
        self._shape = StepShape.of(0, 0, ())
        self._order = 0

    # In

    def told(self, router: int, command: WorkerCommand) -> None:
        """A router's command has come."""
        self._hear(lambda: self._apply(router, command))

    def accept(self, sequence: Sequence) -> None:
        """A hand-over to this worker is complete."""
        self._hear(lambda: self._arrive(sequence))

    def let_go(self, sequence: Sequence) -> None:
        """A hand-over from this worker is acknowledged."""
        self._hear(lambda: self._end(sequence))

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
                self._enter(router, spec, Goal.DECODE)
            case SendPrefill(_, spec):
                self._enter(router, spec, Goal.HOLD)
            case SendReceive(_, spec):
                self._enter(router, spec, Goal.RECEIVE)
            case SendCancel(_, handles):
                for handle in handles:
                    sequence = self.queues.all.get((router, handle))
                    if sequence is not None:
                        self._end(sequence)
            case SendDrain() | SendPreCopy() | SendStopAndCopy():
                pass  # nothing drains in a simulation

    def _enter(self, router: int, spec: SequenceSpec, goal: Goal) -> None:
        self._order += 1
        sequence = Sequence(router, spec, goal, 0, self._clock.now, self._order)
        self._around.describe(sequence)
        num_most = blocks_needed(
            sequence.prompt_tokens, 1 if goal is Goal.HOLD else spec.stop.max_tokens, 1, self.facts.block_size
        )
        if num_most > self.facts.num_blocks:
            message = f"up to {num_most} blocks are needed, and the pool has {self.facts.num_blocks}"
            told = self._tell(router)
            told.failures.append(SequenceFailed(sequence.handle, FailureReason.NO_BLOCKS, message))
            return
        self.queues.enter(sequence)

    def _arrive(self, sequence: Sequence) -> None:
        if sequence.phase is Phase.ENDED:
            return
        sequence.has_kv = True
        self.queues.num_receiving -= 1
        sequence.phase = Phase.ARRIVED
        sequence.num_computed = sequence.context_tokens
        self.queues.arrived[(sequence.router, sequence.handle)] = sequence

    # Turns

    def _turn(self) -> None:
        """Between two steps: take in what came, and begin the next step if there is one."""
        self._turn_number += 1
        self._is_stepping = False
        inbox, self._inbox = self._inbox, []
        for act in inbox:
            act()
        self._make_room()
        self._let_in()
        if self._begin():
            return
        self._reports.idle(self._clock.now)
        if not self.queues.all:
            assert self.memory.pool.is_empty, f"{self.key} is idle and holds blocks"

    def _make_room(self) -> None:
        if self.memory.num_short:
            for victim in self.queues.make_room(self._cost, self._clock.now):
                self.usage.preemptions += 1
                self._tell(victim.router).preempted.append(victim.handle)

    def _let_in(self) -> None:
        started, resumed = self.queues.let_in()
        for sequence in resumed:
            self._tell(sequence.router).resumed.append(sequence.handle)
        for sequence in started:
            if sequence.phase is Phase.RECEIVING:
                self._around.handoffs.receive(sequence, self.accept)
            elif sequence.phase is Phase.SWAPPED:
                self._run(sequence, self._clock.now)
            else:
                self._adopt(sequence)
        if started:
            self._make_room()

    def _adopt(self, sequence: Sequence) -> None:
        """Its KV came complete: repeat its first token and go on."""
        assert sequence.first_at is not None, "a hand-over brings the first token"
        if sequence.generated == len(sequence.spec.output_token_ids):
            sequence.generated += 1
        told = self._tell(sequence.router)
        told.add_prefilled(sequence)
        told.add_token(sequence, sequence.finish_reason)
        self._go_on(sequence, sequence.first_at)

    def _go_on(self, sequence: Sequence, due_from: float) -> None:
        # Its prompt is done, even where its first token was its last.
        sequence.phase = Phase.RUNNING
        self.memory.cover_newest(sequence)
        if sequence.is_over:
            self.memory.observe(sequence)
            self._end(sequence)
        else:
            self._run(sequence, due_from)

    def _run(self, sequence: Sequence, due_from: float) -> None:
        sequence.phase = Phase.RUNNING
        self.memory.cover_newest(sequence)
        self.batch.join(sequence, due_from, self._clock.now)

    def _begin(self) -> bool:
        """Begin a step; False when nothing is to be done now."""
        if not self.queues.prefilling:
            if not self.batch.rows:
                return False
            self._stretch()
            return True
        now = self._clock.now
        plan = self._policy.plan(
            StepView(
                self.batch.load(now),
                self.queues.work(now),
                self.facts.token_budget,
                self.facts.max_num_seqs,
                self._cost,
            )
        )
        if not plan.num_decodes and not plan.chunks:
            if plan.wait_s < math.inf:
                self._clock.at(now + max(plan.wait_s, 1e-3), self._wait_over, self._turn_number)
            return False
        self._mixed(plan)
        return True

    def _wait_over(self, turn_number: int) -> None:
        if turn_number == self._turn_number and not self._is_stepping:
            self._turn()

    # Steps with prompts in them

    def _mixed(self, plan: StepPlan) -> None:
        now = self._clock.now
        sequences = self.queues.prefilling
        self._chunks = [(sequences[chunk.handle], chunk.num_tokens) for chunk in plan.chunks]
        self._num_decodes = plan.num_decodes
        context = self.batch.context_tokens if plan.num_decodes else 0
        parts = [(sequence.num_computed, tokens) for sequence, tokens in self._chunks]
        shape = self._shape = StepShape.of(plan.num_decodes, context, parts)
        copy_s = self.queues.take_copy_s()
        end = self._step_ends.of_mixed(shape, self.usage.num_steps, now, copy_s)
        self._begin_steps([end], self._mixed_done)

    def _begin_steps(self, ends: Times | list[float], done: Callable[[int], None]) -> None:
        self._is_stepping = True
        self._began = self._clock.now
        self._ends = ends
        self._clock.at(float(ends[-1]), done, self._turn_number)

    def _mixed_done(self, turn_number: int) -> None:
        if turn_number != self._turn_number:
            return
        now = self._clock.now
        chunks, self._chunks = self._chunks, []
        self._count_steps([now], sum(tokens for _, tokens in chunks))
        self.usage.num_mixed_steps += bool(chunks)
        if self._num_decodes:
            self._decoded([now])
        for sequence, tokens in chunks:
            is_last = self.queues.computed(sequence, tokens)
            if sequence.goal is Goal.HOLD:
                self._send(sequence, tokens, now)
            if is_last and sequence.has_kv and not sequence.is_resuming:
                self._adopt(sequence)
            elif is_last:
                self._computed(sequence, now)
        self._reports.step_done(now, self._shape, now - self._began)
        self._turn()

    def _send(self, sequence: Sequence, tokens: int, now: float) -> None:
        """The chunk's blocks go out while the next chunk is computed."""
        begins = max(now, self.link_free_at)
        sequence.sent_at = self.link_free_at = begins + tokens * self._send_token_s

    def _computed(self, sequence: Sequence, now: float) -> None:
        """The last chunk brought a token."""
        if not sequence.is_resuming:
            self._tell(sequence.router).add_prefilled(sequence)
        sequence.add_token(now)
        self._tell(sequence.router).add_token(sequence, sequence.finish_reason)
        if sequence.goal is Goal.HOLD:
            sequence.phase = Phase.HELD
            self._around.handoffs.send(sequence, self.let_go)
        else:
            self._go_on(sequence, now)

    # Steps of decodes only

    def _stretch(self) -> None:
        """Begin as many decode steps as are sure to come one after another."""
        size, context, first = len(self.batch), self.batch.context_tokens, self.usage.num_steps
        count = 1
        if self._stretches and not self._reports.has_news:
            most = min(self.batch.steps_to_an_end(), self.queues.turns_in_vain(), LONGEST_STRETCH)
            count = self.memory.steps_with_room(most)
        self._num_decodes = size
        copy_s = self.queues.take_copy_s()
        ends = self._step_ends.of_decodes(size, context, first, count, self._clock.now, copy_s)
        # A report that is due ends the stretch.
        self._begin_steps(ends[: bisect_left(ends, self._reports.due_at) + 1], self._stretch_done)

    def _stretch_done(self, turn_number: int) -> None:
        if turn_number != self._turn_number:
            return
        ends = self._ends
        count, end = len(ends), float(ends[-1])
        size, context = self._num_decodes, self.batch.context_tokens + (count - 1) * self._num_decodes
        shape = StepShape(size, size, context, 0.0, 0, size)
        self._count_steps(ends, 0)
        last_step_s = end - (float(ends[-2]) if count > 1 else self._began)
        self.queues.pass_turns(count - 1)
        self._decoded(ends)
        self._reports.step_done(end, shape, last_step_s)
        self._turn()

    def _count_steps(self, ends: Times | list[float], chunk_tokens: int) -> None:
        usage = self.usage
        count = len(ends)
        if self.log is not None:
            self.log.add(self._began, ends, self._num_decodes, chunk_tokens)
        usage.num_steps += count
        usage.busy_s += float(ends[-1]) - self._began
        usage.chunk_tokens += chunk_tokens
        usage.decode_tokens += count * self._num_decodes

    def _decoded(self, ends: Times | list[float]) -> None:
        self.memory.grow(self.batch.growth(len(ends)))
        self.batch.advance(ends)
        for sequence in self.batch.take_ended():
            self._tell(sequence.router).add_run(sequence, sequence.generated, sequence.finish_reason)
            self.memory.observe(sequence)
            self._end(sequence)

    # Out

    def _end(self, sequence: Sequence) -> None:
        if sequence.phase is Phase.ENDED:
            return
        self.queues.forget(sequence)
        self._around.ended(sequence)
