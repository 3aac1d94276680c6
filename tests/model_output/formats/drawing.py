"""Texts, values, outputs and cuts for properties of the parser."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import strategies as st

from model_output.formats import REASONING_FORMATS, TOOL_FORMATS, ChatFormats
from tests.model_output.formats.writing import NOTATIONS, Call, written

MARKERS = sorted(
    {
        marker
        for forms in (TOOL_FORMATS, REASONING_FORMATS)
        for form in forms.values()
        for marker in (*form.opens, *form.closes, *form.controls)
    }
    | {
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|start|>",
        "<|call|>",
        "[ARGS]",
        "<function=f>",
        "</function>",
    }
    | {"<parameter=city>", "</parameter>", '{"name": "f", "arguments": ', "[f(", "f(a=1)", "to=functions.f"}
)
HARD = [
    *MARKERS,
    '"',
    "'",
    "\\",
    "\\u00",
    "\\ud83d",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    ";",
    "=",
    "<",
    "\n",
    " ",
]
TEXTS = st.one_of(
    st.text(max_size=12), st.lists(st.sampled_from([*HARD, "é", "😀", "\x00", "a"]), max_size=6).map("".join)
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)


@st.composite
def outputs(draw: st.DrawFn, notation: str) -> tuple[list[Call], str]:
    """Draw calls and their text. Text in tags cannot contain the tag that ends it."""
    most = 1 if notation == "harmony" else 3
    if notation == "qwen3_coder":
        values = st.fixed_dictionaries(
            {"city": TEXTS.filter(lambda text: "</parameter>" not in f"{text}\n")},
            optional={"days": st.integers(), "where": st.dictionaries(NAMES, st.integers(), max_size=2)},
        )
        calls = draw(st.lists(st.tuples(st.just("get_weather"), values), min_size=1, max_size=most))
    else:
        values = st.dictionaries(NAMES if notation == "pythonic" else TEXTS, VALUES, max_size=3)
        calls = draw(
            st.lists(st.tuples(st.sampled_from(["f", "look-up"]), values), min_size=1, max_size=most)
        )
    return calls, written(notation, calls)


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


CUTS = st.lists(st.integers(0, 10_000), max_size=30)


FORMATS = st.tuples(
    st.sampled_from(sorted(TOOL_FORMATS)), st.sampled_from(["", *sorted(REASONING_FORMATS)])
).map(lambda names: ChatFormats(*names))


@st.composite
def broken_outputs(draw: st.DrawFn) -> str:
    """Draw a text of markers, values and pieces of calls, in any order."""
    pieces = draw(st.lists(st.one_of(st.sampled_from(HARD), TEXTS, VALUES.map(json.dumps)), max_size=10))
    _, text = draw(st.sampled_from(NOTATIONS).flatmap(outputs))
    begin, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    return "".join([*pieces, text[begin:end], *pieces[:2]])
