"""The effects of turns and steps on the sequences of one simulated worker, and what routers hear of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from engine.core.batch import Step
from engine.core.report import Failure
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup
from engine.core.turns.worker_core import WorkerCore
from router.core.model.events import SequenceFailed
from sim.clock import Clock
from sim.reporting.results import StepSample
from sim.requests import Requests
from sim.sequence import SimSequence
from sim.step_times import Times
from sim.workers.handoff import Handoffs, Tell
from sim.workers.reporter import Reporter


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


class Outcomes:
    """Keeps a worker's sequences up with its core; `accept` and `let_go` are told of hand-overs that end."""

    def __init__(
        self,
        worker_id: str,
        core: WorkerCore,
        sequences: dict[int, SimSequence],
        reports: Reporter,
        clock: Clock,
        requests: Requests,
        handoffs: Handoffs,
        *,
        accept: Tell,
        let_go: Tell,
        send_token_s: float,
        log_steps: bool,
    ) -> None:
        self.core = core
        self.sequences = sequences
        self.reports = reports
        self.clock = clock
        self.totals = Totals()
        self.log: list[StepSample] | None = [] if log_steps else None
        self._worker_id = worker_id
        self._batch = core.batch
        self._news = reports.news
        self._requests = requests
        self._handoffs = handoffs
        self._accept = accept
        self._let_go = let_go
        self._send_token_s = send_token_s
        self._link_free_at = 0.0
        """When what it sends to other workers will have been sent."""

    # Between two steps

    def make_room(self, *, is_idle: bool) -> None:
        """Find blocks for the running choices, and let in others.

        Unless the worker `is_idle`, nothing is preempted for choices that come now, since a step in flight
        may compute for it.
        """
        now = self.clock.now
        self.core.grow_rows(now)
        num_rows = self._batch.num_rows
        for group in self.core.start_waiting():
            self.adopt(group)
        if self._batch.num_rows > num_rows and (is_idle or not self.core.groups.is_short_of_blocks):
            self.core.grow_rows(now)

    def adopt(self, group: SequenceGroup) -> None:
        """Its KV came complete: repeat its first token and go on."""
        sequence = self.sequences[group.handle]
        self.core.adopt(group)
        sequence.generated += 1
        self._news(sequence.router).add_token(sequence, sequence.finish_reason)
        for choice in group.choices:
            choice.is_finished = sequence.is_over
        self.core.go_on(group)

    def take_events(self) -> None:
        """Pass on what the core reports."""
        if not self.core.groups.report.has_events:
            return
        report, sequences = self.core.take_report(), self.sequences
        for prefilled in report.prefilled:
            sequence = sequences[prefilled.handle]
            self._news(sequence.router).add_prefilled(sequence, prefilled.cached_tokens)
        for handle in report.preempted:
            self.totals.preemptions += 1
            self._news(sequences[handle].router).preempted.append(sequences[handle].handle)
        for handle in report.resumed:
            self._news(sequences[handle].router).resumed.append(sequences[handle].handle)
        for received in report.received:
            sequences[received.handle].is_receiving = True
            self._handoffs.receive(sequences[received.handle], self._accept)
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

    # A step is over

    def end_step(self, step: Step) -> None:
        """Take in a step that is over, whose tokens the core has counted."""
        now = self.clock.now
        self.totals.num_mixed_steps += bool(step.chunks)
        self.totals.recomputed_tokens += step.num_recomputed
        self._send_chunks(step, now)
        self._first_tokens(step, now)
        filled = step.choices[step.num_decodes :]
        for group in self.core.finish(step, filled, self.finished(step.last)):
            self.adopt(group)
        self.take_events()

    def finished(self, last: Iterable[Choice]) -> list[Choice]:
        """Return the choices that have all their tokens, and report those that decodes have brought."""
        finished = []
        for choice in last:
            if choice.group.phase is Phase.ENDED:
                continue  # cancelled while the step was in flight
            sequence = self.sequences[choice.group.handle]
            if sequence.is_over:
                choice.is_finished = True
                finished.append(choice)
                if choice.group.goal is not Goal.HAND_OVER:
                    news = self._news(sequence.router)
                    news.add_run(sequence, sequence.generated, sequence.finish_reason)
        return finished

    def count_steps(
        self, begin: float, ends: Times | list[float], num_decodes: int, chunk_tokens: int, busy_s: float
    ) -> None:
        """Count steps that are over, the first of which began at `begin`."""
        totals, count = self.totals, len(ends)
        if self.log is not None:
            for start, end in pairwise((begin, *map(float, ends))):
                step = StepSample(end, end - start, self._worker_id, num_decodes, chunk_tokens)
                self.log.append(step)
        totals.num_steps += count
        totals.busy_s += busy_s
        totals.chunk_tokens += chunk_tokens
        totals.decode_tokens += count * num_decodes

    def _send_chunks(self, step: Step, now: float) -> None:
        """The blocks of chunks that another worker wants go out while the next chunk is computed."""
        for chunk in step.chunks:
            group = chunk.group
            if group.goal is Goal.HAND_OVER and group.phase is not Phase.ENDED:
                begins = max(now, self._link_free_at)
                self._link_free_at = begins + (chunk.end - chunk.begin) * self._send_token_s
                self.sequences[group.handle].sent_at = self._link_free_at

    def _first_tokens(self, step: Step, now: float) -> None:
        """The last chunks of prompts brought a token each."""
        for group in step.joining:
            if group.phase is Phase.ENDED:
                continue  # cancelled while the step was in flight
            sequence = self.sequences[group.handle]
            (choice,) = group.choices
            sequence.add_token(now)
            sequence.generated = choice.num_outputs
            self._news(sequence.router).add_token(sequence, sequence.finish_reason)
            if group.goal is Goal.HAND_OVER:
                self._handoffs.send(sequence, self._let_go)
