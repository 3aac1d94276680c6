"""A trace is read back as it was written, and a damaged one is refused by line and field."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.workloads.formats.baton import SLO_CLASSES, dump
from sim.workloads.formats.reading import FORMATS, requests
from sim.workloads.trace import TraceError, TraceRequest

_MS = st.none() | st.integers(1, 100_000)


@st.composite
def _requests(draw: st.DrawFn) -> TraceRequest:
    prompt, output = draw(st.integers(1, 9000)), draw(st.integers(1, 500))
    size = draw(st.integers(1, 512))
    shared = tuple(draw(st.lists(st.integers(0, 15), max_size=-(-prompt // size))))
    return TraceRequest(
        at_s=draw(st.floats(0, 1e6)),
        prompt_tokens=prompt,
        output_tokens=output,
        slo_class=draw(st.sampled_from(SLO_CLASSES)),
        ttft_ms=draw(_MS),
        tpot_ms=draw(_MS),
        itl_ms=draw(_MS),
        tenant=draw(st.text(max_size=5)),
        shared_blocks=shared,
        shared_block_tokens=size if shared else 0,
        max_tokens=draw(st.none() | st.integers(output, 600)),
    )


def parse(lines: Iterable[str]) -> list[TraceRequest]:
    return list(requests(lines, FORMATS["baton"]))


@given(st.lists(_requests(), min_size=1, max_size=5))
def test_a_trace_is_read_back_as_it_was_written(drawn: list[TraceRequest]) -> None:
    ordered = sorted(drawn, key=lambda request: request.at_s)
    assert parse(dump(ordered)) == ordered


_GOOD = {"index": 0, "at_s": 1.0, "prompt_tokens": 10, "output_tokens": 2}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"at_s": -1.0}, "at_s"),
        ({"at_s": float("nan")}, "at_s"),
        ({"at_s": float("inf")}, "at_s"),
        ({"at_s": True}, "at_s"),
        ({"at_s": None}, "at_s"),
        ({"index": 1}, "index"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"prompt_tokens": 2.5}, "prompt_tokens"),
        ({"prompt_tokens": None}, "prompt_tokens"),
        ({"output_tokens": -3}, "output_tokens"),
        ({"ttft_ms": 0}, "ttft_ms"),
        ({"tpot_ms": float("nan")}, "tpot_ms"),
        ({"slo_class": "gold"}, "slo_class"),
        ({"slo_class": ["batch"]}, "slo_class"),
        ({"tenant": 3}, "tenant"),
        ({"shared_blocks": [1]}, "shared_block_tokens"),
        ({"shared_blocks": [1, 2, 3], "shared_block_tokens": 5}, "shared_blocks"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"tokens": 5}, "tokens"),
    ],
)
def test_a_wrong_value_is_refused_by_line_and_field(change: dict, field: str) -> None:
    with pytest.raises(TraceError, match=f"line 1: {field} is .*; accepted: ") as raised:
        parse([json.dumps(_GOOD | change)])
    assert (raised.value.line, raised.value.field) == (1, field)


def test_time_running_backwards_is_refused() -> None:
    lines = [json.dumps(_GOOD), json.dumps(_GOOD | {"index": 1, "at_s": 0.5})]
    with pytest.raises(TraceError, match=r"line 2: at_s is 0\.5; accepted: from 1,"):
        parse(lines)


def test_a_lost_line_is_refused_as_a_hole() -> None:
    lines = [json.dumps(_GOOD), json.dumps(_GOOD | {"index": 2})]
    with pytest.raises(TraceError, match="line 2: index is 2; accepted: 1: a trace has no holes"):
        parse(lines)


@pytest.mark.parametrize("line", ["", "{", "[1]", "7"])
def test_a_line_that_is_no_object_is_refused(line: str) -> None:
    with pytest.raises(TraceError, match="line 2"):
        parse([json.dumps(_GOOD), line])
