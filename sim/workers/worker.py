"""One simulated worker: an engine's own core, with steps that last what they would and compute nothing.

`engine.core.WorkerCore` decides as it does for a live step loop: between two steps commands are applied,
blocks are found, sequences let in, and the policy's `plan` decides the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from engine.core import commands
from engine.core.admission import EngineLimits
from engine.core.sequence import Choice, SequenceGroup
from engine.core.turns.simulated_runs import DecodeRuns
from engine.core.turns.worker_core import WorkerCore
from router.core.model.actions import (
    SendCancel,
    SendDecode,
    SendDrain,
    SendPreCopy,
    SendPrefill,
    SendReceive,
    SendStopAndCopy,
)
from router.core.model.events import StepReported, WorkerFacts
from router.core.simulated_runs import RunsReported
from scheduling.columns import TokenColumns
from scheduling.memory.preemption import SwapSpeed
from scheduling.prediction import num_micro_batches
from scheduling.request import SequenceSpec
from sim.clock import Clock
from sim.requests import Requests
from sim.result import WorkerResult
from sim.sequence import CountedChoice, SharedNames, SimSequence
from sim.spec import SimSpec
from sim.step_times import StepEnds, StepTimes
from sim.workers.counted_pool import CountedPool, CountedSwap
from sim.workers.handoff import Handoffs
from sim.workers.outcomes import Outcomes
from sim.workers.pipeline import PipelinedSteps
from sim.workers.reporter import Reporter
from sim.workers.step_record import StepRecord
from sim.workers.stepping import SingleSteps, Stepping

WorkerCommand = (
    SendPrefill | SendReceive | SendDecode | SendCancel | SendPreCopy | SendStopAndCopy | SendDrain
)


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
        report: Callable[[int, StepReported | RunsReported], None],
    ) -> None:
        self.facts = facts
        self.key = facts.key
        self.sequences: dict[int, SimSequence] = {}
        """By the handle that the core knows them by."""
        self.pool = CountedPool(facts.num_blocks, facts.block_size)
        profile, cost = spec.profile, spec.profile.cost
        self._record = StepRecord(self.sequences, serves_all=spec.num_stages == 1)
        swap = CountedSwap(facts.num_blocks, SwapSpeed(profile.block_bytes, profile.swap_bytes_per_s))
        self._core = WorkerCore(
            self.pool,
            SharedNames(self.sequences),
            swap,
            self._record,
            limits=EngineLimits(1, profile.max_context, facts.max_num_seqs, facts.token_budget, ()),
            policy=spec.rules,
            cost=cost,
            refuse=_run_all,
            new_choice=self._new_choice,
            num_stages=spec.num_stages,
            num_micro_batches=num_micro_batches(spec.num_stages),
            chunks_follow=spec.num_stages == 1,
        )
        self._record.batch = self._core.batch
        self._reports = Reporter(
            facts.key, self._core, self.pool, self.sequences, spec.overheads, report, spec.num_routers
        )
        self._outcomes = Outcomes(
            facts.worker_id,
            self._core,
            self.sequences,
            self._reports,
            clock,
            requests,
            handoffs,
            accept=self.accept,
            let_go=self.let_go,
            send_token_s=spec.send_token_s,
            log_steps=spec.log_steps,
        )
        ends = StepEnds(cost, step_times)
        self._pipeline: PipelinedSteps | None = None
        if spec.num_stages > 1:
            self._pipeline = PipelinedSteps(
                spec.num_stages, self._outcomes, self._record, swap, ends, self._turn
            )
        self._steps: Stepping = self._pipeline or SingleSteps(
            self._outcomes,
            self._record,
            swap,
            ends,
            self._turn,
            DecodeRuns(self._core, self.pool) if spec.stretch else None,
        )
        self._clock = clock
        self._requests = requests
        self._num_routers = spec.num_routers
        self._inbox: list[Callable[[], None]] = []

    def result(self) -> WorkerResult:
        """Return what the worker has done."""
        ends, sizes = self._record.token_times()
        return WorkerResult(
            name=self.facts.worker_id,
            role=self.facts.role,
            **asdict(self._outcomes.totals),
            kv_allocated=self._reports.kv_allocated,
            kv_held=self._reports.kv_held,
            step_ends=ends,
            step_sizes=sizes,
            steps=tuple(self._outcomes.log or ()),
            pipeline=None if self._pipeline is None else self._pipeline.times(),
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
        if self._steps.has_turn:
            self._turn()
        else:
            self._steps.heed()

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
        return CountedChoice(group, index, self.sequences[group.handle], self._core.batch)

    # Turns

    def _turn(self) -> None:
        """Between two steps: take in what came, and begin the next step if there is one."""
        inbox, self._inbox = self._inbox, []
        for act in inbox:
            act()
        self._outcomes.make_room(is_idle=self._steps.is_idle)
        self._outcomes.take_events()
        if self._steps.has_turn and self._steps.begin():
            return
        self._reports.idle(self._clock.now)
        if not self.sequences and self._steps.is_idle:
            assert self.pool.is_empty, f"{self.key} is idle and holds blocks"


def _run_all(_: SequenceSpec) -> None:
    """Refuse nothing: no model reads the tokens."""
