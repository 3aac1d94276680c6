"""Values in errors and JSON read the same in any language."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.wire.shown import rounded, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        (True, "true"),
        (None, "null"),
        ((1,), "[1]"),
        ({"a": [None, False, "é"]}, '{"a": [null, false, "é"]}'),
        ([1] * 99, "[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,..."),
    ],
)
def test_a_value_is_shown_as_json(value: object, text: str) -> None:
    assert shown(value) == text


JSON = st.recursive(
    st.none() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", "ttft_ms", "logprob"]), inner),
)


@given(JSON, st.floats(-1e6, 1e6))
def test_only_times_are_rounded(value: Any, time_ms: float) -> None:
    assert rounded({"logprob": time_ms, "ttft_ms": time_ms}) == {
        "logprob": time_ms,
        "ttft_ms": round(time_ms, 3),
    }
    assert rounded(rounded(value)) == rounded(value)
