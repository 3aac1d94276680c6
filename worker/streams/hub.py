"""Between routers and the engine: commands of many streams go in, each step's report is split among them.

Lives on the event loop. Everything it decides follows from the fences (`kvtransfer.fence`): an attempt is
taken in once, only by the process it names, and ends the older attempt of the same choices.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Iterator

import structlog

from engine.core import commands as engine_commands
from engine.core.report import Failure, Load, Prefilled, StepReport
from kvtransfer.errors import FenceError, StaleFenceError, WrongIncarnationError, describe
from kvtransfer.fence import FenceGuard
from scheduling.columns import PromptLogprobs, take_rows
from scheduling.request import FailureReason, Part
from worker.metrics import WorkerMetrics
from worker.role import RoleSide
from worker.streams.commands import (
    CancelHandles,
    Dispatch,
    DrainWorker,
    HandOverSequence,
    LendBlocks,
    RouterCommand,
    Task,
)
from worker.streams.sequences import Running, Sequences
from worker.streams.session import RouterSession

log = structlog.get_logger()

IDLE_REPORT_S = 0.05
"""A router without sequences here hears of the load this often while others have some."""


class Hub:
    """`submit` hands a command to the engine."""

    def __init__(
        self,
        incarnation: str,
        submit: Callable[[engine_commands.Command], None],
        guard: FenceGuard,
        metrics: WorkerMetrics,
        idle_load: Load,
    ) -> None:
        self.load = idle_load
        self.draining = asyncio.Event()
        self._incarnation = incarnation
        self._submit = submit
        self._guard = guard
        self._metrics = metrics
        self._role: RoleSide | None = None
        self._sequences = Sequences()
        self._sessions: list[RouterSession] = []
        self._emptied = asyncio.Event()
        self._clock = asyncio.get_running_loop().time

    @property
    def role(self) -> RoleSide:
        assert self._role is not None, "the hub has no role yet"
        return self._role

    def set_role(self, role: RoleSide) -> None:
        """Once, before the first router comes: role and hub refer to each other."""
        self._role = role

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
        """Ends the streams once what waits to be written has been."""
        for session in self._sessions:
            session.close()

    def disconnect(self, session: RouterSession) -> None:
        """Ends everything that was dispatched over the stream."""
        self._sessions.remove(session)
        orphans = [running for running in self._sequences.of_session(session) if not running.is_over]
        log.info("router_disconnected", router=session.router_id, ended_sequences=len(orphans))
        for running in orphans:
            self._end(running)

    def apply(self, session: RouterSession, command: RouterCommand) -> None:
        match command:
            case Dispatch():
                self._dispatch(session, command)
            case CancelHandles(handles):
                for router_handle in handles:
                    running = self._sequences.of_router(session, router_handle)
                    if running is not None and not running.is_over:
                        self._end(running)
            case DrainWorker():
                log.info("drain_requested", router=session.router_id)
                self.drain()
            case LendBlocks(router_handle, part, num_blocks):
                self._lend(session, router_handle, part, num_blocks)
            case HandOverSequence(router_handle, parts):
                self._hand_over(session, router_handle, parts)

    def drain(self) -> None:
        """Takes nothing new and hands back what has not begun; routers hear of it at once."""
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
        """Says that a command was wrong; of one without a sequence there is nobody to tell but the log."""
        self._metrics.refused.inc()
        log.warning("command_refused", router=session.router_id, handle=router_handle, reason=message)
        if router_handle is not None:
            failure = Failure(router_handle, reason, message)
            session.fail(failure, self.load, self._clock())

    def fail(self, handle: int, reason: FailureReason, message: str) -> None:
        """A sequence ends although its engine has no complaint; nothing happens when it is over already."""
        running = self._sequences.get(handle)
        if running is not None and not running.is_over:
            self._tell_failure(running, reason, message)

    def _dispatch(self, session: RouterSession, dispatch: Dispatch) -> None:
        spec = dispatch.spec
        if self.draining.is_set():
            message = "this worker is draining; accepted: another one"
            self.refuse(session, spec.handle, message, FailureReason.DRAINING)
            return
        against = self._reason_against(session, dispatch)
        if against is not None:
            self.refuse(session, spec.handle, *against)
            return
        for rival in self._sequences.rivals_of(spec.fence):
            if not rival.is_over:
                self._tell_failure(rival, FailureReason.SUPERSEDED, f"superseded by {describe(spec.fence)}")
                self._end(rival)
        running = self._sequences.add(session, spec.handle, spec.fence)
        self.role.begin(running.handle, dispatch)
        self._submit(_engine_command(dispatch, running.handle))

    def _lend(self, session: RouterSession, router_handle: int, part: Part, num_blocks: int) -> None:
        running = self._sequences.of_router(session, router_handle)
        handle = self._take_part(session, part)
        if handle is not None:
            source = 0 if running is None else running.handle
            self._submit(engine_commands.Lend(source, part.fence.choice, num_blocks, handle))

    def _hand_over(self, session: RouterSession, router_handle: int, parts: Iterable[Part]) -> None:
        running = self._sequences.of_router(session, router_handle)
        taken = [(part.fence.choice, self._take_part(session, part)) for part in parts]
        handles = tuple((choice, handle) for choice, handle in taken if handle is not None)
        self._submit(engine_commands.HandOver(0 if running is None else running.handle, handles))

    def _take_part(self, session: RouterSession, part: Part) -> int | None:
        """The engine's handle for a part; None when it was refused."""
        reason = self._reason_against_part(session, part)
        if reason is not None:
            self.refuse(session, part.handle, reason)
            return None
        handle = self._sequences.add(session, part.handle, part.fence).handle
        self.role.offer(handle, part.fence)
        return handle

    def _reason_against_part(self, session: RouterSession, part: Part) -> str | None:
        if not self.role.can_offer:
            return "this worker cannot offer what it runs; accepted: a decode worker on a CPU"
        in_use = self._in_use(session, part.handle)
        if in_use:
            return in_use
        found = part.fence.source_incarnation
        try:
            if found != self._incarnation:
                raise WrongIncarnationError(part.fence, "source_incarnation", found, self._incarnation)
            self._guard.admit(part.fence)
        except FenceError as error:
            return str(error)
        return None

    def _reason_against(self, session: RouterSession, dispatch: Dispatch) -> tuple[str, FailureReason] | None:
        refused = FailureReason.REFUSED
        if dispatch.task not in self.role.tasks:
            tasks = ", ".join(sorted(task.value for task in self.role.tasks))
            return f"command is {dispatch.task.value}; accepted by this kind of worker: {tasks}", refused
        in_use = self._in_use(session, dispatch.spec.handle)
        if in_use:
            return in_use, refused
        try:
            self._check_incarnation(dispatch)
            self._guard.admit(dispatch.spec.fence)
        except StaleFenceError as error:
            is_later = error.session > dispatch.spec.fence.session
            return str(error), FailureReason.SUPERSEDED if is_later else refused
        except FenceError as error:
            return str(error), refused
        return None

    def _in_use(self, session: RouterSession, router_handle: int) -> str:
        if self._sequences.of_router(session, router_handle) is None:
            return ""
        return f"handle {router_handle} is in use on this stream; accepted: one that is not"

    def _check_incarnation(self, dispatch: Dispatch) -> None:
        fence = dispatch.spec.fence
        is_source = dispatch.task is Task.PREFILL
        field = "source_incarnation" if is_source else "target_incarnation"
        found = fence.source_incarnation if is_source else fence.target_incarnation
        if found != self._incarnation:
            raise WrongIncarnationError(fence, field, found, self._incarnation)

    def _end(self, running: Running) -> None:
        running.is_over = True
        self._submit(engine_commands.Cancel(running.handle))
        self.role.cancel(running.handle)

    def _tell_failure(self, running: Running, reason: FailureReason, message: str) -> None:
        running.is_over = True
        failure = Failure(running.router_handle, reason, message)
        running.session.fail(failure, self.load, self._clock())

    # The engine

    def on_report(self, report: StepReport) -> None:
        self.load = report.load
        self._metrics.observe(report)
        if report.step_error:
            self._metrics.step_errors.inc()
            log.error("step_failed", step=report.load.step, traceback=report.step_error)
        self.role.on_report(report)
        self._split(report)
        for handle in report.freed:
            self._sequences.remove(handle)
        if not len(self._sequences):
            self._emptied.set()

    def _split(self, report: StepReport) -> None:
        shares = {session: _Share() for session in self._sessions}
        for row, handle in enumerate(report.tokens.handles):
            running = self._living(handle)
            if running is not None:
                share = shares[running.session]
                share.rows.append(row)
                share.handles.append(running.router_handle)
        self._split_prompts(report, shares)
        for failure in report.failures:
            running = self._living(failure.handle)
            if running is not None:
                named_failure = dataclasses.replace(failure, handle=running.router_handle)
                shares[running.session].failures.append(named_failure)
                running.is_over = True
        for handle in report.freed:
            freed = self._sequences.get(handle)
            if freed is not None and freed.session in shares:
                shares[freed.session].has_freed = True
        for running in self._all_living(report.preempted):
            shares[running.session].preempted.append(running.router_handle)
        for running in self._all_living(report.resumed):
            shares[running.session].resumed.append(running.router_handle)
        for running in self._all_living(report.parked):
            shares[running.session].parked.append(running.router_handle)
        self._send(report, shares.items())

    def _split_prompts(self, report: StepReport, shares: dict[RouterSession, _Share]) -> None:
        for prefilled in report.prefilled:
            running = self._living(prefilled.handle)
            if running is not None:
                named = dataclasses.replace(prefilled, handle=running.router_handle)
                shares[running.session].prefilled.append(named)
        for piece in report.prompt_logprobs:
            running = self._living(piece.handle)
            if running is not None:
                named_piece = dataclasses.replace(piece, handle=running.router_handle)
                shares[running.session].prompt_logprobs.append(named_piece)

    def _living(self, handle: int) -> Running | None:
        running = self._sequences.get(handle)
        return None if running is None or running.is_over else running

    def _all_living(self, handles: Iterable[int]) -> Iterator[Running]:
        return (running for handle in handles if (running := self._living(handle)) is not None)

    def _send(self, report: StepReport, shares: Iterable[tuple[RouterSession, _Share]]) -> None:
        now_s, shape = self._clock(), report.shape
        # Steps of prompts without tokens are few and long, and all that their router learns of them.
        has_chunks = shape is not None and shape.num_tokens > shape.num_decodes
        # No later step would say that a worker is full no more: routers would wait for its heartbeat.
        is_idle = report.load.running == report.load.waiting == 0
        for session, share in shares:
            is_due = is_idle or now_s - session.last_put_s >= IDLE_REPORT_S
            if share.is_empty and not is_due and not (has_chunks and self._sequences.has_any_of(session)):
                continue
            session.put(share.report_of(report), now_s)


