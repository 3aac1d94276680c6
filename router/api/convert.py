"""Convert messages of the public contract to and from the router's own types."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, cast

from google.protobuf import struct_pb2

from baton.v1 import errors_pb2, generation_pb2, inference_pb2
from router.api.client_stream import StreamItem, TokenBatch
from router.api.validation import RawRequest
from router.core.actions import (
    Outcome,
    Promise,
    TellAccepted,
    TellChoiceFinished,
    TellFinished,
    TellLeaving,
    TellPromptLogprobs,
    TellQueued,
    TellQuoted,
    TellRetrying,
)
from router.core.session.session import TokenLogprobs
from router.core.session.slo_attainment import attained
from router.errors import Refused
from router.preprocess.chat_template import ChatOptions
from scheduling.columns import PromptLogprobs
from scheduling.request import FinishReason, Path


def request_from_pb(
    message: inference_pb2.GenerateRequest,
    session: int = 0,
    received: Sequence[inference_pb2.ReceivedTokens] = (),
    failed_attempts: int = 0,
    received_prompt_logprobs: int = 0,
) -> RawRequest:
    """Return the request as received; unset fields stay None."""
    sampling, stop, slo = message.sampling, message.stop, message.slo
    kind = message.WhichOneof("input")
    return RawRequest(
        request_id=message.request_id,
        model=message.model,
        tenant=message.tenant,
        text=message.text if kind == "text" else None,
        messages=chat_from_pb(message.chat) if kind == "chat" else None,
        chat_options=chat_options_from_pb(message.chat),
        token_ids=tuple(message.tokens.token_ids) if kind == "tokens" else None,
        temperature=sampling.temperature if sampling.HasField("temperature") else None,
        top_k=sampling.top_k if sampling.HasField("top_k") else None,
        top_p=sampling.top_p if sampling.HasField("top_p") else None,
        min_p=sampling.min_p if sampling.HasField("min_p") else None,
        repetition_penalty=sampling.repetition_penalty if sampling.HasField("repetition_penalty") else None,
        presence_penalty=sampling.presence_penalty if sampling.HasField("presence_penalty") else None,
        frequency_penalty=sampling.frequency_penalty if sampling.HasField("frequency_penalty") else None,
        logit_bias=dict(sampling.logit_bias),
        seed=sampling.seed if sampling.HasField("seed") else None,
        n=sampling.n if sampling.HasField("n") else None,
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        prompt_logprobs=sampling.prompt_logprobs if sampling.HasField("prompt_logprobs") else None,
        allowed_token_ids=tuple(sampling.allowed_token_ids),
        bad_words=tuple(sampling.bad_words),
        max_tokens=stop.max_tokens if stop.HasField("max_tokens") else None,
        min_tokens=stop.min_tokens,
        stop_strings=tuple(stop.stop_strings),
        stop_token_ids=tuple(stop.stop_token_ids),
        ignore_eos=stop.ignore_eos,
        include_stop=stop.include_stop,
        skip_special_tokens=stop.skip_special_tokens if stop.HasField("skip_special_tokens") else None,
        ttft_ms=slo.ttft_ms if slo.HasField("ttft_ms") else None,
        tpot_ms=slo.tpot_ms if slo.HasField("tpot_ms") else None,
        itl_ms=slo.itl_ms if slo.HasField("itl_ms") else None,
        deadline_ms=slo.deadline_ms if slo.HasField("deadline_ms") else None,
        slo_class=int(slo.slo_class),
        allow_at_risk=slo.allow_at_risk,
        resume_grace_ms=message.resume_grace_ms,
        truncate_prompt_tokens=(
            message.truncate_prompt_tokens if message.HasField("truncate_prompt_tokens") else None
        ),
        session=session,
        received=tuple((tokens.choice, tuple(tokens.token_ids)) for tokens in received),
        failed_attempts=failed_attempts,
        received_prompt_logprobs=received_prompt_logprobs,
    )


def chat_from_pb(message: inference_pb2.ChatInput) -> tuple[tuple[str, str], ...]:
    """Return (role, content) pairs."""
    return tuple((turn.role, turn.content) for turn in message.messages)


def chat_options_from_pb(message: inference_pb2.ChatInput) -> ChatOptions:
    """Return the options of a chat. By default a continued message gets no generation prompt."""
    continues = message.continue_final_message
    adds = message.add_generation_prompt if message.HasField("add_generation_prompt") else not continues
    arguments = {name: _value_from_pb(value) for name, value in message.template_arguments.fields.items()}
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


def content_digest(message: inference_pb2.GenerateRequest) -> bytes:
    """Return a digest of the SLO and of everything that determines the output, except for the seed.

    The seed is compared separately: a client that resumes may name the seed that was drawn for it.
    """
    content = inference_pb2.GenerateRequest()
    content.CopyFrom(message)
    content.sampling.ClearField("seed")
    for field in ("request_id", "tenant", "resume_grace_ms", "model"):
        content.ClearField(field)
    return hashlib.blake2b(content.SerializeToString(deterministic=True), digest_size=16).digest()


def event_to_pb(  # noqa: PLR0911 -- a table of events
    item: StreamItem, first_written_at: float | None, now: float
) -> inference_pb2.GenerationEvent:
    """Return one event of a stream. `first_written_at` is when the call's first token was written."""
    match item:
        case TokenBatch():
            return inference_pb2.GenerationEvent(tokens=tokens_to_pb(item))
        case TellAccepted():
            return inference_pb2.GenerationEvent(accepted=accepted_to_pb(item))
        case TellPromptLogprobs():
            piece = inference_pb2.PromptLogprobs(
                first_index=item.told.first_index, logprobs=prompt_logprobs_to_pb(item.told)
            )
            return inference_pb2.GenerationEvent(prompt_logprobs=piece)
        case TellQueued():
            queued = inference_pb2.Queued(
                position=item.position,
                work_ahead_tokens=item.work_ahead_tokens,
                predicted_ttft_ms=item.predicted_ttft_ms,
            )
            return inference_pb2.GenerationEvent(queued=queued)
        case TellChoiceFinished():
            return inference_pb2.GenerationEvent(choice_finished=choice_finished_to_pb(item))
        case TellFinished():
            finished = finished_to_pb(item.outcome, first_written_at, now)
            return inference_pb2.GenerationEvent(finished=finished)
        case TellLeaving():
            return inference_pb2.GenerationEvent(leaving=inference_pb2.Leaving())
        case TellRetrying():
            retrying = inference_pb2.Retrying(failed_attempts=item.failed_attempts)
            return inference_pb2.GenerationEvent(retrying=retrying)


