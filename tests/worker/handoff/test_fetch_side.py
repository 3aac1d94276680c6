"""Fetches from other workers end once, and the link is measured by those that show how fast it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import torch

from engine.core.commands import BlocksRead, Command
from engine.core.report import Reading, StepReport
from engine.device import mark_steps
from kvtransfer.errors import PeerLostError, SenderAbortedError
from kvtransfer.receiver_handoff import Borrowed
from kvtransfer.receiving.links import Links
from scheduling.request import PrefixSource
from tests.patience import PATIENCE_S
from tests.worker.handoff.scripted_receiver import ScriptedReceiver
from worker.handoff.fetch_side import FetchSide
from worker.metrics import WorkerMetrics

BEHIND = mark_steps(torch.device("cpu"))
SOURCE = PrefixSource("host:1", "lender", 5)
WHOLE = Borrowed(3, 0, 0.01, "shm", None)


class Scene:
    def __init__(self) -> None:
        self.engine: asyncio.Queue[Command] = asyncio.Queue()
        self.receiver = ScriptedReceiver()
        self.links = Links(32)
        self.metrics = WorkerMetrics()
        self.side = FetchSide(self.receiver, self.links, "me", self.engine.put_nowait, self.metrics)

    def report(self, handle: int = 7) -> None:
        reading = Reading(handle, (4, 5, 6), (b"a", b"b", b"c"), 2.0, SOURCE)
        on_disk = Reading(99, (1,), (b"d",), 2.0)
        self.side.on_report(StepReport(reads=[on_disk, reading], received_behind=BEHIND))

    async def told(self) -> Command:
        async with asyncio.timeout(PATIENCE_S):
            return await self.engine.get()

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"baton_kv_{name}_total", labels)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    made.receiver.copies_ended.set()
    await made.side.close()
    assert made.engine.empty(), "the engine is answered once"


async def test_blocks_are_borrowed_for_as_long_as_that_pays(scene: Scene) -> None:
    scene.report()
    scene.receiver.answer.set_result(WHOLE)
    assert await scene.told() == BlocksRead(7, 3)
    (task,) = scene.receiver.tasks
    assert (task.blocks, task.hashes, task.borrows_s) == ((4, 5, 6), (b"a", b"b", b"c"), 2.0)
    assert (task.source_address, task.fence.source_incarnation) == ("host:1", "lender")
    assert task.behind is BEHIND, "a step that used the blocks before may still be under way"
    assert scene.value("prefix_fetches", outcome="completed") == 1
    assert scene.value("prefix_blocks_fetched") == 3
    assert scene.value("bytes", transport="shm") == 3 * 32
    assert "lender" in scene.links.state().by_source


async def test_each_loan_has_a_fence_of_its_own(scene: Scene) -> None:
    scene.report(7)
    scene.report(8)
    scene.receiver.answer.set_result(WHOLE)
    assert {(await scene.told()), (await scene.told())} == {BlocksRead(7, 3), BlocksRead(8, 3)}
    first, second = scene.receiver.tasks
    assert first.fence != second.fence


@pytest.mark.parametrize(
    ("borrowed", "outcome", "is_measured"),
    [
        (Borrowed(2, 0, 0.01, "shm", None), "shortened", True),
        (Borrowed(1, 1, 0.01, "shm", None), "corrupt", True),
        (Borrowed(1, 0, 0.01, "shm", TimeoutError()), "timed_out", True),
        (Borrowed(0, 0, 0.01, "", SenderAbortedError("evicted")), "refused", False),
        (Borrowed(1, 0, 0.01, "grpc", PeerLostError("host:1", "killed")), "sender_lost", False),
    ],
)
async def test_what_came_counts_whatever_ended_the_fetch(
    scene: Scene, borrowed: Borrowed, outcome: str, is_measured: bool
) -> None:
    scene.report()
    scene.receiver.answer.set_result(borrowed)
    assert await scene.told() == BlocksRead(7, borrowed.num_blocks, failed=True)
    assert scene.value("prefix_fetches", outcome=outcome) == 1
    assert ("lender" in scene.links.state().by_source) is is_measured


async def test_a_cancelled_fetch_ends_when_nothing_writes_any_more(scene: Scene) -> None:
    scene.report()
    await asyncio.sleep(0)
    scene.side.cancel(7)
    scene.side.cancel(8)
    await asyncio.sleep(0)
    assert scene.engine.empty()
    scene.receiver.copies_ended.set()
    assert await scene.told() == BlocksRead(7, 0)


async def test_a_fetch_that_is_cancelled_before_it_begins_ends_too(scene: Scene) -> None:
    scene.report()
    scene.side.cancel(7)
    assert await scene.told() == BlocksRead(7, 0)


async def test_a_bug_costs_the_prefix_and_is_counted(scene: Scene) -> None:
    scene.report()
    scene.receiver.answer.set_exception(ZeroDivisionError("oops"))
    assert await scene.told() == BlocksRead(7, 0, failed=True)
    assert scene.metrics.registry.get_sample_value("baton_loop_errors_total", {"where": "fetch"}) == 1
