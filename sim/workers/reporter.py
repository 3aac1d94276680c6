"""When a simulated worker reports, and what load it reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.core.worker_core import WorkerCore
from router.core.capacity.worker_facts import WorkerLoad
from router.core.events import StepReported
from scheduling.cost.cost_model import StepShape
from scheduling.request import FinishReason
from sim.spec import Overheads
from sim.workers.counted_pool import CountedPool
from sim.workers.sequence import SimSequence
from sim.workers.told import Told


@dataclass(slots=True)
class Usage:
    """A worker's work in totals."""

    num_steps: int = 0
    num_mixed_steps: int = 0
    busy_s: float = 0.0
    chunk_tokens: int = 0
    decode_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    kv_samples: int = 0
    held_blocks: float = 0.0
    held_tokens: float = 0.0


class Reporter:
    """Reports for one worker. `send` takes a router's number and its report."""

    def __init__(
        self,
        key: str,
        core: WorkerCore,
        pool: CountedPool,
        sequences: Mapping[int, SimSequence],
        usage: Usage,
        overheads: Overheads,
        send: Callable[[int, StepReported], None],
        num_routers: int,
    ) -> None:
        self._key = key
        self._core, self._pool, self._sequences, self._usage = core, pool, sequences, usage
        self._overheads = overheads
        self._send = send
        self._told = [Told() for _ in range(num_routers)]
        self._has_told = [False] * num_routers
        self._load_due_at = 0.0
        self._progress_due_at = overheads.progress_every_s

    def tell(self, router: int) -> Told:
        """Return the next report for a router, to be added to."""
        self._has_told[router] = True
        return self._told[router]

    @property
    def has_news(self) -> bool:
        """True if something was added since the last report."""
        return any(self._has_told)

    @property
    def due_at(self) -> float:
        """The time from which a step is reported although it brought nothing else."""
        return min(self._load_due_at, self._progress_due_at)

    def step_done(self, now: float, shape: StepShape, step_s: float) -> None:
        """Report if there is news, if the load is due, and after every step with prompts in it."""
        is_due = now >= self.due_at or shape.num_tokens > shape.num_decodes
        if is_due or self.has_news:
            self._report(now, shape, step_s, to_all=is_due)

    def idle(self, now: float) -> None:
        """Report what commands alone brought about."""
        if self.has_news:
            self._report(now, None, 0.0, to_all=False)

    def _report(self, now: float, shape: StepShape | None, step_s: float, *, to_all: bool) -> None:
        if now >= self._progress_due_at:
            self._tell_progress(now)
        load = self._load()
        for router, told in enumerate(self._told):
            if to_all or self._has_told[router]:
                self._send(router, told.report(self._key, load, step_s, shape))
                self._told[router], self._has_told[router] = Told(), False
        self._load_due_at = now + self._overheads.load_every_s

    def _tell_progress(self, now: float) -> None:
        batch = self._core.batch
        num_outputs = batch.num_outputs[: batch.num_rows].tolist()
        for choice, generated in zip(batch.choices, num_outputs, strict=True):
            sequence = self._sequences[choice.group.handle]
            if generated > sequence.reported:
                self.tell(sequence.router).add_run(sequence, generated, FinishReason.NONE)
        self._progress_due_at = now + self._overheads.progress_every_s

    def _load(self) -> WorkerLoad:
        self._sample()
        load = self._core.load()
        return WorkerLoad(
            step=load.step,
            running=load.running,
            waiting=load.waiting,
            pending_prefill_tokens=load.pending_prefill_tokens,
            free_blocks=load.free_blocks,
            cached_blocks=load.cached_blocks,
            context_tokens=load.context_tokens,
            preempted=load.preempted,
        )

    def _sample(self) -> None:
        """Take a sample of memory as of now."""
        usage, pool, core = self._usage, self._pool, self._core
        usage.kv_samples += 1
        usage.held_blocks += pool.num_taken_blocks
        usage.held_tokens += core.batch.num_context_tokens
        usage.held_tokens += sum(
            group.num_computed_tokens for group in core.groups.queues.prefilling.values()
        )
