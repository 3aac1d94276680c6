"""Traces of a real fleet, as a collector receives them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial

import grpc.aio
import httpx
import pytest

from baton import AsyncClient
from baton.fleet import Fleet
from baton.v1 import generation_pb2, inference_pb2, inference_pb2_grpc
from tests.collector import Collector, Received, collecting
from tests.fleet.driving import FEW, TRIES, busy_workers
from tests.fleets import NewFleet
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

EXPORT_TIMEOUT_S = 10.0
"""OpenTelemetry's own: a process that waited for its exporter would wait as long."""
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
MALFORMED = (
    "",
    "00",
    SAMPLED.upper(),
    SAMPLED + "-more",
    f"ff-{TRACE}-{PARENT}-01",
    f"00-{'0' * 32}-{PARENT}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    SAMPLED + "0" * 4000,
    "7f" * 2000,
)
WHOLE = (
    "POST /v1/chat/completions", "chat demo_model", "decode", "prefill", "prefill", "offer", "offer",
)  # fmt: skip
"""Spans of a chat that had to begin twice, which its processes send last."""
CHAT = {
    "messages": [{"role": "user", "content": "Why does a program read a file line by line? " * 20}],
    "max_tokens": 400,
    "ignore_eos": True,
    "stream": True,
}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


def traced(new_fleet: NewFleet, endpoint: str, *more: str, **settings: object) -> Fleet:
    """Return a fleet whose processes send their spans to `endpoint`."""
    flags = ("--otlp-endpoint", endpoint, *more)
    sizes = () if "timed" in settings else FEW
    workers = dict.fromkeys(("prefill", "decode"), (*sizes, *flags))
    return new_fleet(extra_args={**workers, "router": flags, "gateway": flags}, **settings)


async def test_a_trace_is_whole_when_a_decode_worker_dies(new_fleet: NewFleet, collector: Collector) -> None:
    async with (
        traced(new_fleet, collector.endpoint, decode=2, gateways=1, placement="disaggregated") as fleet,
        AsyncClient(fleet.router_addresses) as client,
        httpx.AsyncClient(base_url=fleet.gateway_urls[0], timeout=PATIENCE_S) as http,
    ):
        for number in range(TRIES):
            trace_id = f"{number + 1:032x}"
            killed = await chat_with_a_kill(http, fleet, client, trace_id)
            if killed:
                break
        else:
            raise AssertionError("each time the stream had ended before a worker was busy")
        await asyncio.to_thread(collector.wait_for, partial(has_all, trace_id, WHOLE))
    spans = [span for span in collector.spans() if span.trace_id == trace_id]
    assert_connected(spans, PARENT)
    names = Counter((span.service, span.name) for span in spans)
    assert names["baton-gateway", "POST /v1/chat/completions"] == 1
    for name in ("chat demo_model", "intake", "admission", "relay"):
        assert names["baton-router", name] == 1, names
    for name in ("queue", "grant", "attempt", "redis enqueue", "redis settle"):
        assert names["baton-router", name] >= 1, names
    assert names["baton-router", "attempt"] >= 2, names
    assert names["baton-prefill-worker", "prefill"] >= 2, names
    assert names["baton-prefill-worker", "prefill chunk"] >= 4, names
    assert names["baton-prefill-worker", "offer"] >= 2, names
    for name in ("handoff", "decode"):
        assert names["baton-decode-worker", name] >= 1, names
    whole = next(span for span in spans if span.name == "chat demo_model")
    assert whole.attributes["gen_ai.operation.name"] == "chat"
    assert whole.attributes["gen_ai.request.model"] == "demo_model"
    assert whole.attributes["gen_ai.usage.output_tokens"] == 400
    assert whole.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert whole.attributes["baton.path"] == "disaggregated"
    assert whole.attributes["baton.attempts"] >= 2
    failed = [span for span in spans if span.name == "attempt" and span.error]
    assert any("worker lost" in span.error for span in failed), failed
    assert killed in {span.attributes["baton.decode_worker"] for span in failed}
    last = max((span for span in spans if span.name == "attempt"), key=lambda span: span.ended_ns)
    assert not last.error
    assert last.attributes["baton.decode_worker"] != killed


