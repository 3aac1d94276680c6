"""Operators see the queue by class and the steps of workers; nothing is kept while nobody watches."""

from __future__ import annotations

import asyncio

import pytest

from baton.operators.v1 import fleet_pb2
from baton.v1 import generation_pb2
from baton.worker.v1 import attempt_pb2, worker_pb2
from router.links.step_log import MAX_SEQUENCES, MAX_STEPS, StepTail
from tests.router.calls import events_of, request
from tests.router.conftest import RunningFleet, until
from tests.router.scripted_worker import ScriptedWorker

pytestmark = pytest.mark.integration


def say_step(worker: ScriptedWorker, number: int, handles: list[int]) -> None:
    """Report a step with two decodes and a chunk of 30 tokens."""
    worker.say(
        worker_pb2.StepReport(
            tokens=attempt_pb2.TokenColumns(handles=handles),
            load=worker_pb2.WorkerLoad(step=number, free_blocks=8),
            step_seconds=0.25,
            shape=worker_pb2.StepShape(num_tokens=32, num_seqs=3, num_decodes=2),
        )
    )


async def until_noted(observer: StepTail, number: int) -> None:
    """Wait until a step with this number has been reported."""
    await until(lambda: any(step.step == number for step in observer.take()))


async def test_steps_are_sent_to_those_who_ask_and_kept_for_nobody_else(fleet: RunningFleet) -> None:
    worker = await fleet.add("decode", "d0")
    watching = fleet.operators.Watch(fleet_pb2.WatchRequest(interval_ms=100, include_steps=True))
    others = fleet.operators.Watch(fleet_pb2.WatchRequest(interval_ms=100))
    snapshots, others_snapshots = aiter(watching), aiter(others)
    assert not (await anext(snapshots)).steps
    say_step(worker, 7, [])
    while not (snapshot := await anext(snapshots)).steps:
        pass
    (step,) = snapshot.steps
    assert (step.worker_id, step.step, step.step_seconds) == ("d0", 7, 0.25)
    assert (step.num_decodes, step.num_chunks, step.chunk_tokens) == (2, 1, 30)
    assert 0 < step.reported_at_s <= snapshot.uptime_s
    assert not (await anext(snapshots)).steps
    assert not (await anext(others_snapshots)).steps
    watching.cancel()
    await until(lambda: not fleet.shell.steps.is_watched)
    others.cancel()


async def test_a_watcher_that_lags_behind_loses_the_oldest_steps(fleet: RunningFleet) -> None:
    worker = await fleet.add("decode", "d0")
    with fleet.shell.steps.watched() as tail, fleet.shell.steps.watched() as observer:
        for number in range(1, MAX_STEPS + 11):
            say_step(worker, number, [])
        await until_noted(observer, MAX_STEPS + 10)
        steps = tail.take()
        assert [step.step for step in steps] == list(range(11, MAX_STEPS + 11))
        assert tail.take() == []


async def test_a_step_names_its_sequences_once_and_at_most_so_many(fleet: RunningFleet) -> None:
    worker = await fleet.add("decode", "d0")
    with fleet.shell.steps.watched() as tail, fleet.shell.steps.watched() as observer:
        say_step(worker, 1, [handle for handle in range(1000, 1050) for _ in range(2)])
        await until_noted(observer, 1)
        (step,) = tail.take()
    assert step.sequences == tuple(range(1000, 1000 + MAX_SEQUENCES))


async def test_waiting_requests_are_counted_by_their_class(fleet: RunningFleet) -> None:
    _, decode = await fleet.pair(max_num_seqs=1)
    decode.go.clear()
    calls = [asyncio.create_task(events_of(fleet.inference.Generate(request(3))))]
    await until(lambda: bool(decode.running))
    batch, standard = generation_pb2.SLO_CLASS_BATCH, generation_pb2.SLO_CLASS_STANDARD
    for slo_class in (batch, batch, standard):
        asked = request(3)
        asked.slo.slo_class = slo_class
        calls.append(asyncio.create_task(events_of(fleet.inference.Generate(asked))))
    snapshots = aiter(fleet.operators.Watch(fleet_pb2.WatchRequest(interval_ms=100)))
    while (queue := (await anext(snapshots)).queue).waiting_batch + queue.waiting_standard < 3:
        pass
    assert (queue.waiting_interactive, queue.waiting_standard, queue.waiting_batch) == (0, 1, 2)
    decode.go.set()
    await asyncio.gather(*calls)
    while (counters := (await anext(snapshots)).counters).finished < 4:
        pass
    assert counters.handed_over == 4
