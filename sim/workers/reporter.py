"""The reports of a simulated worker: their content for each router, and their times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.core.turns.worker_core import WorkerCore
from router.core.model.events import SequenceFailed, StepReported, WorkerLoad
from router.core.simulated_runs import RunsReported, TokenRun
from scheduling.columns import TokenColumns
from scheduling.cost_model import StepShape
from scheduling.request import FinishReason
from sim.sequence import SimSequence
from sim.spec import Overheads
from sim.workers.counted_pool import CountedPool


@dataclass(slots=True)
class News:
    """Everything that one router has not been told yet."""

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
        """Add that a prompt's KV is complete."""
        self.prefilled.append(sequence.handle)
        self.cached_tokens.append(cached_tokens)

    def add_token(self, sequence: SimSequence, finish: FinishReason) -> None:
        """Add the newest token by itself."""
        self.handles.append(sequence.handle)
        self.indexes.append(sequence.generated - 1)
        self.finish_reasons.append(int(finish))
        sequence.reported = sequence.generated

    def add_run(self, sequence: SimSequence, generated: int, finish: FinishReason) -> None:
        """Add all of `generated` tokens that were not reported yet."""
        count = generated - sequence.reported
        if count > 0:
            run = TokenRun(sequence.handle, 0, sequence.reported, bytes(count), finish)
            self.runs.append(run)
            sequence.reported = generated


class Reporter:
    """Reports for one worker. `send` takes a router's number and its report."""

    def __init__(
        self,
        key: str,
        core: WorkerCore,
        pool: CountedPool,
        sequences: Mapping[int, SimSequence],
        overheads: Overheads,
        send: Callable[[int, StepReported | RunsReported], None],
        num_routers: int,
    ) -> None:
        self._key = key
        self._core, self._pool, self._sequences = core, pool, sequences
        self._overheads = overheads
        self._send = send
        self._news: list[News | None] = [None] * num_routers
        self._load_due_at = 0.0
        self._progress_due_at = overheads.progress_every_s
        # Memory, summed over the reports
        self._num_samples = 0
        self._held_blocks = self._held_tokens = 0

    def news(self, router: int) -> News:
        """Return the news for a router, to be added to."""
        news = self._news[router]
        if news is None:
            news = self._news[router] = News()
        return news

    @property
    def has_news(self) -> bool:
        """True if something was added since the last report."""
        return any(self._news)

    @property
    def due_at(self) -> float:
        """The time from which a step is reported although it brought nothing else."""
        return min(self._load_due_at, self._progress_due_at)

    @property
    def kv_allocated(self) -> float:
        """The mean share of the pool that was allocated or promised, over the reports."""
        return self._held_blocks / max(1, self._num_samples) / self._pool.num_blocks

    @property
    def kv_held(self) -> float:
        """The mean share of the allocated slots that held a token."""
        num_slots = self._held_blocks * self._pool.block_size
        return self._held_tokens / num_slots if num_slots else 0.0

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
            self._add_progress(now)
        load = self._load()
        for router, news in enumerate(self._news):
            if to_all or news is not None:
                self._send(router, self._made(news or News(), load, shape, step_s))
                self._news[router] = None
        self._load_due_at = now + self._overheads.load_every_s

    def _made(
        self, news: News, load: WorkerLoad, shape: StepShape | None, step_s: float
    ) -> StepReported | RunsReported:
        """Return the report as a router gets it. All tokens are token 0."""
        zeros = [0] * len(news.handles)
        report = StepReported(
            worker_key=self._key,
            tokens=TokenColumns(news.handles, zeros, news.indexes, zeros, news.finish_reasons),
            load=load,
            step_s=step_s,
            failures=news.failures,
            prefilled=news.prefilled,
            cached_tokens=news.cached_tokens,
            shape=shape,
            preempted=news.preempted,
            resumed=news.resumed,
        )
        return RunsReported(report, news.runs) if news.runs else report

    def _add_progress(self, now: float) -> None:
        batch = self._core.batch
        for choice, generated in zip(batch.choices, batch.num_known_outputs(), strict=True):
            sequence = self._sequences[choice.group.handle]
            if generated > sequence.reported:
                self.news(sequence.router).add_run(sequence, generated, FinishReason.NONE)
        self._progress_due_at = now + self._overheads.progress_every_s

    def _load(self) -> WorkerLoad:
        """Return the load as of now, and take a sample of memory."""
        load, prefilling = self._core.load(), self._core.groups.roster.prefilling
        self._num_samples += 1
        self._held_blocks += self._pool.num_taken_blocks
        self._held_tokens += load.context_tokens
        for group in prefilling:
            self._held_tokens += group.num_computed_tokens
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
