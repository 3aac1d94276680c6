"""Responses that are asked for twice, and choices made of chunks."""

from __future__ import annotations

import pytest

from baton.types import Choice, FinishReason
from tests.chaos.http_streams import Heard

WHOLE = Choice(0, "abc", (1, 2, 3), FinishReason.STOP)


@pytest.mark.parametrize(
    ("text", "token_ids", "is_its_beginning"),
    [("", [], True), ("ab", [1, 2], True), ("a", [1, 2], True), ("ab", [1, 5], False), ("x", [1], False)],
)
def test_a_second_response_begins_like_the_first(
    text: str, token_ids: list[int], is_its_beginning: bool
) -> None:
    assert Heard(text, token_ids).begins(WHOLE) == is_its_beginning
    assert not Heard("abcd", [1, 2, 3, 4]).begins(WHOLE)


@pytest.mark.parametrize(
    ("finish", "stop", "reason"),
    [
        ("length", None, FinishReason.LENGTH),
        ("stop", None, FinishReason.EOS),
        ("stop", "\n\n", FinishReason.STOP),
    ],
)
def test_chunks_add_up_to_a_choice(finish: str, stop: str | None, reason: FinishReason) -> None:
    heard = Heard()
    heard.add({"text": "a", "token_ids": [4], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": None})
    assert heard.reason is FinishReason.FAILED
    heard.add({"text": "", "logprobs": None, "finish_reason": finish, "stop_reason": stop})
    assert (heard.text, heard.token_ids, heard.reason) == ("a", [4], reason)
    assert [token.logprob for token in heard.logprobs] == [-0.5]
