"""Convert the contract's messages to and from the types of the SDK. No other module builds requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from baton.errors import FieldViolation, Internal, InvalidRequest
from baton.types import (
    Accepted,
    Attainable,
    Chat,
    ChatMessage,
    ChoiceFinished,
    Delivery,
    Event,
    Finished,
    FinishReason,
    Model,
    Path,
    Promise,
    Prompt,
    PromptLogprobs,
    Queued,
    Quote,
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
from baton.v1 import errors_pb2, generation_pb2, inference_pb2

_SLO_CLASSES = {
    SloClass.INTERACTIVE: generation_pb2.SLO_CLASS_INTERACTIVE,
    SloClass.STANDARD: generation_pb2.SLO_CLASS_STANDARD,
    SloClass.BATCH: generation_pb2.SLO_CLASS_BATCH,
}
_REASONS = {
    generation_pb2.FINISH_REASON_EOS: FinishReason.EOS,
    generation_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    generation_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    generation_pb2.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    generation_pb2.FINISH_REASON_DEADLINE: FinishReason.DEADLINE,
    generation_pb2.FINISH_REASON_FAILED: FinishReason.FAILED,
}
_PATHS = {
    inference_pb2.PATH_AGGREGATED: Path.AGGREGATED,
    inference_pb2.PATH_DISAGGREGATED: Path.DISAGGREGATED,
}
_VERDICTS = {
    inference_pb2.VERDICT_ACCEPTED: Verdict.ACCEPTED,
    inference_pb2.VERDICT_AT_RISK: Verdict.AT_RISK,
    inference_pb2.VERDICT_REFUSED: Verdict.REFUSED,
}
# The values that a field can carry, by its protobuf type.
_ACCEPTED = {
    FieldDescriptor.CPPTYPE_UINT32: f"it must be a whole number from 0 to {2**32 - 1}",
    FieldDescriptor.CPPTYPE_UINT64: f"it must be a whole number from 0 to {2**64 - 1}",
    FieldDescriptor.CPPTYPE_DOUBLE: "it must be a number",
    FieldDescriptor.CPPTYPE_BOOL: "it must be True or False",
    FieldDescriptor.CPPTYPE_STRING: "it must be text",
}
_SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n",
    "logprobs",
    "prompt_logprobs",
)


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
) -> inference_pb2.GenerateRequest:
    """Build a request. Raises `InvalidRequest` for values that protobuf cannot carry."""
    request = inference_pb2.GenerateRequest(model=model, tenant=tenant, resume_grace_ms=resume_grace_ms)
    _put(request, "", request_id=request_id, truncate_prompt_tokens=truncate_prompt_tokens)
    put_prompt(request, prompt)
    _put(request.sampling, "sampling.", **{name: getattr(sampling, name) for name in _SAMPLING_FIELDS})
    _put_bias(request.sampling, sampling.logit_bias)
    _extend(request.sampling.allowed_token_ids, "sampling.allowed_token_ids", sampling.allowed_token_ids)
    _extend(request.sampling.bad_words, "sampling.bad_words", sampling.bad_words)
    _put_stop(request.stop, stop)
    _put(
        request.slo,
        "slo.",
        ttft_ms=slo.ttft_ms,
        tpot_ms=slo.tpot_ms,
        itl_ms=slo.itl_ms,
        deadline_ms=slo.deadline_ms,
        allow_at_risk=slo.allow_at_risk,
        slo_class=_SLO_CLASSES[slo.slo_class],
    )
    return request


def put_prompt(
    request: inference_pb2.GenerateRequest | inference_pb2.CountTokensRequest, prompt: Prompt
) -> None:
    if isinstance(prompt, str):
        _put(request, "", text=prompt)
        return
    if isinstance(prompt, Chat):
        _put_chat_options(request.chat, prompt)
        prompt = prompt.messages
    if prompt and all(isinstance(part, ChatMessage) for part in prompt):
        messages = [inference_pb2.ChatMessage() for _ in prompt]
        for position, (message, part) in enumerate(zip(messages, prompt, strict=True)):
            assert isinstance(part, ChatMessage)
            _put(message, f"chat.messages[{position}].", role=part.role, content=part.content)
        request.chat.messages.extend(messages)
        return
    if isinstance(request, inference_pb2.CountTokensRequest):
        raise _invalid("input", prompt, "text or chat messages")
    request.tokens.SetInParent()
    _extend(request.tokens.token_ids, "tokens.token_ids", prompt)


def detokenize_to_pb(
    token_ids: Sequence[int], *, model: str, skip_special_tokens: bool
) -> inference_pb2.DetokenizeRequest:
    request = inference_pb2.DetokenizeRequest(model=model, skip_special_tokens=skip_special_tokens)
    _extend(request.token_ids, "token_ids", token_ids)
    return request


def _put_chat_options(chat: inference_pb2.ChatInput, options: Chat) -> None:
    _put(
        chat,
        "chat.",
        add_generation_prompt=options.add_generation_prompt,
        continue_final_message=options.continue_final_message,
    )
    try:
        chat.template_arguments.update(options.template_arguments)
    except (TypeError, ValueError, AttributeError) as error:
        raise _invalid("chat.template_arguments", options.template_arguments, str(error)) from None


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
            return _tokens_from_pb(event.tokens)
        case "accepted":
            accepted = event.accepted
            promise = promise_from_pb(accepted.promise)
            return Accepted(
                accepted.request_id,
                promise,
                accepted.seed,
                accepted.prompt_tokens,
                accepted.fingerprint,
            )
        case "prompt_logprobs":
            piece = event.prompt_logprobs
            return PromptLogprobs(piece.first_index, _logprobs_from_pb(piece.logprobs))
        case "queued":
            queued = event.queued
            return Queued(queued.position, queued.work_ahead_tokens, queued.predicted_ttft_ms)
        case "choice_finished":
            return _choice_finished_from_pb(event.choice_finished)
        case "finished":
            return finished_from_pb(event.finished)
        case other:
            raise Internal(f"the router sent an event this client does not know: {other}")


def _choice_finished_from_pb(finished: inference_pb2.ChoiceFinished) -> ChoiceFinished:
    return ChoiceFinished(
        choice=finished.choice,
        reason=_reason(finished.reason),
        output_tokens=finished.output_tokens,
        stop_string=finished.stop_string if finished.HasField("stop_string") else None,
        stop_token_id=finished.stop_token_id if finished.HasField("stop_token_id") else None,
    )


def finished_from_pb(finished: inference_pb2.Finished) -> Finished:
    usage, delivery, split = finished.usage, finished.delivery, finished.split
    return Finished(
        usage=Usage(usage.prompt_tokens, usage.cached_prompt_tokens, usage.output_tokens, usage.attempts),
        promise=promise_from_pb(finished.promise),
        delivery=Delivery(
            ttft_ms=delivery.ttft_ms,
            tpot_ms=delivery.tpot_ms if delivery.HasField("tpot_ms") else None,
            max_gap_ms=delivery.max_gap_ms,
            e2e_ms=delivery.e2e_ms,
            ttft_kept=delivery.ttft_kept,
            tpot_kept=delivery.tpot_kept,
            itl_kept=delivery.itl_kept,
        ),
        split=TimeSplit(split.queue_ms, split.prefill_ms, split.handoff_ms, split.decode_ms, split.relay_ms),
        error=finished.error,
        path=_PATHS.get(finished.path),
    )


def promise_from_pb(promise: inference_pb2.LatencyPromise) -> Promise:
    return Promise(
        predicted_ttft_ms=promise.predicted_ttft_ms,
        predicted_tpot_ms=promise.predicted_tpot_ms,
        ttft_ms=promise.ttft_ms if promise.HasField("ttft_ms") else None,
        tpot_ms=promise.tpot_ms if promise.HasField("tpot_ms") else None,
        at_risk=promise.at_risk,
        itl_ms=promise.itl_ms if promise.HasField("itl_ms") else None,
        predicted_itl_ms=promise.predicted_itl_ms,
    )


def attainable_from_pb(refusal: errors_pb2.SloRefusal) -> Attainable:
    return Attainable(
        ttft_ms=refusal.attainable_ttft_ms,
        tpot_ms=refusal.attainable_tpot_ms,
        predicted_ttft_ms=refusal.predicted_ttft_ms,
        predicted_tpot_ms=refusal.predicted_tpot_ms,
        itl_ms=refusal.attainable_itl_ms,
        predicted_itl_ms=refusal.predicted_itl_ms,
    )


def quote_from_pb(quote: inference_pb2.QuoteResponse) -> Quote:
    verdict = _VERDICTS.get(quote.verdict)
    if verdict is None:
        raise Internal(f"the router sent a verdict this client does not know: {quote.verdict}")
    return Quote(
        verdict=verdict,
        promise=promise_from_pb(quote.promise),
        prompt_tokens=quote.prompt_tokens,
        retry_after_s=quote.retry_after_ms / 1000 if verdict is Verdict.REFUSED else None,
        attainable=attainable_from_pb(quote.refusal) if quote.HasField("refusal") else None,
    )


def model_from_pb(model: inference_pb2.Model) -> Model:
    return Model(
        name=model.name,
        architecture=model.architecture,
        max_context_tokens=model.max_context_tokens,
        vocab_size=model.vocab_size,
        has_chat_template=model.has_chat_template,
        fingerprint=model.fingerprint,
    )


def _tokens_from_pb(tokens: inference_pb2.Tokens) -> Tokens:
    logprobs = _logprobs_from_pb(tokens.logprobs)
    return Tokens(tokens.choice, tokens.first_index, tuple(tokens.token_ids), tokens.text, logprobs)


def _logprobs_from_pb(logprobs: Iterable[inference_pb2.TokenLogprobs]) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(token.logprob, tuple(zip(token.top_token_ids, token.top_logprobs, strict=True)))
        for token in logprobs
    )


def _reason(reason: generation_pb2.FinishReason) -> FinishReason:
    found = _REASONS.get(reason)
    if found is None:
        raise Internal(f"the router sent a finish reason this client does not know: {reason}")
    return found


def _put(message: Message, prefix: str, **values: Any) -> None:
    """Set the values that are not None. Protobuf refuses a value of the wrong type or outside its range."""
    for name, value in values.items():
        if value is None:
            continue
        try:
            setattr(message, name, value)
        except (TypeError, ValueError) as error:
            accepted = _ACCEPTED.get(message.DESCRIPTOR.fields_by_name[name].cpp_type, str(error))
            raise _invalid(prefix + name, value, accepted) from None


def _put_stop(message: generation_pb2.StopRules, stop: Stop) -> None:
    names = ("max_tokens", "min_tokens", "ignore_eos", "include_stop", "skip_special_tokens")
    _put(message, "stop.", **{name: getattr(stop, name) for name in names})
    _extend(message.stop_strings, "stop.stop_strings", stop.strings)
    _extend(message.stop_token_ids, "stop.stop_token_ids", stop.token_ids)


def _put_bias(message: generation_pb2.SamplingParams, bias: Mapping[int, float]) -> None:
    try:
        message.logit_bias.update(bias)
    except (TypeError, ValueError):
        raise _invalid("sampling.logit_bias", bias, "token ids with a number for each") from None


def _extend(target: Any, field: str, values: Any) -> None:
    # A string is a sequence of characters too, which nobody means.
    if isinstance(values, str):
        raise _invalid(field, values, "a sequence")
    try:
        target.extend(values)
    except (TypeError, ValueError) as error:
        raise _invalid(field, values, str(error)) from None


def _invalid(field: str, value: object, accepted: str) -> InvalidRequest:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return InvalidRequest(f"{field} is {shown}: {accepted}", [FieldViolation(field, accepted)])
