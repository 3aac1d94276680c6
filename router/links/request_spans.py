"""The spans of requests whose calls are traced: noted as the core decides, and made when a call ends.

    OPERATION MODEL          the whole call
      intake                 it is checked and tokenised, and its prefix is looked up
      admission              until it is accepted
      redis SCRIPT           a call of the store that it waits for
      queue                  from its place in the queue until a grant
      grant                  from the grant until it is sent to its workers
      attempt                until it ends, fails or goes on elsewhere; the workers' spans are below this one
      relay                  from its first token until the call has ended

The core knows nothing of traces. While no call is traced, an event costs one look at an empty dictionary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.core.dispatch import first_choice_of, request_name, request_of
from router.core.model.actions import (
    Action,
    AttemptFailed,
    ChargeTenant,
    Enqueue,
    GroupMigrated,
    Outcome,
    RequestEnded,
    SendDecode,
    SendPrefill,
    SendReceive,
    Settle,
    TellAccepted,
    WorkerCommand,
)
from router.core.model.events import (
    Arrived,
    Charged,
    Enqueued,
    Event,
    Granted,
    QueueWasFull,
    SettleAnswered,
    StoreFailed,
)
from router.errors import RouterError
from router.request import Request
from runtime.tracing.context import SpanContext
from runtime.tracing.span import Kind, Span, Value
from runtime.tracing.tracer import Tracer
from scheduling.request import Fence, FinishReason, ReceiveKind

PROVIDER = "baton"
_REDIS = "redis "
_ENQUEUE, _LEASE = f"{_REDIS}enqueue", f"{_REDIS}lease_at_once"
_SETTLE, _CHARGE = f"{_REDIS}settle", f"{_REDIS}charge_tenant"
"""Spans of the store's scripts."""
_Start = SendPrefill | SendReceive | SendDecode


@dataclass(slots=True, eq=False)
class _Attempt:
    """One attempt of a group."""

    context: SpanContext
    choice: int
    """The first choice of its group."""
    began_at: float
    attributes: dict[str, Value]


@dataclass(slots=True, eq=False)
class _Call:
    """Notes of one call. Places in the queue, grants and attempts are those of its groups."""

    context: SpanContext
    operation: str
    received_at: float
    name: str = ""
    """The request's, once the core knows it."""
    request: Request | None = None
    outcome: Outcome | None = None
    begun: dict[tuple[str, int], float] = field(default_factory=dict)
    """When each wait began that is not over, by the name of its span and the first choice of the group."""
    attempts: dict[int, _Attempt] = field(default_factory=dict)
    """Those that run, by handle."""
    spans: list[Span] = field(default_factory=list)
    """Those that are over, below that of the call."""

    def begin(self, name: str, choice: int, now: float) -> None:
        """Note that a wait begins, unless it has begun."""
        self.begun.setdefault((name, choice), now)

    def end(self, name: str, choice: int, now: float, error: str = "", **attributes: Value) -> None:
        """Note that a wait is over, if it has begun."""
        began_at = self.begun.pop((name, choice), None)
        if began_at is not None:
            self.add(name, began_at, now, error, **attributes)

    def add(self, name: str, began_at: float, ended_at: float, error: str = "", **attributes: Value) -> None:
        given = {f"baton.{key}": value for key, value in attributes.items()}
        kind = Kind.INTERNAL
        if name.startswith(_REDIS):
            given |= {"db.system.name": "redis", "db.operation.name": name.removeprefix(_REDIS)}
            kind = Kind.CLIENT
        self.spans.append(Span(self.context.child(), name, began_at, ended_at, given, kind, error))

    def end_attempts(self, choice: int | None, now: float, error: str = "") -> None:
        """Note that the attempts of a group are over, or those of all groups."""
        over = [
            handle for handle, attempt in self.attempts.items() if choice is None or attempt.choice == choice
        ]
        for handle in over:
            ended = self.attempts.pop(handle)
            self.spans.append(
                Span(ended.context, "attempt", ended.began_at, now, ended.attributes, error=error)
            )