async def chat_with_a_kill(http: httpx.AsyncClient, fleet: Fleet, client: AsyncClient, trace_id: str) -> str:
    """Stream a chat, and kill its decode worker in the middle; return which, or nothing if it was late."""
    killed, num_heard = "", 0
    headers = {"traceparent": f"00-{trace_id}-{PARENT}-01"}
    async with http.stream("POST", "/v1/chat/completions", json=CHAT, headers=headers) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            assert "error" not in json.loads(line.removeprefix("data: ")), line
            num_heard += 1
            if num_heard == 10 and (busy := await busy_workers(client)):
                killed = busy[0]
                fleet.process(killed).kill()
    return killed


def has_all(trace_id: str, names: tuple[str, ...], spans: list[Received]) -> bool:
    """Return True if a trace has spans of these names, as often as they are named."""
    return not Counter(names) - Counter(span.name for span in spans if span.trace_id == trace_id)


def assert_connected(spans: list[Received], caller: str) -> None:
    """Assert that each span is below another one of the trace, or below the caller's."""
    known = {span.span_id for span in spans} | {caller}
    assert len(known) == len(spans) + 1, "ids differ"
    assert not [(span.service, span.name) for span in spans if span.parent_id not in known]
    assert [span.service for span in spans if span.parent_id == caller] == ["baton-gateway"]
    assert all(span.began_ns <= span.ended_ns for span in spans)


async def test_callers_and_the_ratio_decide_what_is_traced(new_fleet: NewFleet, collector: Collector) -> None:
    """Malformed headers, of any size, count as none."""
    async with (
        traced(
            new_fleet, collector.endpoint, "--trace-ratio", "0", timed="demo-cpu", prefill=0, gateways=1
        ) as fleet,
        httpx.AsyncClient(base_url=fleet.gateway_urls[0], timeout=PATIENCE_S) as http,
    ):
        for text in (*MALFORMED, f"00-{TRACE}-{PARENT}-00"):
            await completed(http, [("traceparent", text)])
            await generated(fleet, text)
        await completed(http, [("traceparent", SAMPLED), ("traceparent", SAMPLED)])
        await completed(http, [("traceparent", f"01-{TRACE}-{PARENT}-01-of-a-later-version")])
        await generated(fleet, SAMPLED)
        both = ("relay", "decode") * 2
        await asyncio.to_thread(collector.wait_for, partial(has_all, TRACE, (*both, "POST /v1/completions")))
    spans = collector.spans()
    assert {span.trace_id for span in spans} == {TRACE}
    below = Counter((span.service, span.name) for span in spans if span.parent_id == PARENT)
    assert below == {
        ("baton-gateway", "POST /v1/completions"): 1,
        ("baton-router", "text_completion demo_model"): 1,
    }
    names = Counter(span.name for span in spans)
    assert names["decode"] == names["prefill"] == names["redis lease_at_once"] == 2, names


async def completed(http: httpx.AsyncClient, headers: list[tuple[str, str]]) -> None:
    body = {"prompt": "The list is", "max_tokens": 3}
    response = await http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text


async def generated(fleet: Fleet, traceparent: str) -> None:
    """Call a router by its stubs alone, with a trace in the metadata."""
    async with grpc.aio.insecure_channel(fleet.router_addresses[0]) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(
            text="The list is", stop=generation_pb2.StopRules(max_tokens=3)
        )
        response = await stub.GenerateOnce(
            inference_pb2.GenerateOnceRequest(request=request), metadata=(("traceparent", traceparent),)
        )
    assert len(response.choices) == 1


async def test_a_collector_that_hangs_delays_no_request_and_no_end(new_fleet: NewFleet) -> None:
    settings = {"timed": "demo-cpu", "prefill": 0, "gateways": 1, "stop_grace_s": PATIENCE_S}
    with collecting(hangs=True) as collector:
        loop = asyncio.get_running_loop()
        async with (
            traced(new_fleet, collector.endpoint, **settings) as fleet,
            httpx.AsyncClient(base_url=fleet.gateway_urls[0], timeout=PATIENCE_S) as http,
        ):
            await completed(http, [])
            await asyncio.to_thread(collector.wait_until_called)
            durations = []
            for _ in range(20):
                began = loop.time()
                await completed(http, [])
                durations.append(loop.time() - began)
            assert sorted(durations)[10] < EXPORT_TIMEOUT_S / 2
            processes = [fleet.process(name) for name in fleet.spec.process_names]
        assert not collector.spans()
    assert [process.exit_code for process in processes] == [0] * len(processes)
