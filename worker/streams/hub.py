"""Between routers and the engine: passes on commands of many streams, and splits each report among them.

Lives on the event loop. It decides by fences (`kvtransfer.fence`): an attempt is admitted once, only by the
process it names, and ends older attempts at any of its choices.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import structlog

from engine.core import commands as engine_commands
from engine.core.report import Failure, Load, Prefilled, StepReport
from kvtransfer.errors import FenceError, LaterSessionError, describe
from kvtransfer.fence import FenceGuard, check_source, check_target
from scheduling.columns import PromptLogprobs, TokenColumns, take_rows
from scheduling.request import FailureReason, Fence, Part, SequenceSpec
from worker.commands import (
    START_NAMES,
    CancelHandles,
    DrainWorker,
    PreCopy,
    ReceiveFrom,
    RouterCommand,
    StartCommand,
    StopAndCopy,
)
from worker.handoff.sides import HandoffSides
from worker.metrics import WorkerMetrics
from worker.streams.routers import RouterSession, Running, Sequences
from worker.streams.sequence_spans import SequenceSpans

log = structlog.get_logger()

Event = TypeVar("Event", Failure, Prefilled, PromptLogprobs)

IDLE_REPORT_S = 0.05
"""How often a router without sequences here gets the load while other routers have some."""


class Hub:
    """Serves all routers of a worker; `submit` passes a command to the engine."""

    def __init__(
        self,
        incarnation: str,
        sequences: Sequences,
        sides: HandoffSides,
        submit: Callable[[engine_commands.Command], None],
        guard: FenceGuard,
        metrics: WorkerMetrics,
        spans: SequenceSpans | None = None,
    ) -> None:
        self.draining = asyncio.Event()
        self._incarnation = incarnation
        self._submit = submit
        self._guard = guard
        self._metrics = metrics
        self._sequences = sequences
        self._sides = sides
        self._spans = spans
        self._sessions: list[RouterSession] = []
        self._emptied = asyncio.Event()
        self._clock = asyncio.get_running_loop().time

    @property
    def load(self) -> Load:
        """The newest load of the engine."""
        return self._sequences.load

    async def wait_until_empty(self) -> None:
        while len(self._sequences):
            self._emptied.clear()
            await self._emptied.wait()

    # Routers

    def connect(self, router_id: str) -> RouterSession:
        session = RouterSession(router_id)
        self._sessions.append(session)
        log.info("router_connected", router=router_id)
        return session

    def close(self) -> None:
        """End the streams once everything that waits has been written."""
        for session in self._sessions:
            session.close()

    def disconnect(self, session: RouterSession) -> None:
        """End all sequences that were started over the stream."""
        self._sessions.remove(session)
        orphans = [running for running in self._sequences.of_session(session) if not running.is_over]
        log.info("router_disconnected", router=session.router_id, ended_sequences=len(orphans))
        for running in orphans:
            self._end(running)

    def apply(self, session: RouterSession, command: RouterCommand, traceparent: str = "") -> None:
        """Carry a command out; `traceparent` is the span of the attempt that it starts."""
        match command:
            case engine_commands.Prefill() | engine_commands.Decode() | ReceiveFrom():
                self._start(session, command, traceparent)
            case CancelHandles(handles):
                for router_handle in handles:
                    running = self._sequences.of_router(session, router_handle)
                    if running is not None and not running.is_over:
                        self._end(running)
            case DrainWorker():
                log.info("drain_requested", router=session.router_id)
                self.drain()
            case PreCopy(router_handle, part, num_blocks):
                self._pre_copy(session, router_handle, part, num_blocks)
            case StopAndCopy(router_handle, parts):
                self._stop_and_copy(session, router_handle, parts)

    def drain(self) -> None:
        """Accept nothing new and hand back what has not begun; tell routers at once."""
        if self.draining.is_set():
            return
        self.draining.set()
        self._submit(engine_commands.HandBack())
        for session in self._sessions:
            session.put(StepReport(load=self.load), self._clock())

    def refuse(
        self,
        session: RouterSession,
        router_handle: int | None,
        message: str,
        reason: FailureReason = FailureReason.REFUSED,
    ) -> None:
        """Report that a command was wrong; one without a sequence is only logged."""
        if router_handle is not None:
            self._refuse(session, Failure(router_handle, reason, message))
        else:
            self._note_refusal(session, None, message)

    def _refuse(self, session: RouterSession, failure: Failure) -> None:
        self._note_refusal(session, failure.handle, failure.message)
        session.fail(failure, self.load, self._clock())

    def _note_refusal(self, session: RouterSession, router_handle: int | None, message: str) -> None:
        self._metrics.refused.inc()
        log.warning("command_refused", router=session.router_id, handle=router_handle, reason=message)

    def _start(self, session: RouterSession, command: StartCommand, traceparent: str) -> None:
        spec = command.spec
        if self.draining.is_set():
            message = "this worker is draining; accepted: another one"
            self.refuse(session, spec.handle, message, FailureReason.DRAINING)
            return
        refusal = self._refusal_of(session, command)
        if refusal is not None:
            self._refuse(session, refusal)
            return
        for rival in self._sequences.rivals_of(spec.fence, spec.choices):
            if not rival.is_over:
                self._sequences.report_failure(rival, _superseded(rival, spec))
                self._end(rival)
        running = self._sequences.add(session, spec.handle, spec.fence, spec.choices)
        command = dataclasses.replace(command, spec=dataclasses.replace(spec, handle=running.handle))
        if self._spans is not None:
            self._spans.begin(command, traceparent)
        self._sides.begin(command)
        self._submit(command)

    def _pre_copy(self, session: RouterSession, router_handle: int, part: Part, num_blocks: int) -> None:
        running = self._sequences.of_router(session, router_handle)
        handle = self._admit_part(session, part)
        if handle is not None:
            source = 0 if running is None else running.handle
            self._submit(engine_commands.PreCopy(source, part.fence.choice, num_blocks, handle))

    def _stop_and_copy(self, session: RouterSession, router_handle: int, parts: Iterable[Part]) -> None:
        running = self._sequences.of_router(session, router_handle)
        taken = [(part.fence.choice, self._admit_part(session, part)) for part in parts]
        handles = tuple((choice, handle) for choice, handle in taken if handle is not None)
        self._submit(engine_commands.StopAndCopy(0 if running is None else running.handle, handles))

    def _admit_part(self, session: RouterSession, part: Part) -> int | None:
        """Return the engine's handle for a part; None if it was refused."""
        if not self._sides.can_offer:
            refusal = "this worker cannot offer what it runs; accepted: a decode worker on a CPU"
            self.refuse(session, part.handle, refusal)
            return None
        begun_s = self._clock() - part.session_age_seconds
        choices = (part.fence.choice,)
        refused = self._admit(session, part.handle, part.fence, choices, check_source, begun_s)
        if refused is not None:
            self.refuse(session, part.handle, refused.message)
            return None
        handle = self._sequences.add(session, part.handle, part.fence, choices).handle
        self._sides.offer(handle, part.fence)
        return handle

    def _refusal_of(self, session: RouterSession, command: StartCommand) -> Failure | None:
        """Return why a command is refused; None if it was admitted."""
        accepted, spec = self._sides.start_commands, command.spec
        if type(command) not in accepted:
            names = ", ".join(sorted(START_NAMES[kind] for kind in accepted))
            message = f"command is {START_NAMES[type(command)]}; accepted by this kind of worker: {names}"
            return Failure(spec.handle, FailureReason.REFUSED, message)
        check = check_source if isinstance(command, engine_commands.Prefill) else check_target
        begun_s = self._clock() - spec.session_age_seconds
        return self._admit(session, spec.handle, spec.fence, spec.choices, check, begun_s)

    def _admit(
        self,
        session: RouterSession,
        router_handle: int,
        fence: Fence,
        choices: Sequence[int],
        check: Callable[[Fence, str], None],
        begun_s: float,
    ) -> Failure | None:
        """Admit an attempt whose fence passes `check` and is new for all of its `choices`; return why it is
        refused otherwise.

        `begun_s` is when the last call of its session came.
        """
        if self._sequences.of_router(session, router_handle) is not None:
            message = f"handle {router_handle} is in use on this stream; accepted: one that is not"
            return Failure(router_handle, FailureReason.REFUSED, message)
        try:
            check(fence, self._incarnation)
            self._guard.admit(fence, choices, begun_s)
        except LaterSessionError as error:
            age_s = self._clock() - error.begun_s
            return Failure(router_handle, FailureReason.SUPERSEDED, str(error), error.session, age_s)
        except FenceError as error:
            return Failure(router_handle, FailureReason.FENCED, str(error))
        return None

    def _end(self, running: Running) -> None:
        running.is_over = True
        # The fence is broken first: the engine's thread may free the blocks as soon as it has the command.
        self._sides.cancel(running.handle)
        self._submit(engine_commands.Cancel(running.handle))

    # The engine

    def on_report(self, report: StepReport) -> None:
        self._sequences.load = report.load
        self._metrics.observe(report)
        if self._spans is not None:
            self._spans.on_report(report)
        if report.step_error:
            self._metrics.step_errors.inc()
            log.error("step_failed", step=report.load.step, traceback=report.step_error)
        self._sides.on_report(report)
        self._split(report)
        for handle in report.freed:
            freed = self._sequences.get(handle)
            if freed is not None:
                self._guard.over(freed.fence, freed.choices, self._clock())
            self._sequences.remove(handle)
        if not len(self._sequences):
            self._emptied.set()

    def _split(self, report: StepReport) -> None:
        shares = {session: _Share(report) for session in self._sessions}
        for row, handle in enumerate(report.tokens.handles):
            running = self._living(handle)
            if running is not None:
                share = shares[running.session]
                share.rows.append(row)
                share.handles.append(running.router_handle)
        for running, prefilled in self._named(report.prefilled):
            shares[running.session].report.prefilled.append(prefilled)
        for running, piece in self._named(report.prompt_logprobs):
            shares[running.session].report.prompt_logprobs.append(piece)
        for running, failure in self._named(report.failures):
            shares[running.session].report.failures.append(failure)
            running.is_over = True
        for handle in report.freed:
            freed = self._sequences.get(handle)
            if freed is not None and freed.session in shares:
                shares[freed.session].has_freed = True
                if not freed.is_over:
                    shares[freed.session].report.released.append(freed.router_handle)
        for running in self._all_living(report.preempted):
            shares[running.session].report.preempted.append(running.router_handle)
        for running in self._all_living(report.resumed):
            shares[running.session].report.resumed.append(running.router_handle)
        for running in self._all_living(report.parked):
            shares[running.session].report.parked.append(running.router_handle)
        self._send(report, shares.items())

    def _named(self, events: Iterable[Event]) -> Iterator[tuple[Running, Event]]:
        """Yield the events of living sequences, each under the handle of its router."""
        for event in events:
            running = self._living(event.handle)
            if running is not None:
                yield running, dataclasses.replace(event, handle=running.router_handle)

    def _living(self, handle: int) -> Running | None:
        running = self._sequences.get(handle)
        return None if running is None or running.is_over else running

    def _all_living(self, handles: Iterable[int]) -> Iterator[Running]:
        return (running for handle in handles if (running := self._living(handle)) is not None)

    def _send(self, report: StepReport, shares: Iterable[tuple[RouterSession, _Share]]) -> None:
        now_s, shape = self._clock(), report.shape
        # Such steps are few and long, and a router learns of its prompts' progress by nothing else.
        has_chunks = shape is not None and shape.num_tokens > shape.num_decodes
        # No later step would report that the worker has room again: routers would wait for its heartbeat.
        is_idle = report.load.running == report.load.waiting == 0
        for session, share in shares:
            is_due = is_idle or now_s - session.last_put_s >= IDLE_REPORT_S
            if share.is_empty and not is_due and not (has_chunks and self._sequences.has_any_of(session)):
                continue
            session.put(share.finished(report.tokens), now_s)