class _Share:
    """What of one report is for one router."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.handles: list[int] = []
        self.prefilled: list[Prefilled] = []
        self.prompt_logprobs: list[PromptLogprobs] = []
        self.failures: list[Failure] = []
        self.preempted: list[int] = []
        self.resumed: list[int] = []
        self.parked: list[int] = []
        self.has_freed = False
        """One of its sequences holds nothing any more, though nobody is told of the sequence itself."""

    @property
    def is_empty(self) -> bool:
        if self.has_freed:
            return False
        told = (
            self.rows, self.prefilled, self.prompt_logprobs, self.failures, self.preempted, self.resumed,
            self.parked,
        )  # fmt: skip
        return not any(told)

    def report_of(self, report: StepReport) -> StepReport:
        tokens = report.tokens
        if len(self.rows) == len(tokens.handles):
            tokens = dataclasses.replace(tokens, handles=self.handles)  # all of them: nothing to pick
        else:
            tokens = take_rows(tokens, self.rows, self.handles)
        return StepReport(
            load=report.load,
            step_seconds=report.step_seconds,
            tokens=tokens,
            prefilled=self.prefilled,
            prompt_logprobs=self.prompt_logprobs,
            failures=self.failures,
            preempted=self.preempted,
            resumed=self.resumed,
            parked=self.parked,
            shape=report.shape,
        )


def _engine_command(dispatch: Dispatch, handle: int) -> engine_commands.Command:
    spec = dataclasses.replace(dispatch.spec, handle=handle)
    match dispatch.task:
        case Task.PREFILL:
            return engine_commands.Prefill(spec)
        case Task.RECEIVE:
            return engine_commands.Receive(spec, dispatch.kind)
        case Task.DECODE:
            return engine_commands.Decode(spec)
