"""Carry out the core's actions on asyncio, and turn what happens into its events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time

import structlog

from router.core.core import RouterCore
from router.core.model.actions import (
    Action,
    AttemptFailed,
    GroupMigrated,
    GroupPreempted,
    PromiseBroken,
    Reject,
    Relay,
    RequestEnded,
    RequestRefused,
    RequestShed,
    SetTimer,
    StoreAction,
    StoreChanged,
    TellAccepted,
    TellChoiceFinished,
    TellFinished,
    TellLeaving,
    TellPromptLogprobs,
    TellQueued,
    TellQuoted,
    TellRetrying,
    WorkerCommand,
)
from router.core.model.events import (
    Arrived,
    CancelAsked,
    ClientGone,
    Event,
    Granted,
    Nudged,
    QuoteAsked,
    StepReported,
    StoreForgot,
    TimerFired,
    WorkerLost,
)
from router.errors import Overloaded, Reason, RouterError, Unavailable
from router.links.client_stream import MAX_PENDING_TOKENS, ClientStream, Outbox
from router.links.demand import DemandRecorder
from router.links.discovery import Discovery
from router.links.metrics import RouterMetrics
from router.links.request_spans import RequestSpans
from router.links.step_log import StepLog
from router.links.store_calls import StoreCalls
from router.links.ticker import Ticker
from router.links.worker_link import WorkerLink
from router.replay.recording import Recorder
from runtime.process.clock import compare_clocks
from runtime.security.tls import FleetTls
from runtime.state import records
from runtime.state.errors import StoreUnavailable
from runtime.state.store import Store
from runtime.tracing.tracer import Tracer
from scheduling.admission.prefixes import PrefixHits
from scheduling.request import FinishReason, Slo

NO_MEMORY_EXIT = 71
"""EX_OSERR of sysexits.h, for a failure of the operating system."""
WATCH_S = 1.0
"""Pauses between looks at which routers there are."""
STALL_S = 30.0
"""A client that takes nothing of what waits for it for one such period does not read."""


class Shell:
    """One core with its clock, its store, its workers and its clients' streams."""

    def __init__(
        self,
        core: RouterCore,
        store: Store,
        metrics: RouterMetrics,
        model_name: str,
        recorder: Recorder | None = None,
        tls: FleetTls | None = None,
        model_commit: str = "",
        tracer: Tracer | None = None,
    ) -> None:
        self.core = core
        self.store = store
        store.on_new_epoch(lambda: self.submit_soon(StoreForgot()))
        self.metrics = metrics
        self.now = time.monotonic
        self._recorder = recorder
        self.router_id = core.state.config.router_id
        self.caller = core.state.config.caller
        link_crashed = metrics.loop_errors.labels("link").inc
        self.ticker = Ticker()
        self.discovery = Discovery(
            store,
            model_name,
            lambda record: WorkerLink(record, self.router_id, self.submit, link_crashed, self.ticker, tls),
            self.submit,
            model_commit,
        )
        metrics.workers.set_function(lambda: self.discovery.num_joined)
        metrics.stalled.set_function(lambda: core.state.fleet.num_stalled)
        metrics.loop_lag.set_function(lambda: self.ticker.lag_s)
        self.demand = DemandRecorder(store, core.state)
        self.steps = StepLog()
        self.spans = None if tracer is None else RequestSpans(tracer, model_name)
        self._log = structlog.get_logger()
        self._streams: dict[int, ClientStream] = {}
        self._quotes: dict[int, asyncio.Future[TellQuoted]] = {}
        """Requested quotes, by listener."""
        self._last_listener = 0
        self.max_pending_tokens = MAX_PENDING_TOKENS
        crashed = metrics.loop_errors.labels("store").inc
        self.store_calls = StoreCalls(store, self.caller, self.submit, crashed)

    # Clients

    def open_stream(self, outbox: Outbox | None = None) -> tuple[int, ClientStream]:
        """Return a new listener, and the stream on which it receives what happens to its request."""
        self._last_listener += 1
        stream = self._streams[self._last_listener] = ClientStream(self.max_pending_tokens, outbox)
        return self._last_listener, stream

    def close_stream(self, listener: int, error: RouterError | None = None) -> None:
        """End a listener whose call is over, perhaps with an error."""
        if self._streams.pop(listener, None) is not None:
            self.submit(ClientGone(listener))
        if self.spans is not None:
            self.spans.end(listener, error, self.now())

    def end_stalled(self) -> None:
        """Give up clients that have taken nothing since the last call of this method.

        A call that is stuck in a write cannot be ended before the client reads or hangs up. What waits for it
        is dropped now, and it receives the error then.
        """
        for listener, stream in list(self._streams.items()):
            if stream.is_stalled():
                stream.fail(
                    Overloaded(
                        Reason.READER_TOO_SLOW,
                        f"the client reads too slowly: it has taken nothing for {STALL_S:g} s",
                    )
                )
                self.submit(ClientGone(listener))

    async def quote(
        self,
        *,
        prompt_tokens: int,
        num_choices: int,
        max_tokens: int,
        slo: Slo,
        waited_s: float,
        hits: PrefixHits,
        adapter: str = "",
    ) -> TellQuoted:
        """Return what a request would be promised now. Raises RouterError if sending it would.

        `waited_s` is the time from its receipt to its admission; `hits` are prompt blocks that workers have;
        `adapter` is the digest of its LoRA adapter.
        """
        try:
            queue = await self.store.queue_status()
        except StoreUnavailable as error:
            if not self.core.state.config.serves_without_store:
                why = f"Redis, which holds the fleet's queue, does not answer: {error.reason}"
                raise Unavailable(Reason.REDIS_AWAY, why) from error
            queue = self.core.state.queue
        self._last_listener += 1
        quote: asyncio.Future[TellQuoted] = asyncio.get_running_loop().create_future()
        self._quotes[self._last_listener] = quote
        request = QuoteAsked(
            listener=self._last_listener,
            prompt_tokens=prompt_tokens,
            num_choices=num_choices,
            max_tokens=max_tokens,
            slo=slo,
            waiting=queue.waiting,
            waiting_tokens=queue.waiting_tokens,
            hits=hits,
            waited_s=waited_s,
            adapter=adapter,
        )
        self.submit(request)
        return await quote

    # The core

    def submit(self, event: Event) -> None:
        """Let the core decide on an event, and carry out its actions.

        If memory is short, the process ends: the core's state may be half updated, and clients lose less if
        they resume elsewhere than if this router goes on serving them.
        """
        try:
            self._submit(event)
        except MemoryError:
            os.write(sys.stderr.fileno(), b"router: out of memory in the middle of a decision\n")
            os._exit(NO_MEMORY_EXIT)

    def _submit(self, event: Event) -> None:
        now = self.now()
        if isinstance(event, WorkerLost):
            self.metrics.lost_workers.inc()
        elif isinstance(event, Arrived):
            self.demand.arrived(event, now)
        elif self.steps.is_watched and isinstance(event, StepReported):
            self._note_step(event, now)
        actions = self.core.on(event, now)
        if self._recorder is not None:
            self._recorder.record(event, now, actions)
        if self.spans is not None:
            self.spans.observe(event, now, actions)
        for action in actions:
            self._do(action)

    def _note_step(self, event: StepReported, now: float) -> None:
        worker = self.core.state.fleet.workers.get(event.worker_key)
        if worker is not None:
            self.steps.note(worker.facts.worker_id, event, now)

    def _do(self, action: Action) -> None:  # noqa: C901, PLR0912 -- a table of actions reads best as one match
        match action:
            case Relay():
                self._relay(action)
            case (
                TellAccepted()
                | TellQueued()
                | TellPromptLogprobs()
                | TellChoiceFinished()
                | TellFinished()
                | TellLeaving()
                | TellRetrying()
            ):
                stream = self._streams.get(action.listener)
                if stream is not None:
                    stream.push(action)
            case TellQuoted(listener):
                self._quotes.pop(listener).set_result(action)
            case Reject(listener, error) if listener in self._quotes:
                self._quotes.pop(listener).set_exception(error)
            case Reject(listener, error):
                stream = self._streams.get(listener)
                if stream is not None:
                    stream.fail(error)
            case _ if isinstance(action, WorkerCommand):
                self.discovery.send(action, "" if self.spans is None else self.spans.traceparent_of(action))
            case _ if isinstance(action, StoreAction):
                self.store_calls.do(action)
            case SetTimer(timer, at):
                delay_s = max(0.0, at - self.now())
                asyncio.get_running_loop().call_later(delay_s, self.submit, TimerFired(timer))
            case RequestEnded():
                self.metrics.ended(action)
            case RequestRefused():
                self.metrics.refused(action)
            case RequestShed() | GroupPreempted() | GroupMigrated():
                self.metrics.happened(action)
            case PromiseBroken(request_key):
                self.metrics.happened(action)
                self._log.warning("promise_broken", request=request_key)
            case AttemptFailed():
                self.metrics.attempt_failed(action)
                self._log.warning(
                    "attempt_failed",
                    request=action.request_key,
                    attempt=action.attempt,
                    worker=action.worker_key,
                    reason=action.reason,
                    final=action.final,
                )
            case StoreChanged(reachable, reason):
                self._log.warning("store_changed", reachable=reachable, reason=reason)

    def _relay(self, relay: Relay) -> None:
        """Put each row's token into its stream's buffer. This is the token path."""
        streams = self._streams
        too_slow: list[int] = []
        matches = {(listener, choice): match for listener, choice, match in relay.matches}
        for listener, choice, index, token_id, text, reason, logprobs in zip(
            relay.listeners,
            relay.choices,
            relay.indexes,
            relay.token_ids,
            relay.texts,
            relay.finish_reasons,
            relay.logprobs,
            strict=True,
        ):
            stream = streams.get(listener)
            if stream is None:
                continue
            if not stream.push_token(choice, index, token_id, text, logprobs, free=relay.replayed):
                too_slow.append(listener)
            elif reason:
                match = matches.get((listener, choice))
                stream.push(TellChoiceFinished(listener, choice, FinishReason(reason), index + 1, match))
        if not relay.replayed:
            self.metrics.relayed_step(relay)
        for listener in too_slow:
            self.submit_soon(ClientGone(listener))

    def submit_soon(self, event: Event) -> None:
        """Submit an event after the actions under way: the core takes one event at a time."""
        asyncio.get_running_loop().call_soon(self.submit, event)

    @property
    def serves(self) -> bool:
        """Whether a request that arrives now could run; the health service then reports SERVING."""
        state = self.core.state
        has_queue = self.discovery.store_responds or state.config.serves_without_store
        return has_queue and state.fleet.serves and not state.leaving

    # Life

    async def run(self) -> None:
        """Find workers, receive notices and watch clients until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.ticker.run())
            tasks.create_task(self.discovery.run())
            tasks.create_task(self.demand.run())
            tasks.create_task(compare_clocks(self.store.read_clock_s, self.metrics.clock_offset.set))
            tasks.create_task(self._receive_notices())
            tasks.create_task(self._watch_routers())
            tasks.create_task(self._watch_clients())

    async def _watch_clients(self) -> None:
        while True:
            await asyncio.sleep(STALL_S)
            self.end_stalled()

    async def _watch_routers(self) -> None:
        while True:
            with contextlib.suppress(StoreUnavailable):
                await self.store.watch_routers(self.caller)
            await asyncio.sleep(WATCH_S)

    async def _receive_notices(self) -> None:
        async for notice in self.store.notices(self.caller):
            match notice:
                case records.Grant(request_key, _, worker_key, decode_key):
                    self.submit(Granted(request_key, worker_key, decode_key))
                case records.Nudge():
                    self.submit(Nudged())
                case records.Cancelled(tenant, request_id):
                    self.submit(CancelAsked(tenant, request_id))
