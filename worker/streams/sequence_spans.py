"""The spans of sequences that are traced: noted from the engine's reports, and made when they are freed.

    prefill          until the prompt is complete (a Prefill, or a Decode that computes it here)
      prefill chunk  the step that computed it
    offer            until the blocks of a Prefill are fetched, or nobody wants them
    handoff          until a Receive has the KV: it waits for room, fetches and verifies
    decode           until its last token

They lie below the attempt of the router, which sends it with the command. The engine knows nothing of traces.
While no sequence is traced, a report costs one look at an empty dictionary.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from engine.core.commands import Prefill
from engine.core.report import StepReport
from runtime.tracing.context import SpanContext
from runtime.tracing.span import Span, Value
from runtime.tracing.tracer import Tracer
from worker.commands import ReceiveFrom, StartCommand

MAX_CHUNKS = 256
"""Chunks of one sequence with a span of their own; there are more only for very long prompts."""


@dataclass(slots=True, eq=False)
class _Sequence:
    """Notes of one sequence."""

    context: SpanContext
    """The context of its first span: its prefill or handoff."""
    kind: type[StartCommand]
    began_at: float
    attributes: dict[str, Value]
    prefilled_at: float | None = None
    chunks: list[Span] = field(default_factory=list)
    error: str = ""


class SequenceSpans:
    """Takes in commands and reports, and makes the spans of each traced sequence at its end."""

    def __init__(self, tracer: Tracer, worker_id: str) -> None:
        self._tracer = tracer
        self._worker_id = worker_id
        self._by_handle: dict[int, _Sequence] = {}

    def begin(self, command: StartCommand, traceparent: str) -> None:
        """Trace a sequence, under the engine's handle, if its router does."""
        if not traceparent:
            return
        context = self._tracer.begin(traceparent)
        if context.is_sampled:
            spec = command.spec
            attributes: dict[str, Value] = {
                "baton.worker": self._worker_id,
                "baton.attempt": spec.fence.attempt,
                "gen_ai.usage.input_tokens": len(spec.prompt_token_ids),
            }
            kind = type(command)
            self._by_handle[spec.handle] = _Sequence(context, kind, time.monotonic(), attributes)

    def on_report(self, report: StepReport) -> None:
        """Take in a report of the engine."""
        if not self._by_handle:
            return
        now = time.monotonic()
        for chunk in report.chunks:
            known = self._by_handle.get(chunk.handle)
            if known is not None and len(known.chunks) < MAX_CHUNKS:
                place: dict[str, Value] = {"baton.chunk_begin": chunk.begin, "baton.chunk_end": chunk.end}
                began_at = now - report.step_seconds
                span = Span(known.context.child(), "prefill chunk", began_at, now, place)
                known.chunks.append(span)
        for prefilled in report.prefilled:
            known = self._by_handle.get(prefilled.handle)
            if known is not None:
                known.prefilled_at = now
                known.attributes["gen_ai.usage.cache_read.input_tokens"] = prefilled.cached_tokens
        for failure in report.failures:
            known = self._by_handle.get(failure.handle)
            if known is not None:
                known.error = f"{failure.reason.name}: {failure.message}"
        for handle in report.freed:
            known = self._by_handle.pop(handle, None)
            if known is not None:
                self._tracer.export(_spans(known, now))


def _spans(known: _Sequence, now: float) -> list[Span]:
    """Return the spans of a sequence that ends now."""
    at, first = known.prefilled_at, "handoff" if known.kind is ReceiveFrom else "prefill"
    spans = [
        Span(
            known.context,
            first,
            known.began_at,
            now if at is None else at,
            known.attributes,
            error=known.error if at is None else "",
        )
    ]
    if at is not None:
        second = "offer" if known.kind is Prefill else "decode"
        same = {"baton.worker": known.attributes["baton.worker"]}
        spans.append(Span(known.context.sibling(), second, at, now, same, error=known.error))
    return spans + known.chunks
