"""Every wrong field is named, with what would be accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from router.api.status import status_of
from router.errors import DeadlineExpired, ModelNotFound, RouterError, ValidationError
from router.intake.model_facts import ModelFacts
from router.intake.validation import (
    check_before_tokenising,
    check_resumption,
    check_stop,
    checked_program,
    checked_received,
    checked_sampling,
    checked_slo,
    checked_stop,
    finish_of,
)
from router.request import Conversation, Message, RawRequest
from scheduling.request import FinishReason, SloClass, StopRules

GOOD = RawRequest(token_ids=(5, 6, 7))
NAN = float("nan")


def check(raw: RawRequest, facts: ModelFacts) -> None:
    """All checks, in the order of the preprocessor."""
    check_before_tokenising(raw, facts)
    checked_sampling(raw, facts, 1)
    checked_slo(raw)
    checked_program(raw)
    check_stop(raw, facts.vocab_size)
    token_ids = raw.token_ids if raw.token_ids is not None else [5]
    checked_received(raw, len(token_ids), checked_stop(raw, token_ids, facts), facts)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("request_id", {"request_id": "x" * 129}),
    ("request_id", {"request_id": "tab\t"}),
    ("request_id", {"request_id": "ümlaut"}),
    ("tenant", {"tenant": "new\nline"}),
    ("text", {"token_ids": None}),
    ("tokens.token_ids", {"token_ids": ()}),
    ("text", {"token_ids": None, "text": ""}),
    ("chat.messages", {"token_ids": None, "chat": Conversation(())}),
    ("chat.messages[0].role", {"token_ids": None, "chat": Conversation((Message("", "hello"),))}),
    ("tokens.token_ids", {"token_ids": tuple([5] * 8192)}),
    ("tokens.token_ids[1]", {"token_ids": (5, 128)}),
    ("sampling.temperature", {"temperature": -0.1}),
    ("sampling.temperature", {"temperature": 100.5}),
    ("sampling.temperature", {"temperature": NAN}),
    ("sampling.top_p", {"top_p": 0.0}),
    ("sampling.top_p", {"top_p": 1.1}),
    ("sampling.top_p", {"top_p": NAN}),
    ("sampling.min_p", {"min_p": -0.1}),
    ("sampling.min_p", {"min_p": 1.1}),
    ("sampling.repetition_penalty", {"repetition_penalty": 0.0}),
    ("sampling.repetition_penalty", {"repetition_penalty": float("inf")}),
    ("sampling.presence_penalty", {"presence_penalty": 2.1}),
    ("sampling.frequency_penalty", {"frequency_penalty": -2.1}),
    ("sampling.logit_bias[128]", {"logit_bias": {128: 1.0}}),
    ("sampling.logit_bias[5]", {"logit_bias": {5: 101.0}}),
    ("sampling.n", {"n": 0}),
    ("sampling.n", {"n": 17}),
    ("sampling.logprobs", {"logprobs": 21}),
    ("sampling.prompt_logprobs", {"prompt_logprobs": 21}),
    ("sampling.allowed_token_ids[1]", {"allowed_token_ids": (5, 128)}),
    ("received_prompt_logprobs", {"received_prompt_logprobs": 1}),
    ("received_prompt_logprobs", {"received_prompt_logprobs": 3, "prompt_logprobs": 1}),
    ("stop.max_tokens", {"max_tokens": 0}),
    ("stop.min_tokens", {"min_tokens": 6, "max_tokens": 5}),
    ("stop.min_tokens", {"min_tokens": 257}),
    ("stop.stop_strings[1]", {"stop_strings": ("a", "")}),
    ("stop.stop_token_ids[0]", {"stop_token_ids": (128,)}),
    ("slo.slo_class", {"slo_class": 4}),
    ("slo.ttft_ms", {"ttft_ms": 0}),
    ("slo.tpot_ms", {"tpot_ms": 0}),
    ("slo.itl_ms", {"itl_ms": 0}),
    ("slo.ttft_ms", {"ttft_ms": 86_400_001}),
    ("slo.tpot_ms", {"tpot_ms": 86_400_001}),
    ("slo.itl_ms", {"itl_ms": 86_400_001}),
    ("slo.deadline_ms", {"deadline_ms": 86_400_001}),
    ("program.id", {"program": ("", 5)}),
    ("program.id", {"program": ("p" * 129, 5)}),
    ("program.id", {"program": ("a\nb", 5)}),
    ("program.deadline_ms", {"program": ("p", None)}),
    ("program.deadline_ms", {"program": ("p", 86_400_001)}),
    ("resume_grace_ms", {"resume_grace_ms": 60_001}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
    ("received[0].choice", {"received": ((1, (5,)),)}),
    ("received[1].choice", {"received": ((0, (5,)), (0, (5,)))}),
    ("received[0].token_ids", {"received": ((0, (5, 6, 7)),), "max_tokens": 2}),
    ("received[0].token_ids[1]", {"received": ((0, (5, 128)),)}),
]


@pytest.mark.parametrize(("field", "wrong"), WRONG)
def test_wrong_field_is_named(field: str, wrong: dict[str, Any], facts: ModelFacts) -> None:
    with pytest.raises(ValidationError) as error:
        check(replace(GOOD, **wrong), facts)
    assert error.value.fields[0] == field
    assert str(error.value).partition("accepted: ")[2]


@pytest.mark.parametrize(
    "edge",
    [
        {"temperature": 0.0},
        {"temperature": 100.0, "top_p": 1e-9, "min_p": 1.0},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 1e-3},
        {"n": 16, "logprobs": 20, "logit_bias": {127: -100.0}},
        {"prompt_logprobs": 20, "received_prompt_logprobs": 2},
        {"max_tokens": 1, "min_tokens": 1, "stop_strings": ("a",) * 16, "stop_token_ids": (0, 127)},
        {"ttft_ms": 86_400_000, "tpot_ms": 86_400_000, "itl_ms": 86_400_000, "deadline_ms": 86_400_000},
        {"slo_class": 3, "ttft_ms": 1, "tpot_ms": 1, "itl_ms": 1, "deadline_ms": 1},
        {"program": ("~" * 128, 86_400_000)},
        {"program": ("p", 0)},
        {"token_ids": tuple([5] * 8191)},
        {"request_id": "~" * 128, "resume_grace_ms": 60_000},
        {"received": ((0, (5, 6)),), "max_tokens": 2},
    ],
)
def test_edges_of_the_ranges_are_accepted(edge: dict[str, Any], facts: ModelFacts) -> None:
    check(replace(GOOD, **edge), facts)


def test_defaults_are_those_of_the_contract(facts: ModelFacts) -> None:
    sampling = checked_sampling(GOOD, facts, drawn_seed=9)
    assert (sampling.temperature, sampling.top_p, sampling.n, sampling.seed) == (1.0, 1.0, 1, 9)
    assert sampling.logprobs is None
    assert checked_slo(GOOD).slo_class is SloClass.STANDARD
    assert checked_stop(GOOD, (5,), facts).max_tokens == 256
    nearly_full = [5] * (facts.max_context_tokens - 10)
    assert checked_stop(GOOD, nearly_full, facts).max_tokens == 10


def test_a_model_s_own_defaults_give_way_to_what_a_request_says(facts: ModelFacts) -> None:
    stated = replace(facts, sampling_defaults={"temperature": 0.6, "top_k": 20, "top_p": 0.95})
    sampling = checked_sampling(replace(GOOD, temperature=0.0), stated, drawn_seed=9)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.0, 20, 0.95, 0.0)


def test_another_model_is_not_found(facts: ModelFacts) -> None:
    with pytest.raises(ModelNotFound, match="accepted: 'model', which this fleet serves"):
        check(replace(GOOD, model="other"), facts)
    check(replace(GOOD, model="model"), facts)


def test_further_names_of_the_model_are_its_names(facts: ModelFacts) -> None:
    named = replace(facts, more_names=("gpt-5", "a:b"))
    for name in ("", "model", "gpt-5", "a:b"):
        check(replace(GOOD, model=name), named)
    with pytest.raises(ModelNotFound, match="accepted: 'model', 'gpt-5', 'a:b', which this fleet serves"):
        check(replace(GOOD, model="a"), named)


def test_deadline_of_no_time_is_over_on_arrival(facts: ModelFacts) -> None:
    with pytest.raises(DeadlineExpired):
        check(replace(GOOD, deadline_ms=0), facts)


def test_chat_needs_a_template(facts: ModelFacts) -> None:
    without = replace(facts, chat_template=None)
    with pytest.raises(ValidationError, match="no chat template"):
        check(RawRequest(chat=Conversation((Message("user", "hello"),))), without)


def test_sessions_of_resumptions_count_from_one() -> None:
    check_resumption(RawRequest(request_id="r", session=1))
    with pytest.raises(ValidationError, match=r"^session is 0"):
        check_resumption(RawRequest(request_id="r"))


def test_resumption_names_its_request() -> None:
    with pytest.raises(ValidationError, match=r"^request_id is ''"):
        check_resumption(RawRequest(session=1))


STOP = StopRules(max_tokens=4, min_tokens=2, stop_strings=("end",), stop_token_ids=(9,))


@pytest.mark.parametrize(
    ("token_ids", "finish"),
    [
        ((), FinishReason.NONE),
        ((5, 6), FinishReason.NONE),
        ((5, 9), FinishReason.STOP),
        ((9,), FinishReason.NONE),
        ((5, 0), FinishReason.EOS),
        ((5, 6, 7, 8), FinishReason.LENGTH),
    ],
)
def test_received_tokens_may_have_ended_a_choice(token_ids: tuple[int, ...], finish: FinishReason) -> None:
    assert finish_of(token_ids, STOP, frozenset({0})) is finish


@pytest.mark.parametrize(
    ("error", "code", "field"),
    [
        (ValidationError("sampling.n", 0, "1 to 16"), grpc.StatusCode.INVALID_ARGUMENT, "sampling.n"),
        (ModelNotFound("a", ("b",)), grpc.StatusCode.NOT_FOUND, "model"),
        (DeadlineExpired(0), grpc.StatusCode.DEADLINE_EXCEEDED, "slo.deadline_ms"),
    ],
)
def test_bad_request_reaches_the_client_in_detail(
    error: RouterError, code: grpc.StatusCode, field: str
) -> None:
    status = status_of(error)
    assert status.code is code
    rich = status_pb2.Status.FromString(dict(status.trailing_metadata)["grpc-status-details-bin"])
    detail = error_details_pb2.BadRequest()
    assert rich.details[1].Unpack(detail)
    assert [violation.field for violation in detail.field_violations] == [field]


@pytest.mark.parametrize("stated", [None, True, False])
def test_special_tokens_that_mark_calls_stay_in_the_text(stated: bool | None, facts: ModelFacts) -> None:
    raw = replace(GOOD, skip_special_tokens=stated)
    assert checked_stop(raw, (5,), facts).skip_special_tokens is (stated is not False)
    marked = checked_stop(raw, (5,), facts, skips_special_tokens=False)
    assert marked.skip_special_tokens is (stated is True)
