"""The TypeScript SDK says of the outputs what the vectors say, and of any other what the Python SDK says."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_formats import ChatFormats
from tests.chat_formats.drawing import CUTS, FORMATS, VALUES, broken_outputs, cut, outputs
from tests.chat_formats.writing import NOTATIONS, format_name
from tests.clients.node import BIN, SDK
from tests.vectors.outputs.reading import Output
from tests.vectors.outputs.saying import deltas_of

pytestmark = [pytest.mark.node, pytest.mark.integration]


@pytest.fixture(scope="module")
def node() -> Iterator[subprocess.Popen[str]]:
    """A process of Node.js that takes outputs apart."""
    with subprocess.Popen(
        [BIN / "node", "test/take_apart.ts"],
        cwd=SDK,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


def said_by(node: subprocess.Popen[str], vector: Output, pieces: list[str]) -> Any:
    assert node.stdin is not None
    assert node.stdout is not None
    node.stdin.write(json.dumps({**vector, "pieces": pieces}) + "\n")
    node.stdin.flush()
    return json.loads(node.stdout.readline())


def test_the_vectors_are_played() -> None:
    ran = subprocess.run(
        [BIN / "node", "--test", "test/parsing.test.ts"],
        cwd=SDK,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"


AHEAD = st.none() | st.sampled_from(["", "a", "_call>", ">", "ool_call|>", '"'])


@given(FORMATS, broken_outputs(), CUTS, st.booleans(), st.booleans(), AHEAD)
@settings(deadline=None)
def test_any_text_says_what_it_says_in_python(
    node: subprocess.Popen[str],
    formats: ChatFormats,
    text: str,
    places: list[int],
    reasoning_open: bool,
    has_format: bool,
    cut_before: str | None,
) -> None:
    vector = {
        "tool_format": formats.tools,
        "reasoning_format": formats.reasoning,
        "reasoning_open": reasoning_open,
        "has_format": has_format,
        "cut_before": cut_before,
    }
    pieces = cut(text, places)
    assert said_by(node, vector, pieces) == deltas_of(vector, pieces)


@given(st.sampled_from(NOTATIONS), st.data(), CUTS)
@settings(deadline=None)
def test_calls_say_what_they_say_in_python(
    node: subprocess.Popen[str], notation: str, data: st.DataObject, places: list[int]
) -> None:
    _, text = data.draw(outputs(notation))
    place, ahead = data.draw(st.integers(0, len(text))), data.draw(st.none() | st.integers(0, 8))
    vector = {"tool_format": format_name(notation)}
    if ahead is not None:
        text, vector["cut_before"] = text[:place], text[place : place + ahead]
    pieces = cut(text, places)
    assert said_by(node, vector, pieces) == deltas_of(vector, pieces)


NUMBERS = st.from_regex(r"[-+]?[0-9_]{0,25}\.?[0-9_]{0,25}([eE][-+]?[0-9]{1,3})?", fullmatch=True)


@given(st.lists(st.one_of(NUMBERS, st.floats().map(str), VALUES.map(repr)), max_size=8))
@settings(deadline=None)
def test_values_become_the_json_that_they_become_in_python(
    node: subprocess.Popen[str], values: list[str]
) -> None:
    vector, pieces = {"tool_format": "pythonic"}, [f"[f(a=[{', '.join(values)}])]"]
    assert said_by(node, vector, pieces) == deltas_of(vector, pieces)