def accepted_to_pb(item: TellAccepted) -> inference_pb2.Accepted:
    """Return the first event of a stream."""
    return inference_pb2.Accepted(
        request_id=item.request_id,
        promise=promise_to_pb(item.promise),
        seed=item.seed,
        prompt_tokens=item.prompt_tokens,
        fingerprint=item.fingerprint,
    )


def promise_to_pb(promise: Promise) -> inference_pb2.LatencyPromise:
    """Return the promise; an SLO that was not stated stays unset."""
    return inference_pb2.LatencyPromise(
        predicted_ttft_ms=promise.predicted_ttft_ms,
        predicted_tpot_ms=promise.predicted_tpot_ms,
        ttft_ms=promise.ttft_ms,
        tpot_ms=promise.tpot_ms,
        at_risk=promise.at_risk,
        itl_ms=promise.itl_ms,
        predicted_itl_ms=promise.predicted_itl_ms,
    )


def tokens_to_pb(batch: TokenBatch) -> inference_pb2.Tokens:
    """Return consecutive tokens of one choice."""
    message = inference_pb2.Tokens(
        choice=batch.choice,
        first_index=batch.first_index,
        token_ids=batch.token_ids,
        text="".join(batch.texts),
    )
    if batch.logprobs:
        message.logprobs.extend(map(logprobs_to_pb, batch.logprobs))
    return message


def logprobs_to_pb(logprobs: TokenLogprobs) -> inference_pb2.TokenLogprobs:
    """Return the log-probabilities of one token."""
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


def choice_finished_to_pb(item: TellChoiceFinished) -> inference_pb2.ChoiceFinished:
    """Return the end of one choice."""
    return inference_pb2.ChoiceFinished(
        choice=item.choice,
        reason=reason_to_pb(item.reason),
        output_tokens=item.output_tokens,
        stop_string=None if item.matched is None else item.matched.stop_string,
        stop_token_id=None if item.matched is None else item.matched.stop_token_id,
    )


def reason_to_pb(reason: FinishReason) -> generation_pb2.FinishReason:
    """Return the protocol's enum, which has the same values."""
    return cast("generation_pb2.FinishReason", int(reason))


def finished_to_pb(
    outcome: Outcome, first_written_at: float | None, written_at: float
) -> inference_pb2.Finished:
    """Return the account of a request whose last event is written at `written_at`."""
    marks = outcome.marks
    return inference_pb2.Finished(
        usage=inference_pb2.Usage(
            prompt_tokens=outcome.prompt_tokens,
            cached_prompt_tokens=outcome.cached_prompt_tokens,
            output_tokens=outcome.output_tokens,
            attempts=outcome.attempts,
        ),
        promise=promise_to_pb(outcome.promise),
        delivery=_delivery(outcome, first_written_at, written_at),
        split=inference_pb2.TimeSplit(
            queue_ms=_ms(marks.received_at, marks.dispatched_at),
            prefill_ms=_ms(marks.dispatched_at, marks.first_token_at),
            handoff_ms=_ms(marks.first_token_at, marks.decode_at),
            decode_ms=_ms(marks.decode_at, marks.ended_at),
            relay_ms=_ms(marks.ended_at, written_at),
        ),
        error=outcome.error,
        path=path_to_pb(outcome.path),
    )


def path_to_pb(path: Path) -> inference_pb2.Path:
    """Return the protocol's enum, which has the same values."""
    return cast("inference_pb2.Path", int(path))


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
        promise=promise_to_pb(quoted.promise),
        prompt_tokens=quoted.prompt_tokens,
    )
    if quoted.refused is not None:
        response.retry_after_ms = round(quoted.refused.retry_after_s * 1000)
        response.refusal.CopyFrom(refusal_to_pb(quoted.refused))
    return response
