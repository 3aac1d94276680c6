"""Plays one scenario to its end, or to the first promise that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import structlog

import baton.routers
import baton.stream
import kvtransfer.receiving.receiver
import kvtransfer.sending.sender
from baton.types import Program, Slo
from router.core.model.actions import (
    Enqueue,
    Reject,
    Relay,
    RequestEnded,
    SendDecode,
    SendPrefill,
    Settle,
)
from router.core.model.events import StepReported
from router.core.model.state import CoreConfig
from tests.dst.faults import strike
from tests.dst.fleet import Fleet
from tests.dst.nodes.client import Heard
from tests.dst.nodes.router import RouterNode
from tests.dst.promises import Broken, Promises
from tests.dst.record import Recorder
from tests.dst.scenario import Fault, Request, Scenario, struck_by

REFUSALS = ("Refused", "QueueFull", "InvalidRequest: slo.", "InvalidRequest: stop.max_tokens")
LOOK_S = 0.05
LIMIT_S = 90.0
"""Every call ends within this time after the last fault."""
NO_WORKER_S = CoreConfig("").no_worker_grace_s - 1.0
NEWCOMER_S, NEWCOMERS = 10.0, 3
QUIET_S = 12.0
"""After the last call: by then every hold has been returned, or has run out."""


@dataclass
class Outcome:
    """The result of a run."""

    scenario: Scenario
    broken: Broken | None = None
    simulated_s: float = 0.0
    num_events: int = 0
    trace: str = ""
    """A digest of every event of every router: equal for equal runs."""
    struck: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Faults that struck, by kind, role and phase of the request under way."""
    pairs: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Two faults of one run: their kinds, in the order of their names, and the phase of the later one."""
    probes: Counter[str] = field(default_factory=Counter)
    """Events in the fleet, by name, which a good search should see."""
    calls: list[Heard] = field(default_factory=list)


class Run:
    def __init__(self, scenario: Scenario, recorder: Recorder | None = None) -> None:
        self.outcome = Outcome(scenario)
        self.recorder = recorder
        self._scenario = scenario
        self._digest = hashlib.blake2b(digest_size=16)
        self._phases: dict[str, str] = {}
        self._upon: dict[tuple[str, str], list[Fault]] = {}
        self._faults_to_come = sum(fault.upon is None for fault in scenario.faults)
        self._last_fault_at = 0.0
        self._struck: list[str] = []
        """The kinds of the faults that have struck, in order."""
        self._looked_at = -1
        self.fleet = Fleet(scenario, self._seen)
        self.promises = Promises(self.fleet, self.outcome.calls)
        if recorder is not None:
            recorder.watch(self.fleet.network)

    def play(self) -> Outcome:
        scheduler = self.fleet.scheduler
        for request in self._scenario.requests:
            scheduler.at(request.at, self._begin, request)
        for fault in self._scenario.faults:
            if fault.upon is not None:
                self._upon.setdefault(fault.upon, []).append(fault)
            else:
                scheduler.at(fault.at or 0.0, self._strike, fault)
        scheduler.at(LOOK_S, self._look)
        try:
            self._until(self._is_over, self._limit)
            if self.promises.broken is None:
                self._check_calls()
            if self.promises.broken is None:
                # A fault upon the end of a request strikes after the last call is over.
                self._until(lambda: False, lambda: max(self._quiet_from, self._last_fault_at) + QUIET_S)
                self._ask_once_more()
            if self.promises.broken is None:
                self.promises.at_end()
        except Exception as error:  # noqa: BLE001 -- a crash of any process is what runs look for
            self._break("nothing crashes", f"{type(error).__name__}: {error}", error)
        self._note_results()
        if self.recorder is not None:
            self.recorder.end(self.fleet.processes)
        self.fleet.dispose()
        return self.outcome

    def _break(self, promise: str, found: str, error: BaseException | None) -> None:
        if error is not None and error.__traceback__ is not None:
            frame = error.__traceback__
            while frame.tb_next is not None:
                frame = frame.tb_next
            code = frame.tb_frame.f_code
            found += f" ({code.co_filename.rpartition('/')[2]}:{frame.tb_lineno} {code.co_name})"
        if self.promises.broken is None:
            self.promises.broken = Broken(promise, found)

    def _until(self, check: Callable[[], bool], limit: Callable[[], float]) -> None:
        """Play until `check` returns True, a promise breaks, or the limit, which may move, has passed."""
        scheduler, promises = self.fleet.scheduler, self.promises
        while not check() and promises.broken is None and scheduler.now < limit():
            scheduler.run(min(limit(), scheduler.now + 1.0), lambda: promises.broken is not None)

    # The scenario

    def _begin(self, request: Request) -> None:
        client = self.fleet.clients[f"c{request.client}"]
        prompt = tuple(
            3 + self.fleet.dice.whole(0, 200, "prompt", request.name, place)
            for place in range(request.prompt_tokens)
        )
        heard = Heard(request.name, prompt, request.n, request.max_tokens, self.fleet.scheduler.now)
        self.outcome.calls.append(heard)
        slo = None if request.ttft_ms is None else Slo(ttft_ms=request.ttft_ms)
        if self.recorder is not None:
            self.recorder.calls.append((client.process.name, heard))
        name, left_ms = client.process.name, request.program_ms
        program = None if left_ms is None else Program(name, left_ms)
        client.call(heard, slo, request.leaves_after, request.cancels, program)

    def _strike(self, fault: Fault) -> None:
        end = strike(self.fleet, fault)
        self._faults_to_come -= 1
        now = self.fleet.scheduler.now
        self._last_fault_at = max(self._last_fault_at, now)
        if end is None:
            return
        phase = self._phases.get(fault.upon[0], "none") if fault.upon else self._any_phase()
        self.outcome.struck[fault.kind, struck_by(fault), phase] += 1
        for earlier in self._struck:
            one, other = sorted((earlier, fault.kind))
            self.outcome.pairs[one, other, phase] += 1
        self._struck.append(fault.kind)
        self._last_fault_at = max(self._last_fault_at, now + fault.lasts_s)
        self.fleet.scheduler.after(fault.lasts_s, end)
        if self.recorder is not None:
            self.recorder.bands.append((fault, now))

    def _any_phase(self) -> str:
        return next((phase for phase in self._phases.values() if phase != "ended"), "none")

    # What is seen

    def _seen(self, router: RouterNode, event: Any, actions: Any) -> None:
        self.outcome.num_events += 1
        self.outcome.probes[type(event).__name__] += 1
        digest = self._digest
        digest.update(f"{self.fleet.scheduler.now:.9f} {router.process.name} {type(event).__name__}".encode())
        for action in actions:
            self._note(router, action)
        if isinstance(event, StepReported):
            for failure in event.failures:
                self.outcome.probes[f"failed: {failure.reason.name}"] += 1
        if not isinstance(event, StepReported) or len(actions) > 1:
            self.promises.after_router(router)
        if self.recorder is not None:
            self.recorder.decided(self.fleet.scheduler.now, router.process.name, event, actions)

    def _note(self, router: RouterNode, action: Any) -> None:
        kind = type(action).__name__
        self._digest.update(kind.encode())
        self.outcome.probes[kind] += 1
        match action:
            case Reject(_, error):
                self.outcome.probes[f"rejected: {error.reason.name}"] += 1
            case Enqueue(entry):
                self._reached(entry.request_key, "queued")
            case Settle(request_key):
                self._reached(request_key, "settling")
            case SendPrefill(_, spec) | SendDecode(_, spec):
                self._reached_request(spec.fence.request_id, "prefill")
            case Relay():
                sessions = router.core.state.by_listener
                for listener, index in zip(action.listeners, action.indexes, strict=True):
                    session = sessions.get(listener)
                    if session is not None:
                        self._reached_request(
                            session.request.request_id, "handoff" if index == 0 else "decode"
                        )
            case RequestEnded(request_key):
                self._reached(request_key, "ended")

    def _reached(self, request_key: str, phase: str) -> None:
        for request in self._scenario.requests:
            if f"/{request.name}/" in f"/{request_key}/":
                self._reached_request(request.name, phase)
                return

    def _reached_request(self, request_id: str, phase: str) -> None:
        if self.recorder is not None and self._phases.get(request_id) != phase:
            self.recorder.reached(self.fleet.scheduler.now, request_id, phase)
        self._phases[request_id] = phase
        for fault in self._upon.pop((request_id, phase), ()):
            self._faults_to_come += 1
            self.fleet.scheduler.after(fault.after_s, self._strike, fault)

    def _look(self) -> None:
        """Look at the whole fleet, unless no router has had an event since the last time."""
        self.fleet.note_decoding()
        if self.outcome.num_events != self._looked_at:
            self._looked_at = self.outcome.num_events
            self.promises.look(faults_over=self.fleet.scheduler.now > self._last_fault_at + 0.5)
        self.fleet.scheduler.after(LOOK_S, self._look)

    # Its end

    @property
    def _all_calls_over(self) -> bool:
        return len(self.outcome.calls) == len(self._scenario.requests) and all(
            heard.is_over for heard in self.outcome.calls
        )

    def _is_over(self) -> bool:
        is_quiet = not self._faults_to_come and self.fleet.scheduler.now > self._last_fault_at
        return self._all_calls_over and is_quiet

    def _limit(self) -> float:
        scenario = self._scenario
        times = [
            *(request.at for request in scenario.requests),
            *(fault.at or 0.0 for fault in scenario.faults),
        ]
        last = max(times, default=0.0)
        return max(last, self._last_fault_at) + LIMIT_S

    def _check_calls(self) -> None:
        self._quiet_from = self.fleet.scheduler.now + self._scenario.grace_s
        for heard in self.outcome.calls:
            if not heard.is_over:
                took_s = self.fleet.scheduler.now - self._last_fault_at
                self._break(
                    "every call ends",
                    f"{heard.request_id} has not ended {took_s:.0f} s after the faults",
                    None,
                )
            elif heard.error and not self._may_fail(heard):
                self._break("a failure has a rule", f"{heard.request_id}: {heard.error}", None)

    def _ask_once_more(self) -> None:
        """The fleet serves a newcomer, with which places that nobody waits for any more leave the queue.

        One that finds the queue full of such places is refused, and served when it comes back.
        """
        for number in range(NEWCOMERS):
            self._begin(Request(f"newcomer{number}", 0, self.fleet.scheduler.now, 5, 3))
            heard, limit = self.outcome.calls[-1], self.fleet.scheduler.now + NEWCOMER_S
            self._until(lambda heard=heard: heard.is_over, lambda limit=limit: limit)  # type: ignore[misc]
            if not heard.error.startswith("QueueFull"):
                break
            self._until(lambda: False, lambda again=self.fleet.scheduler.now + 1.0: again)  # type: ignore[misc]
        if self.promises.broken is None and (heard.error or not heard.is_over):
            self._break("a newcomer is served", heard.error or "it has not ended", None)
        limit = self.fleet.scheduler.now + QUIET_S
        self._until(lambda: False, lambda: limit)

    def _may_fail(self, heard: Heard) -> bool:
        """Return whether a rule of docs/failures.md lets this call end without its answer."""
        scenario = self._scenario
        same = [request for request in scenario.requests if request.name == heard.request_id]
        others = [
            call for call in self.outcome.calls if call.request_id == heard.request_id and call is not heard
        ]
        if heard.error.startswith("Superseded") and any(not call.error for call in others):
            return True  # of several callers of one request, the last one receives it
        if any(request.leaves_after is not None and request.cancels for request in same) and len(same) > 1:
            return True  # the other caller has cancelled it
        if heard.error.startswith(REFUSALS) and not any(heard.tokens.values()):
            return True  # it asked for more than it could be promised, or the queue was full
        if self.fleet.longest_without_decode_s > NO_WORKER_S and "decode worker" in heard.error:
            return True  # without a decode worker a request waits for so long
        if heard.error.startswith("Unavailable: Redis") and not scenario.without_store:
            return any(fault.target == "redis" or fault.peer == "redis" for fault in scenario.faults)
        return False

    def _note_results(self) -> None:
        outcome = self.outcome
        outcome.broken = self.promises.broken
        outcome.simulated_s = self.fleet.scheduler.now
        outcome.trace = self._digest.hexdigest()


class _Time:
    """The module `time` for the SDK: each process has its own."""

    @staticmethod
    def monotonic() -> float:
        return asyncio.get_running_loop().time()


class _Random:
    @staticmethod
    def uniform(low: float, high: float) -> float:
        return (low + high) / 2


class _NoThreads:
    def __init__(self, *_: object) -> None: ...
    def shutdown(self, *_: object, **__: object) -> None: ...


@contextlib.contextmanager
def virtual() -> Iterator[None]:
    """Let the SDK read virtual clocks, and start no threads: what they would do is done by the loop."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    hook, sys.unraisablehook = sys.unraisablehook, _ignore_killed
    try:
        with _patched(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            yield
    finally:
        gc.collect()  # what is left of the runs is dropped before anybody hears of it
        sys.unraisablehook = hook
        structlog.reset_defaults()


def _ignore_killed(unraisable: Any) -> None:
    """Coroutines of processes that were killed cannot end in order, and say so when they are collected."""


@contextlib.contextmanager
def _patched() -> Iterator[None]:
    with (
        mock.patch.object(baton.routers, "time", _Time),
        mock.patch.object(baton.stream, "time", _Time),
        mock.patch.object(baton.routers, "random", _Random),
        mock.patch.object(kvtransfer.receiving.receiver, "started_executor", _NoThreads),
        mock.patch.object(kvtransfer.sending.sender, "started_executor", _NoThreads),
    ):
        yield


def play(scenario: Scenario, recorder: Recorder | None = None) -> Outcome:
    """Play a scenario to its end, and return what came of it. Call it within `virtual`."""
    return Run(scenario, recorder).play()
