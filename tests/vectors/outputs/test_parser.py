"""The parser says of the outputs what the vectors say."""

from __future__ import annotations

import pytest

from model_output.formats import REASONING_FORMATS, TOOL_FORMATS, ChatFormats
from tests.model_output.formats.writing import TOOLS, parsed
from tests.vectors.outputs.reading import Output, deltas, messages
from tests.vectors.outputs.saying import deltas_of


@pytest.mark.parametrize("vector", messages(), ids=lambda vector: vector["name"])
def test_a_text_says_what_is_expected(vector: Output) -> None:
    formats = ChatFormats(vector.get("tool_format", ""), vector.get("reasoning_format", ""))
    names, says, text = vector.get("tools"), vector["says"], vector["text"]
    for pieces in ([text], list(text)):
        found = parsed(
            formats,
            pieces,
            [tool for tool in TOOLS if names is None or tool.name in names],
            reasoning_open=vector.get("reasoning_open", False),
            has_format=vector.get("has_format", False),
            cut_before=vector.get("cut_before"),
        )
        assert (found.content, found.reasoning) == (says.get("content", ""), says.get("reasoning", ""))
        assert [list(call) for call in found.calls] == says.get("calls", [])


@pytest.mark.parametrize("vector", deltas(), ids=lambda vector: vector["name"])
def test_deltas_come_as_expected(vector: Output) -> None:
    pieces, expected = zip(*vector["pieces"], strict=True)
    assert deltas_of(vector, pieces) == [*expected, vector["end"]]


def test_every_format_has_vectors() -> None:
    vectors = [*messages(), *deltas()]
    assert {vector.get("tool_format", "") for vector in vectors} == {*TOOL_FORMATS, ""}
    assert {vector.get("reasoning_format", "") for vector in vectors} == {*REASONING_FORMATS, ""}
