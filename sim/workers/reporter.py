"""When a simulated worker reports, and what load it tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from router.core.capacity.worker_facts import WorkerLoad
from router.core.events import StepReported
from scheduling.cost.cost_model import StepShape
from scheduling.request import FinishReason
from sim.spec import Overheads
from sim.workers.batch import Batch
from sim.workers.pool import Pool
from sim.workers.queues import Queues
from sim.workers.told import Told


@dataclass(slots=True)
class Usage:
    """What a worker did, in totals."""

    num_steps: int = 0
    num_mixed_steps: int = 0
    busy_s: float = 0.0
    chunk_tokens: int = 0
    decode_tokens: int = 0
    preemptions: int = 0
    kv_samples: int = 0
    held_blocks: float = 0.0
    held_tokens: float = 0.0


class Reporter:
    """Of one worker, whose `parts` it looks at. `send` takes a router's number and its report."""

    def __init__(
        self,
        key: str,
        parts: tuple[Batch, Pool, Queues, Usage],
        overheads: Overheads,
        send: Callable[[int, StepReported], None],
        num_routers: int,
    ) -> None:
        self._key = key
        self._batch, self._pool, self._queues, self._usage = parts
        self._overheads = overheads
        self._send = send
        self._told = [Told() for _ in range(num_routers)]
        self._has_told = [False] * num_routers
        self._load_due_at = 0.0
        self._progress_due_at = overheads.progress_every_s

    def tell(self, router: int) -> Told:
        """What the next report for a router will say, to be added to."""
        self._has_told[router] = True
        return self._told[router]

    @property
    def has_news(self) -> bool:
        """Something was added since the last report."""
        return any(self._has_told)

    @property
    def due_at(self) -> float:
        """From when on a step is told although it brought nothing else."""
        return min(self._load_due_at, self._progress_due_at)

    def step_done(self, now: float, shape: StepShape, step_s: float) -> None:
        """Report if there are news, if the load is due, and after every step with prompts in it."""
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
        for sequence in self._batch.rows:
            generated = self._batch.generated_by(sequence)
            if generated > sequence.reported:
                self.tell(sequence.router).add_run(sequence, generated, FinishReason.NONE)
        self._progress_due_at = now + self._overheads.progress_every_s

    def _load(self) -> WorkerLoad:
        self._sample()
        free = max(0, self._pool.num_available)
        return WorkerLoad(
            step=self._usage.num_steps,
            running=len(self._batch),
            waiting=self._queues.num_waiting,
            pending_prefill_tokens=self._queues.pending_tokens,
            free_blocks=free,
            cached_blocks=min(self._pool.num_cached, free),
            context_tokens=self._batch.context_tokens,
            preempted=len(self._queues.preempted),
        )

    def _sample(self) -> None:
        """Of memory, as of now."""
        usage, pool = self._usage, self._pool
        usage.kv_samples += 1
        usage.held_blocks += pool.num_blocks - pool.num_available
        usage.held_tokens += self._batch.context_tokens
        usage.held_tokens += sum(one.num_computed for one in self._queues.prefilling)
