"""W3C's traceparent: what is written is read again, and whatever is malformed counts as none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tracing.context import MAX_CHARACTERS, SpanContext, new_trace, read_traceparent, traceparent_in

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
CONTEXTS = st.builds(
    SpanContext, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans(), st.just(0)
)


@given(CONTEXTS)
def test_what_is_written_is_read_again(context: SpanContext) -> None:
    assert read_traceparent(context.traceparent) == context


@given(st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{30,34}-[0-9a-f]{14,18}-[0-9a-f]{2}.?"))
def test_any_text_is_a_span_or_counts_as_none(text: str) -> None:
    found = read_traceparent(text)
    if found is not None:
        assert text[3:52] == found.traceparent[3:52]
        assert found.trace_id
        assert found.span_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        SAMPLED[:-1],
        SAMPLED + "0",
        SAMPLED + "-more",
        SAMPLED.upper(),
        SAMPLED.replace("4", "g"),
        f" {SAMPLED}",
        f"{SAMPLED}\n",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"01-{TRACE}-{SPAN}-01-" + "x" * MAX_CHARACTERS,
        "٠" * 55,
    ],
)
def test_a_malformed_text_counts_as_none(text: str) -> None:
    assert read_traceparent(text) is None


@pytest.mark.parametrize(
    ("text", "is_sampled"),
    [(SAMPLED, True), (f"00-{TRACE}-{SPAN}-00", False), (f"cc-{TRACE}-{SPAN}-09-what-comes-later", True)],
)
def test_later_versions_and_other_flags_are_read(text: str, is_sampled: bool) -> None:
    found = read_traceparent(text)
    assert found == SpanContext(int(TRACE, 16), int(SPAN, 16), is_sampled)


def test_of_several_headers_none_counts() -> None:
    assert traceparent_in([("x", "1"), ("traceparent", SAMPLED)]) == SAMPLED
    assert traceparent_in([(b"traceparent", SAMPLED.encode())]) == SAMPLED
    assert traceparent_in([("traceparent", SAMPLED), ("traceparent", SAMPLED)]) == ""
    assert traceparent_in([(b"traceparent", b"\xff\xfe")]) == "ÿþ"
    assert traceparent_in([]) == ""


def test_spans_below_and_beside_another_belong_to_its_trace() -> None:
    root = new_trace(is_sampled=True)
    child = root.child()
    assert (child.trace_id, child.parent_id, child.is_sampled) == (root.trace_id, root.span_id, True)
    beside = child.sibling()
    assert (beside.trace_id, beside.parent_id) == (root.trace_id, root.span_id)
    assert len({root.span_id, child.span_id, beside.span_id}) == 3
