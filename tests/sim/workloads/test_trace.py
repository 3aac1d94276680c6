"""A part of a trace has its requests, faster or shorter as asked, and shares what the trace shares."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.workloads.trace import Excerpt, Part, TraceRequest, excerpt, fitting

WHOLE = Part()


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRequest]:
    at_s, drawn = 0.0, []
    for _ in range(draw(st.integers(1, 8))):
        prompt, size = draw(st.integers(0, 9000)), draw(st.integers(1, 512))
        shared = tuple(draw(st.lists(st.integers(0, 3), max_size=-(-prompt // size))))
        output = draw(st.integers(0, 500))
        at_s += draw(st.floats(0, 1000))
        drawn.append(
            TraceRequest(
                at_s,
                prompt,
                output,
                shared_blocks=shared,
                shared_block_tokens=size if shared else 0,
                max_tokens=draw(st.none() | st.integers(output, 600)),
            )
        )
    return drawn


@given(trace=traces(), cut_s=st.floats(0.001, 8000))
def test_two_parts_make_the_whole(trace: list[TraceRequest], cut_s: float) -> None:
    first = excerpt(trace, Part(for_s=cut_s))
    second = excerpt(trace, Part(from_s=cut_s))
    whole = excerpt(trace, WHOLE)
    moved = [replace(request, at_s=request.at_s + cut_s) for request in second.requests]
    assert [request.at_s for request in (*first.requests, *moved)] == pytest.approx(
        [request.at_s for request in whole.requests]
    )
    assert first.num_empty + second.num_empty == whole.num_empty
    assert len(whole.requests) + whole.num_empty == len(trace)
    assert all(request.prompt_tokens and request.output_tokens for request in whole.requests)


def test_nothing_behind_the_end_of_a_part_is_read() -> None:
    endless = (TraceRequest(float(at), 1, 1) for at in itertools.count())
    taken = excerpt(endless, Part(from_s=3, for_s=2, speed=4))
    assert [request.at_s for request in taken.requests] == [0.0, 0.25]


@given(trace=traces(), scale=st.floats(0.001, 10))
def test_scaled_requests_share_as_many_blocks(trace: list[TraceRequest], scale: float) -> None:
    played = excerpt(trace, Part(scale=scale)).requests
    for request, own in zip(played, excerpt(trace, WHOLE).requests, strict=True):
        assert request.prompt_tokens == max(1, round(own.prompt_tokens * scale))
        assert request.shared_blocks == own.shared_blocks[: len(request.shared_blocks)]
        size = request.shared_block_tokens
        assert bool(size) == bool(own.shared_block_tokens)
        # Only the last one may end behind the prompt, as before.
        assert (len(request.shared_blocks) - 1) * size < request.prompt_tokens
        assert request.max_tokens is None or request.max_tokens >= request.output_tokens


@given(traces())
def test_a_part_at_its_own_speed_is_as_it_was(trace: list[TraceRequest]) -> None:
    kept = [request for request in trace if request.prompt_tokens and request.output_tokens]
    assert list(excerpt(trace, WHOLE).requests) == kept


def test_a_context_leaves_out_what_can_outgrow_it() -> None:
    short, long = TraceRequest(0.0, 90, 10), TraceRequest(1.0, 90, 10, max_tokens=11)
    assert fitting(Excerpt((short, long), 3), 100) == Excerpt((short,), 3, 1)