class RequestSpans:
    """Takes in what the core is told and decides, and makes the spans of each traced call at its end."""

    def __init__(self, tracer: Tracer, model: str) -> None:
        self._tracer = tracer
        self._model = model
        self._calls: dict[int, _Call] = {}
        """Traced calls that have not ended, by listener."""
        self._by_name: dict[str, list[_Call]] = {}
        """The same by request, once the core knows them."""

    def begin(self, listener: int, traceparent: str, operation: str, received_at: float) -> None:
        """Trace a call, if its caller or chance wants that."""
        context = self._tracer.begin(traceparent)
        if context.is_sampled:
            self._calls[listener] = _Call(context, operation, received_at)

    def end(self, listener: int, error: RouterError | None, now: float) -> None:
        """Make the spans of a call, if it is traced. `error` is what it ends with."""
        call = self._calls.pop(listener, None)
        if call is None:
            return
        if call.name:
            calls = self._by_name[call.name]
            calls.remove(call)
            if not calls:
                del self._by_name[call.name]
        call.end_attempts(None, now)
        for name, choice in list(call.begun):
            call.end(name, choice, now)
        outcome = call.outcome
        if outcome is not None and outcome.has_tokens:
            call.add("relay", outcome.marks.first_token_at, now)
        whole = Span(
            call.context,
            f"{call.operation} {self._model}",
            call.received_at,
            now,
            self._attributes(call, error),
            Kind.SERVER,
            _failure(outcome, error),
        )
        self._tracer.export([whole, *call.spans])

    def observe(self, event: Event, now: float, actions: Sequence[Action]) -> None:
        """Note what has happened, and what was decided on it, of requests that are traced."""
        if self._calls:
            self._note_event(event, now)
            for action in actions:
                self._note_action(action, now)

    def traceparent_of(self, command: WorkerCommand) -> str:
        """Return the span of an attempt, for its workers; empty if it is not traced."""
        if not self._calls or not isinstance(command, _Start):
            return ""
        for call in self._by_name.get(_name_of(command.spec.fence), ()):
            attempt = call.attempts.get(command.spec.handle)
            if attempt is not None:
                return attempt.context.traceparent
        return ""

    def _note_event(self, event: Event, now: float) -> None:
        match event:
            case Arrived(listener, request):
                call = self._calls.get(listener)
                if call is not None:
                    call.request, call.name = request, request_name(request.tenant, request.request_id)
                    self._by_name.setdefault(call.name, []).append(call)
                    call.add("intake", call.received_at, now)
                    call.begin("admission", 0, now)
            case Granted(request_key, is_leased=is_leased):
                choice = first_choice_of(request_key)
                for call in self._of(request_key):
                    if is_leased and (_ENQUEUE, choice) in call.begun:
                        call.add(_LEASE, call.begun.pop((_ENQUEUE, choice)), now)
                    call.end("queue", choice, now)
                    call.begin("grant", choice, now)
            case Enqueued(request_key) | QueueWasFull(request_key):
                self._end(_ENQUEUE, request_key, now)
            case SettleAnswered(request_key):
                self._end(_SETTLE, request_key, now)
            case Charged(request_key):
                self._end(_CHARGE, request_key, now)
            case StoreFailed(_, request_key, reason):
                for name in (_ENQUEUE, _SETTLE, _CHARGE):
                    self._end(name, request_key, now, reason)

    def _note_action(self, action: Action, now: float) -> None:
        match action:
            case TellAccepted():
                self._note_accepted(action, now)
            case Enqueue(entry):
                self._begin((_ENQUEUE, "queue"), entry.request_key, now)
            case Settle(request_key):
                self._begin((_SETTLE,), request_key, now)
            case ChargeTenant(request_key):
                self._begin((_CHARGE,), request_key, now)
            case SendPrefill() | SendReceive() | SendDecode():
                self._note_start(action, now)
            case AttemptFailed(request_key, reason=reason):
                self._end_attempts(request_key, now, reason)
            case GroupMigrated(request_key):
                self._end_attempts(request_key, now)
            case RequestEnded(request_key, outcome):
                for call in self._of(request_key):
                    call.outcome = outcome
                    call.end_attempts(None, now)

    def _note_accepted(self, told: TellAccepted, now: float) -> None:
        call = self._calls.get(told.listener)
        if call is not None:
            promise = told.promise
            call.end(
                "admission",
                0,
                now,
                at_risk=promise.at_risk,
                predicted_ttft_ms=promise.predicted_ttft_ms,
                predicted_tpot_ms=promise.predicted_tpot_ms,
            )

    def _note_start(self, command: _Start, now: float) -> None:
        """Note that an attempt is sent to a worker: to its first one, or to the other."""
        if isinstance(command, SendReceive) and command.kind is ReceiveKind.AHEAD:
            return  # a copy of what runs on elsewhere
        spec = command.spec
        role = "prefill_worker" if isinstance(command, SendPrefill) else "decode_worker"
        for call in self._by_name.get(_name_of(spec.fence), ()):
            attempt = call.attempts.get(spec.handle)
            if attempt is None:
                call.end("grant", spec.fence.choice, now)
                call.end_attempts(spec.fence.choice, now)  # it has moved
                number: dict[str, Value] = {"baton.attempt": spec.fence.attempt}
                attempt = _Attempt(call.context.child(), spec.fence.choice, now, number)
                call.attempts[spec.handle] = attempt
            attempt.attributes[f"baton.{role}"] = command.worker_key.partition(":")[0]

    def _of(self, request_key: str) -> Sequence[_Call]:
        return self._by_name.get(request_of(request_key), ())

    def _begin(self, names: Sequence[str], request_key: str, now: float) -> None:
        for call in self._of(request_key):
            for name in names:
                call.begin(name, first_choice_of(request_key), now)

    def _end(self, name: str, request_key: str, now: float, error: str = "") -> None:
        for call in self._of(request_key):
            call.end(name, first_choice_of(request_key), now, error)

    def _end_attempts(self, request_key: str, now: float, error: str = "") -> None:
        for call in self._of(request_key):
            call.end_attempts(first_choice_of(request_key), now, error)

    def _attributes(self, call: _Call, error: RouterError | None) -> dict[str, Value]:
        """Return what GenAI's conventions name, and the rest under names of our own; no text of anyone."""
        found: dict[str, Value] = {
            "gen_ai.operation.name": call.operation,
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model,
        }
        if call.request is not None:
            found |= _asked(call.request)
        if call.outcome is not None:
            found |= _delivered(call.outcome) | {"gen_ai.response.model": self._model}
        elif error is not None:
            found["error.type"] = type(error).__name__
        else:
            found["error.type"] = "client_gone"
        return found


