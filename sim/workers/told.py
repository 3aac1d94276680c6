"""The reports of a simulated worker: gathered over a turn, then one for each router."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.core.capacity.worker_facts import WorkerLoad
from router.core.events import SequenceFailed, StepReported, TokenRun
from scheduling.columns import TokenColumns
from scheduling.cost.cost_model import StepShape
from scheduling.request import FinishReason
from sim.workers.sequence import SimSequence


@dataclass(slots=True)
class Told:
    """For one router."""

    handles: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    finish_reasons: list[int] = field(default_factory=list)
    runs: list[TokenRun] = field(default_factory=list)
    prefilled: list[int] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    failures: list[SequenceFailed] = field(default_factory=list)

    def add_prefilled(self, sequence: SimSequence, cached_tokens: int) -> None:
        """Report that a prompt's KV is complete."""
        self.prefilled.append(sequence.handle)
        self.cached_tokens.append(cached_tokens)

    def add_token(self, sequence: SimSequence, generated: int, finish: FinishReason) -> None:
        """Report the newest of `generated` tokens by itself."""
        self.handles.append(sequence.handle)
        self.indexes.append(generated - 1)
        self.finish_reasons.append(int(finish))
        sequence.reported = generated

    def add_run(self, sequence: SimSequence, generated: int, finish: FinishReason) -> None:
        """Report all of `generated` tokens that were not reported yet."""
        count = generated - sequence.reported
        if count > 0:
            run = TokenRun(sequence.handle, 0, sequence.reported, bytes(count), finish)
            self.runs.append(run)
            sequence.reported = generated

    def report(
        self, worker_key: str, load: WorkerLoad, step_s: float, shape: StepShape | None
    ) -> StepReported:
        """Return the report as a router gets it. All tokens are token 0."""
        count = len(self.handles)
        zeros = [0] * count
        return StepReported(
            worker_key=worker_key,
            tokens=TokenColumns(self.handles, zeros, self.indexes, zeros, self.finish_reasons),
            load=load,
            step_s=step_s,
            failures=self.failures,
            prefilled=self.prefilled,
            cached_tokens=self.cached_tokens,
            shape=shape,
            preempted=self.preempted,
            resumed=self.resumed,
            runs=self.runs,
        )
