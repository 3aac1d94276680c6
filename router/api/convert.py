"""Convert messages of the public contract to and from the router's own types."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, MutableMapping
from dataclasses import asdict
from typing import Any, cast

from google.protobuf import struct_pb2
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from google.protobuf.message import Message as AnyMessage

from baton.v1 import errors_pb2, generation_pb2, inference_pb2
from model_output.formats import (
    ContentDelta,
    Delta,
    Message,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from router.core.model.actions import (
    FinalError,
    Outcome,
    TellAccepted,
    TellChoiceFinished,
    TellFinished,
    TellLeaving,
    TellPromptLogprobs,
    TellQueued,
    TellQuoted,
    TellRetrying,
    attained,
)
from router.core.model.session import TokenLogprobs
from router.errors import SET, Described, Refused, ValidationError
from router.links.client_stream import StreamItem, TokenBatch, Told
from router.outputs import OutputReader, Reading
from router.request import ChatOptions, Conversation, RawRequest, Tool, ToolCall
from router.request import Message as ChatMessage
from runtime.rpc.convert import field_of, from_pb, to_pb
from scheduling.columns import PromptLogprobs
from scheduling.request import FinishReason, Matched


def request_from_pb(
    message: inference_pb2.GenerateRequest, resume: inference_pb2.ResumeRequest | None = None
) -> RawRequest:
    """Return the request as received, which `resume` continues; unset fields stay None."""
    values = prompt_from_pb(message)
    for part in (message, message.sampling, message.stop, message.slo):
        values |= _set_fields(part)
    if message.HasField("tokens"):
        values["token_ids"] = tuple(message.tokens.token_ids)
    if message.HasField("output_format"):
        values["output_format"] = output_format_from_pb(message.output_format)
    if message.HasField("program"):
        values["program"] = message.program.id, field_of(message.program, "deadline_ms")
    if resume is not None:
        values |= _set_fields(resume) | {
            "received": tuple((tokens.choice, tuple(tokens.token_ids)) for tokens in resume.received)
        }
    return RawRequest(**values)


def _set_fields(message: AnyMessage) -> dict[str, Any]:
    """Return the fields of a message that are set, and no messages among them.

    Most are unset, and a `RawRequest` has what that means.
    """
    values: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is None:
            values[field.name] = tuple(value) if field.is_repeated else value
        elif isinstance(value, MutableMapping):
            values[field.name] = dict(value)
    return values


def output_format_from_pb(message: generation_pb2.OutputFormat) -> tuple[str, str] | None:
    """Return the field that is set and its text; None if none is."""
    match message.WhichOneof("format"):
        case None:
            return None
        case "json_object":
            return "json_object", "{}"
        case "choice":
            return "choice", json.dumps(list(message.choice.texts))
        case kind:
            return kind, getattr(message, kind)


def prompt_from_pb(
    message: inference_pb2.GenerateRequest | inference_pb2.CountTokensRequest,
) -> dict[str, Any]:
    """Return the fields of a `RawRequest` with a text or a chat, of which one is None."""
    chat = chat_from_pb(message.chat) if message.HasField("chat") else None
    return {"text": field_of(message, "text"), "chat": chat}


def content_digest(message: inference_pb2.GenerateRequest) -> bytes:
    """Return a digest of the SLO and of everything that determines the output, except for the seed.

    The seed is compared separately: a client that resumes may name the seed that was drawn for it. A program
    has less time left when a call is sent again.
    """
    content = inference_pb2.GenerateRequest()
    content.CopyFrom(message)
    content.sampling.ClearField("seed")
    for field in ("request_id", "tenant", "user", "resume_grace_ms", "model", "program"):
        content.ClearField(field)
    return hashlib.blake2b(content.SerializeToString(deterministic=True), digest_size=16).digest()


def put_event(
    event: inference_pb2.GenerationEvent,
    item: StreamItem,
    reader: OutputReader,
    first_written_at: float | None,
    now: float,
) -> None:
    """Set one event of a stream, of which the reader has read all before.

    `first_written_at` is when the call's first token was written.

    Tokens are put in place: this is the token path, and a message given to another one is copied.
    """
    if isinstance(item, TokenBatch):
        put_tokens(event.tokens, item, reader)
    else:
        event.CopyFrom(_event_to_pb(item, reader, first_written_at, now))


def _event_to_pb(  # noqa: PLR0911 -- a table of events
    item: Told, reader: OutputReader, first_written_at: float | None, now: float
) -> inference_pb2.GenerationEvent:
    event = inference_pb2.GenerationEvent
    match item:
        case TellAccepted():
            promise = to_pb(inference_pb2.LatencyPromise, item.promise)
            formats = formats_to_pb(reader.reading) | {"has_deltas": reader.has_deltas}
            return event(accepted=to_pb(inference_pb2.Accepted, item, promise=promise, **formats))
        case TellPromptLogprobs():
            logprobs = prompt_logprobs_to_pb(item.told)
            return event(prompt_logprobs=to_pb(inference_pb2.PromptLogprobs, item.told, logprobs=logprobs))
        case TellQueued():
            return event(queued=to_pb(inference_pb2.Queued, item))
        case TellChoiceFinished():
            return event(choice_finished=_choice_finished_to_pb(item, reader))
        case TellFinished():
            return event(finished=finished_to_pb(item.outcome, first_written_at, now))
        case TellLeaving():
            return event(leaving=inference_pb2.Leaving())
        case TellRetrying():
            return event(retrying=to_pb(inference_pb2.Retrying, item))


def formats_to_pb(reading: Reading) -> dict[str, Any]:
    """Return the fields that say how texts write calls and reasoning."""
    return {
        "tool_format": reading.formats.tools,
        "reasoning_format": reading.formats.reasoning,
        "reasoning_open": reading.reasoning_open,
    }


def put_tokens(tokens: inference_pb2.Tokens, batch: TokenBatch, reader: OutputReader) -> None:
    """Set the tokens of an event."""
    tokens.choice = batch.choice
    tokens.first_index = batch.first_index
    tokens.token_ids.extend(batch.token_ids)
    tokens.text = text = "".join(batch.texts)
    if reader.has_deltas:
        put_deltas(tokens.deltas, reader.read(batch.choice, text))
    if batch.logprobs:
        tokens.logprobs.extend(map(logprobs_to_pb, batch.logprobs))


def logprobs_to_pb(logprobs: TokenLogprobs) -> inference_pb2.TokenLogprobs:
    return inference_pb2.TokenLogprobs(
        logprob=logprobs.logprob, top_token_ids=logprobs.top_token_ids, top_logprobs=logprobs.top_logprobs
    )


def prompt_logprobs_to_pb(piece: PromptLogprobs) -> list[inference_pb2.TokenLogprobs]:
    """Return one message for each token."""
    num_top = piece.num_top
    return [
        inference_pb2.TokenLogprobs(
            logprob=logprob,
            top_token_ids=piece.top_token_ids[place * num_top : (place + 1) * num_top],
            top_logprobs=piece.top_logprobs[place * num_top : (place + 1) * num_top],
        )
        for place, logprob in enumerate(piece.logprobs)
    ]


def put_deltas(field: RepeatedCompositeFieldContainer[inference_pb2.Delta], deltas: Iterable[Delta]) -> None:
    """Add deltas to a field, in place."""
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                field.add(content=text)
            case ReasoningDelta(text):
                field.add(reasoning=text)
            case ToolCallBegun():
                field.add(call_begun=to_pb(inference_pb2.ToolCallBegun, delta))
            case ToolCallArguments():
                field.add(call_arguments=to_pb(inference_pb2.ToolCallArguments, delta))
            case ToolCallEnded(index):
                field.add(call_ended=inference_pb2.ToolCallEnded(index=index))


def message_to_pb(message: Message) -> inference_pb2.ChatMessage:
    """Return a whole output as the assistant's message."""
    calls = [to_pb(inference_pb2.ToolCall, call) for call in message.calls]
    return inference_pb2.ChatMessage(
        role="assistant", content=message.content, reasoning=message.reasoning, tool_calls=calls
    )


