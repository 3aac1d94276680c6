"""The spans of a router's requests, from what its core is told and decides."""

from __future__ import annotations

from collections import Counter

from router.core.model.actions import SendDecode
from router.core.model.events import (
    Enqueued,
    Event,
    Granted,
    SettleAnswered,
    StepReported,
    WorkerLoad,
    WorkerLost,
)
from router.errors import Reason, Unavailable, ValidationError
from router.links.request_spans import RequestSpans
from runtime.state.records import Settled
from runtime.tracing.context import read_traceparent
from runtime.tracing.span import Kind, Span
from runtime.tracing.tracer import Tracer
from scheduling.columns import TokenColumns
from scheduling.request import FinishReason
from tests.router.core_driver import ARRIVAL, call, core_of
from tests.tracing import Kept

CALLER = "00f067aa0ba902b7"
SAMPLED = f"00-4bf92f3577b34da6a3ce929d0e0e4736-{CALLER}-01"
LISTENER = ARRIVAL.listener


class Scene:
    """A core whose events and actions are observed as a shell does it."""

    def __init__(self, ratio: float = 0.0) -> None:
        self.kept = Kept()
        self.spans = RequestSpans(Tracer(self.kept, ratio), "model")
        self.core = core_of("slack")
        self.sent: list[tuple[SendDecode, str]] = []

    def tell(self, event: Event, now: float) -> None:
        actions = self.core.on(event, now)
        self.spans.observe(event, now, actions)
        sent = [action for action in actions if isinstance(action, SendDecode)]
        self.sent += [(command, self.spans.traceparent_of(command)) for command in sent]

    def run(self, now: float, key: str = "t/r1/0") -> SendDecode:
        """Queue, grant and lease; return what is sent to the worker."""
        worker = "d2:1" if self.sent else "d1:1"
        self.tell(Enqueued(key, 0, 0), now)
        self.tell(Granted(key, worker, worker), now + 1)
        self.tell(SettleAnswered(key, worker, worker, Settled.OK), now + 2)
        return self.sent[-1][0]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.kept.spans if span.name == name]


def last_token(command: SendDecode) -> StepReported:
    """Return the report of a sequence that ends with its first token."""
    tokens = TokenColumns(
        handles=[command.spec.handle],
        choices=[0],
        indexes=[0],
        token_ids=[9],
        finish_reasons=[FinishReason.LENGTH],
    )
    return StepReported(command.worker_key, tokens, WorkerLoad())


def test_a_request_that_fails_once_is_one_trace() -> None:
    scene = Scene()
    scene.spans.begin(LISTENER, SAMPLED, "chat", 1.0)
    scene.tell(ARRIVAL, 2.0)
    scene.run(3.0)
    scene.tell(WorkerLost("d1:1", "it is gone"), 6.0)
    second = scene.run(7.0)
    scene.tell(last_token(second), 10.0)
    assert not scene.kept.spans
    scene.spans.end(LISTENER, None, 11.0)
    (whole,) = scene.named("chat model")
    assert (whole.began_at, whole.ended_at, whole.kind, whole.error) == (1.0, 11.0, Kind.SERVER, "")
    assert whole.context.parent_id == int(CALLER, 16)
    assert whole.attributes["gen_ai.usage.output_tokens"] == 1
    assert whole.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert whole.attributes["gen_ai.response.time_to_first_chunk"] == 9.0
    assert whole.attributes["baton.attempts"] == 2
    below = [span for span in scene.kept.spans if span is not whole]
    assert {span.context.parent_id for span in below} == {whole.context.span_id}
    names = Counter(span.name for span in below)
    assert names == {
        "intake": 1, "admission": 1, "redis enqueue": 2, "queue": 2, "redis settle": 2, "grant": 2,
        "attempt": 2, "relay": 1,
    }  # fmt: skip
    failed, good = scene.named("attempt")
    assert (failed.began_at, failed.ended_at, failed.error) == (5.0, 6.0, "worker lost: it is gone")
    assert (good.began_at, good.ended_at, good.error) == (9.0, 10.0, "")
    workers = [attempt.attributes["baton.decode_worker"] for attempt in (failed, good)]
    assert workers == ["d1", "d2"]
    told = [read_traceparent(traceparent) for _, traceparent in scene.sent]
    assert [found and found.span_id for found in told] == [failed.context.span_id, good.context.span_id]


def test_a_refusal_names_its_kind_and_nothing_that_the_caller_sent() -> None:
    scene = Scene()
    scene.spans.begin(LISTENER, SAMPLED, "text_completion", 1.0)
    scene.spans.end(LISTENER, ValidationError("text", "a secret", "another one"), 2.0)
    (whole,) = scene.kept.spans
    assert whole.error == whole.attributes["error.type"] == "ValidationError"
    assert "secret" not in repr(whole)


def test_a_wait_that_a_refusal_ends_is_seen() -> None:
    scene = Scene()
    scene.spans.begin(LISTENER, SAMPLED, "chat", 1.0)
    scene.tell(ARRIVAL, 2.0)
    scene.spans.end(LISTENER, None, 5.0)
    waits = {span.name: span.ended_at - span.began_at for span in scene.kept.spans}
    assert waits == {"chat model": 4.0, "intake": 1.0, "admission": 3.0, "redis enqueue": 3.0, "queue": 3.0}


def test_a_call_that_ends_early_has_what_there_was() -> None:
    scene = Scene()
    scene.spans.begin(LISTENER, SAMPLED, "chat", 1.0)
    scene.tell(ARRIVAL, 2.0)
    scene.run(3.0)
    scene.spans.end(LISTENER, None, 9.0)
    assert scene.named("chat model")[0].attributes["error.type"] == "client_gone"
    assert scene.named("attempt")[0].ended_at == 9.0
    assert not scene.named("relay")


def test_what_is_not_sampled_leaves_nothing() -> None:
    scene = Scene(ratio=0.0)
    scene.spans.begin(LISTENER, "", "chat", 1.0)
    scene.tell(ARRIVAL, 2.0)
    scene.run(3.0)
    scene.spans.end(LISTENER, None, 9.0)
    assert [traceparent for _, traceparent in scene.sent] == [""]
    assert not scene.kept.spans


def test_two_calls_of_a_request_have_a_trace_each() -> None:
    scene = Scene()
    for listener in (1, 2):
        scene.spans.begin(listener, SAMPLED.replace("4bf9", f"000{listener}"), "chat", 1.0)
        scene.tell(call(ARRIVAL, listener=listener), 2.0)
    scene.spans.end(1, Unavailable(Reason.ROUTER_LEAVING, "it leaves"), 3.0)
    scene.spans.end(2, None, 3.0)
    traces = Counter(span.context.trace_id for span in scene.kept.spans)
    assert len(traces) == 2
    assert scene.spans._by_name == scene.spans._calls == {}