def _superseded(rival: Running, spec: SequenceSpec) -> Failure:
    """Return what is reported of an attempt that a later one ends."""
    message = f"superseded by {describe(spec.fence)}"
    age_s = spec.session_age_seconds
    return Failure(rival.router_handle, FailureReason.SUPERSEDED, message, spec.fence.session, age_s)


class _Share:
    """The part of a report that goes to one router."""

    def __init__(self, whole: StepReport) -> None:
        self.report = StepReport(load=whole.load, step_seconds=whole.step_seconds, shape=whole.shape)
        self.rows: list[int] = []
        """Its rows in the token columns of the whole report."""
        self.handles: list[int] = []
        """The router's handle of each row."""
        self.has_freed = False
        """True if one of its sequences has freed its blocks."""

    @property
    def is_empty(self) -> bool:
        part = self.report
        has_events = part.prefilled or part.prompt_logprobs or part.failures
        has_moves = part.preempted or part.resumed or part.parked
        return not (self.has_freed or self.rows or has_events or has_moves)

    def finished(self, tokens: TokenColumns) -> StepReport:
        """Return the part with its own rows of the whole report's tokens."""
        if len(self.rows) == len(tokens.handles):
            self.report.tokens = dataclasses.replace(tokens, handles=self.handles)
        else:
            self.report.tokens = take_rows(tokens, self.rows, self.handles)
        return self.report