def _choice_finished_to_pb(item: TellChoiceFinished, reader: OutputReader) -> inference_pb2.ChoiceFinished:
    end = to_pb(
        inference_pb2.ChoiceFinished,
        item,
        reason=reason_to_pb(item.reason),
        deltas=(),
        **matched_to_pb(item.matched),
    )
    if reader.has_deltas:
        put_deltas(end.deltas, reader.end(item.choice, item.reason, item.matched))
    return end


def matched_to_pb(matched: Matched | None) -> dict[str, Any]:
    """Return the fields that say which stop rule ended a choice."""
    return asdict(matched or Matched())


def reason_to_pb(reason: FinishReason) -> generation_pb2.FinishReason:
    """Return the protocol's enum, which has the same values."""
    return cast("generation_pb2.FinishReason", int(reason))


def check_end(told: TellFinished) -> None:
    """Raise `ValidationError` if the end says that the request's own format ended it."""
    error = told.outcome.error
    if isinstance(error, FinalError):
        found = Described("a format whose output could not go on")
        raise ValidationError("output_format", found, f"one that can be followed to its end ({error})")


def finished_to_pb(
    outcome: Outcome, first_written_at: float | None, written_at: float
) -> inference_pb2.Finished:
    """Return the account of a request whose last event is written at `written_at`."""
    marks = outcome.marks
    return inference_pb2.Finished(
        usage=to_pb(inference_pb2.Usage, outcome),
        promise=to_pb(inference_pb2.LatencyPromise, outcome.promise),
        delivery=_delivery(outcome, first_written_at, written_at),
        split=inference_pb2.TimeSplit(
            queue_ms=_ms(marks.received_at, marks.dispatched_at),
            prefill_ms=_ms(marks.dispatched_at, marks.first_token_at),
            handoff_ms=_ms(marks.first_token_at, marks.decode_at),
            decode_ms=_ms(marks.decode_at, marks.ended_at),
            relay_ms=_ms(marks.ended_at, written_at),
        ),
        error=outcome.error,
        path=cast("inference_pb2.Path", int(outcome.path)),
    )


