"""The spans of a worker's sequences, from commands and reports."""

from __future__ import annotations

import dataclasses

import pytest

from engine.core.commands import Decode, Prefill
from engine.core.report import ComputedChunk, Failure, Prefilled, StepReport
from runtime.tracing.span import Span
from runtime.tracing.tracer import Tracer
from scheduling.request import FailureReason
from tests.tracing import Kept
from tests.worker.client import spec_of
from worker.commands import ReceiveFrom, StartCommand
from worker.streams.sequence_spans import MAX_CHUNKS, SequenceSpans

ATTEMPT = "00f067aa0ba902b7"
SAMPLED = f"00-4bf92f3577b34da6a3ce929d0e0e4736-{ATTEMPT}-01"
HANDLE = 7


class Scene:
    def __init__(self) -> None:
        self.kept = Kept()
        self.spans = SequenceSpans(Tracer(self.kept, 1.0), "worker-0")

    def begin(self, kind: type[StartCommand], traceparent: str = SAMPLED) -> None:
        spec = dataclasses.replace(spec_of([1, 2, 3], target="me"), handle=HANDLE)
        self.spans.begin(kind(spec), traceparent)

    def report(self, **fields: object) -> None:
        self.spans.on_report(StepReport(**fields))  # type: ignore[arg-type]  # any of its fields

    def named(self) -> dict[str, Span]:
        return {span.name: span for span in self.kept.spans}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Prefill, ("prefill", "offer")),
        (Decode, ("prefill", "decode")),
        (ReceiveFrom, ("handoff", "decode")),
    ],
)
def test_each_kind_of_sequence_has_two_spans_one_after_the_other(
    kind: type[StartCommand], names: tuple[str, str]
) -> None:
    scene = Scene()
    scene.begin(kind)
    scene.report(prefilled=[Prefilled(HANDLE, 2)])
    assert not scene.kept.spans
    scene.report(freed=[HANDLE])
    first, second = (scene.named()[name] for name in names)
    assert len(scene.kept.spans) == 2
    assert first.ended_at == second.began_at
    assert {span.context.parent_id for span in (first, second)} == {int(ATTEMPT, 16)}
    assert first.attributes["gen_ai.usage.cache_read.input_tokens"] == 2
    assert {span.attributes["baton.worker"] for span in (first, second)} == {"worker-0"}


def test_the_chunks_of_a_prompt_are_below_its_prefill() -> None:
    scene = Scene()
    scene.begin(Prefill)
    for begin in range(MAX_CHUNKS + 10):
        scene.report(
            step_seconds=0.5, chunks=[ComputedChunk(HANDLE, begin, begin + 1), ComputedChunk(1, 0, 9)]
        )
    scene.report(freed=[HANDLE])
    chunks = [span for span in scene.kept.spans if span.name == "prefill chunk"]
    assert len(chunks) == MAX_CHUNKS
    assert {chunk.context.parent_id for chunk in chunks} == {scene.named()["prefill"].context.span_id}
    assert [chunk.attributes["baton.chunk_begin"] for chunk in chunks] == list(range(MAX_CHUNKS))
    assert {round(chunk.ended_at - chunk.began_at, 6) for chunk in chunks} == {0.5}


def test_a_failure_is_that_of_the_span_that_it_ends() -> None:
    for is_prefilled in (False, True):
        scene = Scene()
        scene.begin(ReceiveFrom)
        scene.report(prefilled=[Prefilled(HANDLE, 0)] if is_prefilled else [])
        scene.report(failures=[Failure(HANDLE, FailureReason.HANDOFF, "gone")], freed=[HANDLE])
        errors = {name: span.error for name, span in scene.named().items()}
        failed = {"handoff": "", "decode": "HANDOFF: gone"} if is_prefilled else {"handoff": "HANDOFF: gone"}
        assert errors == failed


@pytest.mark.parametrize("traceparent", ["", f"{SAMPLED[:-1]}0"])
def test_nothing_is_noted_of_what_its_router_does_not_trace(traceparent: str) -> None:
    scene = Scene()
    scene.begin(Decode, traceparent)
    scene.report(prefilled=[Prefilled(HANDLE, 0)], freed=[HANDLE])
    assert not scene.kept.spans
