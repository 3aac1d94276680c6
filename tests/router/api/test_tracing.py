"""A router takes its callers' spans in, over every call, and passes its own on to workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc.aio
import pytest

from baton.v1 import inference_pb2
from baton.worker.v1 import worker_pb2
from router.links.request_spans import RequestSpans
from runtime.tracing.context import read_traceparent
from runtime.tracing.tracer import Tracer
from tests.router.calls import events_of, request
from tests.router.conftest import RunningFleet, until
from tests.router.many_calls import ManyClient
from tests.tracing import Kept

pytestmark = pytest.mark.integration

CALLER = "00f067aa0ba902b7"
SAMPLED = f"00-4bf92f3577b34da6a3ce929d0e0e4736-{CALLER}-01"
METADATA = (("traceparent", SAMPLED),)


async def generate(fleet: RunningFleet) -> None:
    await events_of(fleet.inference.Generate(request(), metadata=METADATA))


async def generate_once(fleet: RunningFleet) -> None:
    whole = inference_pb2.GenerateOnceRequest(request=request())
    await fleet.inference.GenerateOnce(whole, metadata=METADATA)


async def resume(fleet: RunningFleet) -> None:
    again = inference_pb2.ResumeRequest(request=request(request_id="again"), session=1)
    await events_of(fleet.inference.Resume(again, metadata=METADATA))


async def generate_many(fleet: RunningFleet) -> None:
    many = ManyClient(fleet.inference)
    await many.send(1, generate=request(), traceparent=SAMPLED)
    await many.done()


@pytest.mark.parametrize("call", [generate, generate_once, resume, generate_many])
async def test_a_span_comes_in_over_every_call_and_goes_to_both_workers(
    fleet: RunningFleet, call: Callable[[RunningFleet], Awaitable[None]]
) -> None:
    prefill, decode = await fleet.pair()
    kept = Kept()
    fleet.shell.spans = RequestSpans(Tracer(kept, 0.0), "model")
    await call(fleet)
    await until(lambda: bool(kept.spans))
    whole = kept.spans[0]
    assert (whole.name, whole.context.parent_id) == ("text_completion model", int(CALLER, 16))
    (attempt,) = [span for span in kept.spans if span.name == "attempt"]
    workers = {attempt.attributes[f"baton.{role}_worker"] for role in ("prefill", "decode")}
    assert workers == {"p0", "d0"}
    for worker in (prefill, decode):
        (told,) = {each for command in worker.commands if (each := traceparent_of(command))}
        found = read_traceparent(told)
        assert found is not None
        assert (found.trace_id, found.span_id) == (attempt.context.trace_id, attempt.context.span_id)


def traceparent_of(command: worker_pb2.WorkRequest) -> str:
    kind = command.WhichOneof("command")
    sequence = None if kind is None else getattr(getattr(command, kind), "sequence", None)
    return "" if sequence is None else str(sequence.traceparent)


@pytest.mark.parametrize("text", ["", "malformed", SAMPLED + "0" * 4000])
async def test_a_malformed_span_is_as_none(fleet: RunningFleet, text: str) -> None:
    await fleet.pair()
    kept = Kept()
    fleet.shell.spans = RequestSpans(Tracer(kept, 0.0), "model")
    assert await events_of(fleet.inference.Generate(request(), metadata=(("traceparent", text),)))
    assert not kept.spans


async def test_a_refused_call_is_traced(fleet: RunningFleet) -> None:
    kept = Kept()
    fleet.shell.spans = RequestSpans(Tracer(kept, 1.0), "model")
    with pytest.raises(grpc.aio.AioRpcError):
        await events_of(fleet.inference.Generate(request(model="another")))
    await until(lambda: bool(kept.spans))
    (whole,) = kept.spans
    assert whole.error == whole.attributes["error.type"]
    assert whole.context.parent_id == 0


async def test_the_router_forgets_what_has_ended(fleet: RunningFleet) -> None:
    await fleet.pair()
    spans = fleet.shell.spans = RequestSpans(Tracer(Kept(), 1.0), "model")
    for _ in range(3):
        await events_of(fleet.inference.Generate(request()))
    await until(lambda: not spans._calls and not spans._by_name)
