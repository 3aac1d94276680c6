"""Workers that die, messages that are lost, attempts that fail: what the client sees over real gRPC."""

from __future__ import annotations

import asyncio

import pytest

from baton.v1 import generation_pb2, inference_pb2
from baton.worker.v1 import attempt_pb2, worker_pb2
from router.links.failure_detector import MIN_THRESHOLD_TICKS, UNTAKEN_FACTOR
from router.links.metrics import NAMESPACE
from router.links.ticker import TICK_S
from tests.router.calls import events_of, expected, finished_of, request, tokens_of
from tests.router.conftest import RunningFleet, until

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("lost", ["lose_commands", "lose_reports"])
async def test_a_message_lost_on_a_living_stream_loses_no_token(fleet: RunningFleet, lost: str) -> None:
    _, decode = await fleet.pair()
    setattr(decode, lost, 1)
    events = await events_of(fleet.inference.Generate(request(5)))
    assert tokens_of(events) == expected(5)
    assert finished_of(events).usage.attempts == 2
    await until(fleet.nothing_is_held)


async def test_commands_that_reports_tell_late_are_not_lost(fleet: RunningFleet) -> None:
    await fleet.add("decode", "d0", tells_taken=False, step_s=0.02)
    events = await events_of(fleet.inference.Generate(request(200)))
    finished = finished_of(events)
    lost_after_s = UNTAKEN_FACTOR * MIN_THRESHOLD_TICKS * TICK_S
    assert finished.delivery.e2e_ms > lost_after_s * 1000, "long enough to be taken for lost"
    assert finished.usage.attempts == 1
    await until(fleet.nothing_is_held)


async def test_decode_worker_killed_mid_stream_costs_no_token(fleet: RunningFleet) -> None:
    _, first = await fleet.pair(step_s=0.01)
    stream = aiter(fleet.inference.Generate(request(40)))
    seen: list[inference_pb2.GenerationEvent] = []
    while len(tokens_of(seen)) < 5:
        seen.append((await anext(stream)).event)
    first.go.clear()  # it would otherwise end while a busy Redis has not told of the other one
    await fleet.add("decode", "d1")
    await first.stop()
    seen += await events_of(stream)
    assert tokens_of(seen) == expected(40)
    assert finished_of(seen).usage.attempts == 2
    await until(fleet.nothing_is_held)


async def test_prefill_worker_killed_before_the_first_token_costs_only_time(fleet: RunningFleet) -> None:
    first, _ = await fleet.pair()
    first.go.clear()
    call = asyncio.ensure_future(events_of(fleet.inference.Generate(request(5))))
    await until(lambda: any(c.WhichOneof("command") == "prefill" for c in first.commands))
    await fleet.add("prefill", "p1")
    await first.stop()
    assert tokens_of(await call) == expected(5)
    await until(fleet.nothing_is_held)


async def test_a_last_report_that_a_leaving_prefill_worker_loses_costs_time(fleet: RunningFleet) -> None:
    """It ended the request, so the decode worker holds nothing of it, and nobody else reports anything."""
    leaving, decode = await fleet.pair()
    leaving.tell.clear()
    decode.go.clear()
    call = asyncio.ensure_future(events_of(fleet.inference.Generate(request(1))))
    await until(lambda: bool(decode.running))
    await fleet.add("prefill", "p1")
    leaving.draining = True
    core = fleet.shell.core
    await until(lambda: core.state.fleet.workers[leaving.record.key].draining)
    (handle,) = decode.running
    del decode.running[handle]
    decode.say(worker_pb2.StepReport(released_handles=[handle]))
    await leaving.stop()
    assert tokens_of(await call) == expected(1)
    assert core.state.counters.retried_attempts == 0
    await until(fleet.nothing_is_held)


async def test_a_request_that_fails_everywhere_gets_three_attempts(fleet: RunningFleet) -> None:
    await fleet.pair(refuse=True)
    events = await events_of(fleet.inference.Generate(request(5)))
    finished = finished_of(events)
    assert finished.usage.attempts == 3
    assert "3 attempts failed" in finished.error
    assert events[-2].choice_finished.reason == generation_pb2.FINISH_REASON_FAILED
    await until(fleet.nothing_is_held)


async def test_failed_attempts_are_counted_on_from_what_the_client_brings(fleet: RunningFleet) -> None:
    await fleet.pair(refuse=True)
    asked = request(5, "walks", resume_grace_ms=1000)
    events = await events_of(fleet.inference.Generate(asked))
    told = [event.retrying.failed_attempts for event in events if event.WhichOneof("event") == "retrying"]
    assert told == [1, 2]
    asked.request_id = "walked"
    resumed = inference_pb2.ResumeRequest(request=asked, session=1, failed_attempts=4)
    assert finished_of(await events_of(fleet.inference.Resume(resumed))).usage.attempts == 1
    await until(fleet.nothing_is_held)


async def test_a_senseless_report_ends_its_stream_not_the_requests(
    fleet: RunningFleet,
) -> None:
    _, decode = await fleet.pair(step_s=0.02)
    call = fleet.inference.Generate(request(60))
    running = asyncio.create_task(events_of(call))
    await until(lambda: bool(decode.running))
    decode.say(worker_pb2.StepReport(tokens=attempt_pb2.TokenColumns(handles=list(decode.running))))
    events = await running
    assert tokens_of(events) == expected(60)
    assert finished_of(events).usage.attempts == 2
    assert (
        fleet.shell.metrics.registry.get_sample_value(f"{NAMESPACE}_loop_errors_total", {"where": "link"})
        == 1
    )
    await until(fleet.nothing_is_held)
