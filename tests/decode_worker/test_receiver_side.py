"""The engine is answered exactly once for every receive, and never while a copy may still run."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator

import pytest
import torch

from decode_worker.receiver_side import ReceiverSide
from engine.core.commands import Cancel, Command, KVArrived, KVFailed
from engine.core.report import Load, Received, StepReport
from engine.device import mark_steps
from kvtransfer.errors import PeerLostError, SequenceFinishedError
from kvtransfer.receiver_handoff import ReceiveResult
from scheduling.columns import TokenColumns
from tests.patience import PATIENCE_S
from tests.worker.client import spec_of
from tests.worker.handoff.scripted_receiver import ScriptedReceiver
from worker.commands import ReceiveFrom
from worker.metrics import WorkerMetrics

LOAD = Load(1, 0, 0, 0, 8, 0, 0)
BEHIND = mark_steps(torch.device("cpu"))
RESULT = ReceiveResult(
    num_verified_blocks=3,
    num_corrupt_blocks=1,
    num_bytes=64,
    transport="shm",
    first_tokens=TokenColumns(token_ids=[5]),
    total_s=0.2,
    exposed_s=0.1,
)


class Scene:
    def __init__(self) -> None:
        self.engine: list[Command] = []
        self.receiver = ScriptedReceiver()
        self.metrics = WorkerMetrics()
        self.side = ReceiverSide(self.receiver, self.engine.append, self.metrics)

    def begin(self, handle: int) -> None:
        spec = dataclasses.replace(spec_of(range(6), source="source", target="me"), handle=handle)
        self.side.begin(ReceiveFrom(spec, source_address="host:1"))

    def set_aside(self, handle: int) -> None:
        received = Received(handle, (4, 5, 6), (b"a", b"b", b"c"), num_held=1)
        self.side.on_report(StepReport(load=LOAD, received=[received], received_behind=BEHIND))

    async def until_answered(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self.engine:
                await asyncio.sleep(0)

    def outcomes(self, outcome: str) -> float | None:
        return self.metrics.registry.get_sample_value("baton_kv_handoffs_total", {"outcome": outcome})


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    made.receiver.copies_ended.set()
    await made.side.close()


async def test_blocks_set_aside_are_fetched_and_the_engine_is_told(scene: Scene) -> None:
    scene.begin(1)
    scene.set_aside(1)
    scene.receiver.answer.set_result(RESULT)
    await scene.until_answered()
    assert scene.engine == [KVArrived(1, 3, RESULT.first_tokens, first_token_age_s=RESULT.exposed_s)]
    [task] = scene.receiver.tasks
    assert (task.blocks, task.num_held, task.source_address) == ((4, 5, 6), 1, "host:1")
    assert task.behind is BEHIND, "a step that used the blocks before may still be under way"
    assert scene.outcomes("corrupt") == 1
    assert scene.metrics.registry.get_sample_value("baton_kv_blocks_corrupt_total") == 1
    assert scene.metrics.registry.get_sample_value("baton_kv_blocks_skipped_total") == 1
    assert scene.metrics.registry.get_sample_value("baton_kv_bytes_total", {"transport": "shm"}) == 64


async def test_what_a_handoff_keeps_a_client_waiting_for_is_never_hidden(scene: Scene) -> None:
    scene.begin(1)
    scene.set_aside(1)
    scene.receiver.answer.set_result(RESULT)
    await scene.until_answered()
    told = {
        name: scene.metrics.registry.get_sample_value(f"baton_kv_{name}_seconds_sum")
        for name in ("handoff", "handoff_exposed")
    }
    assert told == {"handoff": RESULT.total_s, "handoff_exposed": RESULT.exposed_s}


async def test_a_lost_sender_fails_the_sequence(scene: Scene) -> None:
    scene.begin(1)
    scene.set_aside(1)
    scene.receiver.answer.set_exception(PeerLostError("host:1", "gone"))
    await scene.until_answered()
    assert scene.engine == [KVFailed(1, "lost host:1: gone")]
    assert scene.outcomes("sender_lost") == 1


async def test_a_sequence_that_ended_with_its_first_token_is_no_failure(scene: Scene) -> None:
    scene.begin(1)
    scene.set_aside(1)
    scene.receiver.answer.set_exception(SequenceFinishedError("finished"))
    await scene.until_answered()
    await asyncio.sleep(0)
    assert scene.engine == [Cancel(1), KVFailed(1, "finished")]
    assert scene.outcomes("finished") == 1


async def test_a_bug_fails_the_sequence_and_is_counted(scene: Scene) -> None:
    scene.begin(1)
    scene.set_aside(1)
    scene.receiver.answer.set_exception(ZeroDivisionError("oops"))
    await scene.until_answered()
    assert scene.engine == [KVFailed(1, "ZeroDivisionError: oops")]
    assert scene.metrics.registry.get_sample_value("baton_loop_errors_total", {"where": "receive"}) == 1


async def test_a_cancelled_receive_is_answered_when_its_copies_have_ended(scene: Scene) -> None:
    scene.begin(1)
    scene.set_aside(1)
    while not scene.receiver.tasks:
        await asyncio.sleep(0)
    scene.side.cancel(1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert scene.engine == [], "answered while a copy ran"
    scene.receiver.copies_ended.set()
    await scene.until_answered()
    assert scene.engine == [KVFailed(1, "cancelled")]


async def test_a_receive_cancelled_before_it_began_to_run_is_answered_too(scene: Scene) -> None:
    scene.begin(1)
    scene.set_aside(1)
    scene.side.cancel(1)
    await scene.until_answered()
    assert scene.engine == [KVFailed(1, "cancelled")]
    assert scene.receiver.tasks == []


async def test_blocks_set_aside_after_the_cancellation_are_given_back(scene: Scene) -> None:
    scene.begin(1)
    scene.side.cancel(1)
    scene.set_aside(1)
    assert scene.engine == [KVFailed(1, "cancelled")]


async def test_a_sequence_the_engine_refused_is_forgotten(scene: Scene) -> None:
    scene.begin(1)
    scene.side.on_report(StepReport(load=LOAD, freed=[1]))
    scene.side.cancel(1)
    await scene.side.close()
    assert scene.engine == []


async def test_closing_waits_for_copies_and_answers(scene: Scene) -> None:
    scene.begin(1)
    scene.set_aside(1)
    while not scene.receiver.tasks:
        await asyncio.sleep(0)
    closing = asyncio.create_task(scene.side.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not closing.done()
    scene.receiver.copies_ended.set()
    await closing
    await scene.until_answered()
    assert scene.engine == [KVFailed(1, "cancelled")]
