"""Values in errors and JSON read the same in any language."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.wire.fields import rounded, shown


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


class Unwritten:
    def __repr__(self) -> str:
        raise AssertionError("nobody reads this far")


def test_what_nobody_sees_of_a_long_value_is_not_written() -> None:
    assert shown([1, {"a": [*range(50), Unwritten()]}], 20) == '[1, {"a": [0, 1, ...'
    with pytest.raises(AssertionError, match="this far"):
        shown([1, Unwritten()])


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
