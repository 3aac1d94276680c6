"""Each field of a request is in the document of its API, or in the one that it refers to."""

from __future__ import annotations

import re

import pytest

from gateway.anthropic.schema import CountBody, MessagesBody
from gateway.batches.endpoints import BatchBody
from gateway.openai.schema import ChatBody, CompletionBody, DetokenizeBody, TokenizeBody
from gateway.responses.schema import ResponsesBody
from gateway.serving.slo import Strict
from tools.house.source_tree import ROOT

BODIES: list[tuple[type[Strict], tuple[str, ...]]] = [
    (ChatBody, ("openai",)),
    (CompletionBody, ("openai",)),
    (TokenizeBody, ("openai",)),
    (DetokenizeBody, ("openai",)),
    (MessagesBody, ("anthropic",)),
    (CountBody, ("anthropic",)),
    (ResponsesBody, ("responses", "openai")),
    (BatchBody, ("batches",)),
]


@pytest.mark.parametrize(("body", "documents"), BODIES)
def test_each_field_is_documented(body: type[Strict], documents: tuple[str, ...]) -> None:
    text = "".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in documents)
    names = {field.alias or name for name, field in body.model_fields.items()} | body.unserved
    assert {name for name in names if not re.search(rf"`{name}\b", text)} == set()