def _name_of(fence: Fence) -> str:
    return request_name(fence.tenant, fence.request_id)


def _asked(request: Request) -> dict[str, Value]:
    sampling = request.sampling
    return {
        "gen_ai.response.id": request.request_id,
        "gen_ai.request.max_tokens": request.stop.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.choice.count": sampling.n,
        "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
        "baton.session": request.session,
        "baton.slo_class": request.slo.slo_class.name.lower(),
    }


def _delivered(outcome: Outcome) -> dict[str, Value]:
    found: dict[str, Value] = {
        "gen_ai.response.finish_reasons": [reason.name.lower() for reason in outcome.reasons],
        "gen_ai.usage.output_tokens": outcome.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": outcome.cached_prompt_tokens,
        "baton.attempts": outcome.attempts,
        "baton.path": outcome.path.name.lower(),
    }
    if outcome.has_tokens:
        found["gen_ai.response.time_to_first_chunk"] = (
            outcome.marks.first_token_at - outcome.marks.received_at
        )
    if FinishReason.FAILED in outcome.reasons:
        found["error.type"] = "failed"
    return found


def _failure(outcome: Outcome | None, error: RouterError | None) -> str:
    """Return why a call failed; empty if it did not."""
    if error is not None:
        return type(error).__name__  # its text may show what the caller sent
    return "" if outcome is None or FinishReason.FAILED not in outcome.reasons else outcome.error