def _delivery(outcome: Outcome, first_written_at: float | None, written_at: float) -> inference_pb2.Delivery:
    marks = outcome.marks
    first_at = first_written_at if first_written_at is not None else marks.first_token_at
    ttft_ms = _ms(marks.received_at, first_at)
    tpot_ms = outcome.tpot_s * 1000 if outcome.tpot_s is not None else None
    max_gap_ms = outcome.max_gap_s * 1000
    was_kept = attained(outcome.promise, ttft_ms, tpot_ms, max_gap_ms)
    return inference_pb2.Delivery(
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        max_gap_ms=max_gap_ms,
        e2e_ms=_ms(marks.received_at, written_at),
        ttft_kept=outcome.has_tokens and was_kept.ttft,
        tpot_kept=was_kept.tpot,
        itl_kept=was_kept.itl,
    )


def _ms(start: float, end: float) -> float:
    return (end - start) * 1000


def refusal_to_pb(error: Refused) -> errors_pb2.SloRefusal:
    """Return the predictions of a refused request, and the SLO that could be met."""
    decision = error.decision
    return errors_pb2.SloRefusal(
        predicted_ttft_ms=decision.ttft_s * 1000,
        predicted_tpot_ms=decision.tpot_s * 1000,
        attainable_ttft_ms=decision.attainable_ttft_ms,
        attainable_tpot_ms=decision.attainable_tpot_ms,
        predicted_itl_ms=decision.itl_s * 1000,
        attainable_itl_ms=decision.attainable_itl_ms,
    )


def quote_to_pb(quoted: TellQuoted) -> inference_pb2.QuoteResponse:
    """Return the promise that a request would get."""
    response = inference_pb2.QuoteResponse(
        verdict=cast("inference_pb2.Verdict", int(quoted.verdict)),
        promise=to_pb(inference_pb2.LatencyPromise, quoted.promise),
        prompt_tokens=quoted.prompt_tokens,
    )
    if quoted.refused is not None:
        response.retry_after_ms = round(quoted.refused.retry_after_s * 1000)
        response.refusal.CopyFrom(refusal_to_pb(quoted.refused))
    return response


# Chats


def chat_from_pb(chat: inference_pb2.ChatInput) -> Conversation:
    """Return a chat as received. Raises `ValidationError` for parts that are no text."""
    choice = chat.tool_choice
    return Conversation(
        tuple(
            _message_from_pb(message, f"chat.messages[{place}]")
            for place, message in enumerate(chat.messages)
        ),
        _options_from_pb(chat),
        tuple(from_pb(Tool, tool) for tool in chat.tools),
        choice.mode,
        field_of(choice, "name"),
        field_of(chat, "parallel_tool_calls"),
    )


def _message_from_pb(message: inference_pb2.ChatMessage, where: str) -> ChatMessage:
    """Return a message with its parts joined, a line each."""
    if message.parts and message.content:
        raise ValidationError(f"{where}.parts", SET, f"unset, beside {where}.content")
    for place, part in enumerate(message.parts):
        if part.type not in {"", "text"}:
            raise ValidationError(
                f"{where}.parts[{place}].type", part.type, "text: this model reads nothing else"
            )
    return from_pb(
        ChatMessage,
        message,
        content="\n".join(part.text for part in message.parts) if message.parts else message.content,
        tool_calls=tuple(from_pb(ToolCall, call) for call in message.tool_calls),
    )


def _options_from_pb(chat: inference_pb2.ChatInput) -> ChatOptions:
    """Return the options of a chat. By default a continued message gets no generation prompt."""
    continues = chat.continue_final_message
    adds = chat.add_generation_prompt if chat.HasField("add_generation_prompt") else not continues
    arguments = {name: _value_from_pb(value) for name, value in chat.template_arguments.fields.items()}
    return ChatOptions(arguments, adds, continues)


def _value_from_pb(value: struct_pb2.Value) -> Any:
    """Convert as JSON does: a number without a fraction becomes an integer."""
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "struct_value":
            return {name: _value_from_pb(inner) for name, inner in value.struct_value.fields.items()}
        case "list_value":
            return [_value_from_pb(inner) for inner in value.list_value.values]
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case _:
            return None
