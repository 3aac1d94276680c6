"""How long lists may be, checked on the message before it is converted."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from baton.v1 import generation_pb2, inference_pb2
from router.errors import Reason, ValidationError
from router.intake.model_facts import ModelFacts
from router.intake.sizes import check_sizes


def chat(count: int) -> inference_pb2.ChatInput:
    return inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role="user")] * count)


def tokens(count: int) -> inference_pb2.TokenInput:
    return inference_pb2.TokenInput(token_ids=[5] * count)


def bias(count: int) -> generation_pb2.SamplingParams:
    return generation_pb2.SamplingParams(logit_bias=dict.fromkeys(range(count), 1.0))


def stop(**fields: list[str] | list[int]) -> generation_pb2.StopRules:
    return generation_pb2.StopRules(**fields)  # type: ignore[arg-type]  # the message checks them


LISTS: list[tuple[str, int, dict[str, Message], dict[str, Message]]] = [
    ("chat.messages", 4096, {"chat": chat(4096)}, {"chat": chat(4097)}),
    ("tokens.token_ids", 8191, {"tokens": tokens(8191)}, {"tokens": tokens(8192)}),
    ("sampling.logit_bias", 1024, {"sampling": bias(1024)}, {"sampling": bias(1025)}),
    (
        "stop.stop_strings",
        16,
        {"stop": stop(stop_strings=["a"] * 16)},
        {"stop": stop(stop_strings=["a"] * 17)},
    ),
    (
        "stop.stop_strings[1]",
        1024,
        {"stop": stop(stop_strings=["a", "\u00e9" * 1024])},
        {"stop": stop(stop_strings=["a", "b" * 1025])},
    ),
    (
        "stop.stop_token_ids",
        1024,
        {"stop": stop(stop_token_ids=[5] * 1024)},
        {"stop": stop(stop_token_ids=[5] * 1025)},
    ),
]


@pytest.mark.parametrize(("field", "limit", "longest", "longer"), LISTS)
def test_one_entry_too_many_is_refused_by_its_field(
    field: str, limit: int, longest: dict[str, Message], longer: dict[str, Message], facts: ModelFacts
) -> None:
    check_sizes(inference_pb2.GenerateRequest(**longest), facts)  # type: ignore[arg-type]  # as above
    with pytest.raises(ValidationError) as error:
        check_sizes(inference_pb2.GenerateRequest(**longer), facts)  # type: ignore[arg-type]  # as above
    assert (error.value.fields[0], error.value.limit) == (field, limit)
    assert str(limit) in str(error.value).partition("accepted: ")[2]


def test_what_was_received_is_bounded_too(facts: ModelFacts) -> None:
    message = inference_pb2.GenerateRequest()
    received = [inference_pb2.ReceivedTokens(choice=choice) for choice in range(17)]
    check_sizes(message, facts, received[:16])
    with pytest.raises(ValidationError, match=r"^received is "):
        check_sizes(message, facts, received)
    long = inference_pb2.ReceivedTokens(token_ids=[5] * 8192)
    with pytest.raises(ValidationError) as error:
        check_sizes(message, facts, [received[0], long])
    assert error.value.fields[0] == "received[1].token_ids"


def test_a_prompt_over_the_context_says_so(facts: ModelFacts) -> None:
    with pytest.raises(ValidationError) as error:
        check_sizes(inference_pb2.GenerateRequest(tokens=tokens(9000)), facts)
    assert error.value.reason is Reason.PROMPT_TOO_LONG
