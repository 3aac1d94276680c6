"""Convert the contract's messages to and from the types of the SDK."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from baton.errors import Internal
from baton.operators.v1 import fleet_pb2
from baton.types import (
    SAMPLING_DEFAULTS,
    Accepted,
    Attainable,
    ChoiceFinished,
    Delivery,
    Event,
    Finished,
    FinishReason,
    Grammar,
    JsonObject,
    JsonSchema,
    Model,
    OneOf,
    OutputFormat,
    Path,
    Program,
    Promise,
    PromptLogprobs,
    Queued,
    Quote,
    Regex,
    Sampling,
    Slo,
    SloClass,
    Stop,
    TimeSplit,
    TokenLogprobs,
    Tokens,
    Usage,
    Verdict,
)
from baton.types.chat import Chat, ChatMessage, NamedTool, Prompt, ToolChoice, ToolMode
from baton.types.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from baton.types.snapshots import (
    CostState,
    FleetCounters,
    FleetSnapshot,
    QueueState,
    Role,
    StartingState,
    WorkerState,
    WorkerStep,
)
from baton.v1 import errors_pb2, generation_pb2, inference_pb2
from baton.wire.fields import invalid, json_of, names_of, put, put_all
from baton.worker.v1 import worker_pb2

_MAX_DEPTH = 20
"""protobuf reads messages that are 100 deep, and each level of a mapping takes three."""
_MAX_WHOLE = 2**53


def put_prompt(
    request: inference_pb2.GenerateRequest | inference_pb2.CountTokensRequest, prompt: Prompt
) -> None:
    """Set the field of a request that holds its prompt. Raises `InvalidRequest`."""
    if isinstance(prompt, str):
        put(request, "", text=prompt)
        return
    if isinstance(prompt, Chat):
        _put_options(request.chat, prompt)
        _put_messages(request.chat, prompt.messages)
        return
    if prompt and all(isinstance(message, ChatMessage) for message in prompt):
        _put_messages(request.chat, prompt)
        return
    if isinstance(request, inference_pb2.CountTokensRequest):
        raise invalid("input", prompt, "text or chat messages")
    request.tokens.SetInParent()
    put(request.tokens, "tokens.", token_ids=prompt)


def _put_messages(chat: inference_pb2.ChatInput, given: Sequence[Any]) -> None:
    chat.SetInParent()
    for index, message in enumerate(given):
        if not isinstance(message, ChatMessage):
            raise invalid(f"chat.messages[{index}]", message, "a ChatMessage")
        where = f"chat.messages[{index}]."
        content: Any = message.content
        parts = content if isinstance(content, Sequence) and not isinstance(content, str) else None
        target = chat.messages.add()
        text = content if parts is None else None
        put_all(target, where, message, content=text, parts=None, tool_calls=None)
        for place, part in enumerate(parts or ()):
            put(target.parts.add(), f"{where}parts[{place}].", text=part)
        for place, call in enumerate(message.tool_calls):
            put_all(target.tool_calls.add(), f"{where}tool_calls[{place}].", call)


def _put_options(chat: inference_pb2.ChatInput, given: Chat) -> None:
    put(
        chat,
        "chat.",
        add_generation_prompt=given.add_generation_prompt,
        continue_final_message=given.continue_final_message,
        parallel_tool_calls=given.parallel_tool_calls,
    )
    for index, tool in enumerate(given.tools):
        where = f"chat.tools[{index}]."
        put_all(chat.tools.add(), where, tool, parameters=json_of(f"{where}parameters", tool.parameters))
    _put_tool_choice(chat.tool_choice, given.tool_choice)
    try:
        if _depth(given.template_arguments) > _MAX_DEPTH:
            raise ValueError(f"at most {_MAX_DEPTH} levels")
        if not all(map(_is_held, given.template_arguments.values())):
            raise ValueError(f"whole numbers of at most {_MAX_WHOLE}: the contract has no others")
        chat.template_arguments.update(given.template_arguments)
    except (TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        raise invalid("chat.template_arguments", given.template_arguments, str(error)) from None


def _depth(value: object) -> int:
    """Return how many mappings and lists are inside each other."""
    if isinstance(value, Mapping):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list | tuple) else 0


def _is_held(value: object) -> bool:
    """Return whether the contract, whose numbers are binary64, holds all whole numbers in a value."""
    if isinstance(value, Mapping):
        return all(map(_is_held, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_held, value))
    return not isinstance(value, int) or abs(value) <= _MAX_WHOLE


def _put_tool_choice(target: inference_pb2.ToolChoice, given: ToolChoice | None) -> None:
    match given:
        case ToolMode():
            put(target, "chat.tool_choice.", mode=inference_pb2.ToolMode.Value(f"TOOL_MODE_{given.name}"))
        case NamedTool(name):
            put(target, "chat.tool_choice.", name=name)
        case None:
            pass
        case _:
            raise invalid("chat.tool_choice", given, "a ToolMode or a NamedTool")


E = TypeVar("E", bound=enum.Enum)
T = TypeVar("T")


def by_number(contract: Any, prefix: str, kind: type[E]) -> dict[int, E]:
    """Return the members of `kind` by the numbers that an enum of the contract gives them."""
    return {contract.Value(f"{prefix}_{member.name}"): member for member in kind}


_REASONS = by_number(generation_pb2.FinishReason, "FINISH_REASON", FinishReason)
_PATHS = by_number(inference_pb2.Path, "PATH", Path)
_SLO_CLASSES = {
    kind: number for number, kind in by_number(generation_pb2.SloClass, "SLO_CLASS", SloClass).items()
}
_VERDICTS = by_number(inference_pb2.Verdict, "VERDICT", Verdict)
_ROLES = by_number(worker_pb2.WorkerRole, "WORKER_ROLE", Role)


def request_to_pb(
    prompt: Prompt,
    sampling: Sampling,
    stop: Stop,
    slo: Slo,
    *,
    request_id: str = "",
    tenant: str = "",
    model: str = "",
    resume_grace_ms: int = 0,
    truncate_prompt_tokens: int | None = None,
    output_format: OutputFormat | None = None,
    user: str = "",
    adapter: str = "",
    program: Program | None = None,
) -> inference_pb2.GenerateRequest:
    """Build a request. Raises `InvalidRequest` for values that protobuf cannot carry."""
    request = inference_pb2.GenerateRequest(model=model, tenant=tenant, resume_grace_ms=resume_grace_ms)
    put(request, "", request_id=request_id, truncate_prompt_tokens=truncate_prompt_tokens, user=user)
    put(request, "", adapter=adapter)
    put_prompt(request, prompt)
    put_all(request.sampling, "sampling.", sampling)
    put_all(request.stop, "stop.", stop, stop_strings=stop.strings, stop_token_ids=stop.token_ids)
    slo_class = _SLO_CLASSES.get(slo.slo_class)
    if slo_class is None:
        raise invalid("slo.slo_class", slo.slo_class, "interactive, standard or batch")
    put_all(request.slo, "slo.", slo, slo_class=slo_class)
    if program is not None:
        put_all(request.program, "program.", program)
    _put_output_format(request.output_format, output_format)
    return request


def _put_output_format(message: generation_pb2.OutputFormat, given: OutputFormat | None) -> None:
    match given:
        case JsonSchema(schema):
            put(message, "output_format.", json_schema=json_of("output_format.json_schema", schema))
        case JsonObject():
            message.json_object = True
        case Regex(pattern):
            put(message, "output_format.", regex=pattern)
        case Grammar(lark):
            put(message, "output_format.", grammar=lark)
        case OneOf(texts):
            message.choice.SetInParent()
            put(message.choice, "output_format.choice.", texts=texts)


def detokenize_to_pb(
    token_ids: Sequence[int], *, model: str, skip_special_tokens: bool, include_token_bytes: bool = False
) -> inference_pb2.DetokenizeRequest:
    request = inference_pb2.DetokenizeRequest(
        model=model, skip_special_tokens=skip_special_tokens, include_token_bytes=include_token_bytes
    )
    put(request, "", token_ids=token_ids)
    return request


def resume_to_pb(
    request: inference_pb2.GenerateRequest,
    session: int,
    received: Mapping[int, Sequence[int]],
    failed_attempts: int,
    received_prompt_logprobs: int = 0,
) -> inference_pb2.ResumeRequest:
    tokens = [
        inference_pb2.ReceivedTokens(choice=choice, token_ids=token_ids)
        for choice, token_ids in sorted(received.items())
    ]
    return inference_pb2.ResumeRequest(
        request=request,
        session=session,
        received=tokens,
        failed_attempts=failed_attempts,
        received_prompt_logprobs=received_prompt_logprobs,
    )


def event_from_pb(event: inference_pb2.GenerationEvent) -> Event:
    match event.WhichOneof("event"):
        case "tokens":
            tokens = event.tokens
            logprobs = _logprobs_from_pb(tokens.logprobs) if tokens.logprobs else ()
            deltas = deltas_from_pb(tokens.deltas) if tokens.deltas else ()
            token_ids = tuple(tokens.token_ids)
            return Tokens(tokens.choice, tokens.first_index, token_ids, tokens.text, logprobs, deltas)
        case "accepted":
            return from_pb(Accepted, event.accepted, promise=from_pb(Promise, event.accepted.promise))
        case "prompt_logprobs":
            piece = event.prompt_logprobs
            return PromptLogprobs(piece.first_index, _logprobs_from_pb(piece.logprobs))
        case "queued":
            return from_pb(Queued, event.queued)
        case "choice_finished":
            reason = _REASONS.get(event.choice_finished.reason)
            if reason is None:
                raise _unknown("a finish reason", event.choice_finished.reason)
            deltas = deltas_from_pb(event.choice_finished.deltas)
            return from_pb(ChoiceFinished, event.choice_finished, reason=reason, deltas=deltas)
        case "finished":
            return _finished_from_pb(event.finished)
        case other:
            raise _unknown("an event", other)


def deltas_from_pb(deltas: Iterable[inference_pb2.Delta]) -> tuple[Delta, ...]:
    """Return the deltas that this client knows."""
    return tuple(found for delta in deltas if (found := _delta_from_pb(delta)) is not None)


def _delta_from_pb(delta: inference_pb2.Delta) -> Delta | None:
    """Return a delta; None for one that this client does not know."""
    match delta.WhichOneof("delta"):
        case "content":
            return ContentDelta(delta.content)
        case "reasoning":
            return ReasoningDelta(delta.reasoning)
        case "call_begun":
            return from_pb(ToolCallBegun, delta.call_begun)
        case "call_arguments":
            return from_pb(ToolCallArguments, delta.call_arguments)
        case "call_ended":
            return from_pb(ToolCallEnded, delta.call_ended)
    return None


def _finished_from_pb(finished: inference_pb2.Finished) -> Finished:
    return from_pb(
        Finished,
        finished,
        usage=from_pb(Usage, finished.usage),
        promise=from_pb(Promise, finished.promise),
        delivery=from_pb(Delivery, finished.delivery),
        split=from_pb(TimeSplit, finished.split),
        path=_PATHS.get(finished.path),
    )


def attainable_from_pb(refusal: errors_pb2.SloRefusal) -> Attainable:
    return from_pb(
        Attainable,
        refusal,
        ttft_ms=refusal.attainable_ttft_ms,
        tpot_ms=refusal.attainable_tpot_ms,
        itl_ms=refusal.attainable_itl_ms,
    )


def model_from_pb(message: inference_pb2.Model) -> Model:
    stated = message.default_sampling
    defaults = {name: getattr(stated, name) for name in SAMPLING_DEFAULTS if stated.HasField(name)}
    return from_pb(Model, message, default_sampling=Sampling(**defaults))


def quote_from_pb(quote: inference_pb2.QuoteResponse) -> Quote:
    verdict = _VERDICTS.get(quote.verdict)
    if verdict is None:
        raise _unknown("a verdict", quote.verdict)
    return from_pb(
        Quote,
        quote,
        verdict=verdict,
        promise=from_pb(Promise, quote.promise),
        retry_after_s=quote.retry_after_ms / 1000 if verdict is Verdict.REFUSED else None,
        attainable=attainable_from_pb(quote.refusal) if quote.HasField("refusal") else None,
    )


def snapshot_from_pb(snapshot: fleet_pb2.WatchResponse) -> FleetSnapshot:
    return from_pb(
        FleetSnapshot,
        snapshot,
        queue=from_pb(QueueState, snapshot.queue),
        workers=tuple(_worker_from_pb(worker) for worker in snapshot.workers),
        counters=from_pb(FleetCounters, snapshot.counters),
        starting=tuple(
            from_pb(StartingState, worker, role=_ROLES.get(worker.role)) for worker in snapshot.starting
        ),
        steps=tuple(from_pb(WorkerStep, step) for step in snapshot.steps),
    )


def _worker_from_pb(worker: fleet_pb2.WorkerStatus) -> WorkerState:
    names = set(worker.load.DESCRIPTOR.fields_by_name) - {"preempted"}
    load = {name: getattr(worker.load, name) for name in names}
    return from_pb(
        WorkerState,
        worker,
        role=_ROLES.get(worker.role),
        **load,
        cost=from_pb(CostState, worker.cost_model) if worker.HasField("cost_model") else None,
    )


def _logprobs_from_pb(logprobs: Iterable[inference_pb2.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(token.logprob, tuple(zip(token.top_token_ids, token.top_logprobs, strict=True)))
        for token in logprobs
    )


def _unknown(what: str, value: object) -> Internal:
    return Internal(f"the router sent {what} this client does not know: {value}")


def from_pb(kind: type[T], message: Message, **given: Any) -> T:
    """Return a dataclass `kind` with the fields of a message; those in `given` come from there.

    An optional field that is unset becomes None, a repeated one a tuple.
    """
    names = (name for name in names_of(kind) if name not in given)  # type: ignore[arg-type]  # types are hashable
    return kind(**{name: _read(message, name) for name in names}, **given)


def _read(message: Message, name: str) -> Any:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.has_presence and not message.HasField(name):
        return None
    value: Any = getattr(message, name)
    return tuple(value) if isinstance(value, MutableSequence) else value
