"""Reads from a disk end once: when they are done, no longer wanted, or slower than computing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.core.commands import BlocksRead, Command
from engine.core.report import Reading, StepReport
from kvtransfer.tiers.block_files import BlockFiles
from tests.kvtransfer.tiers.driving import Driven, Gate, content_of, name_of, opened
from tests.patience import PATIENCE_S
from worker.handoff.read_side import ReadSide

LIMIT_S = 0.01


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Driven]:
    with opened(tmp_path) as made:
        for number in (1, 2, 3):
            made.put(number)
        yield made


def report(limit_s: float = PATIENCE_S) -> StepReport:
    return StepReport(reads=[Reading(7, (4, 5, 6), tuple(map(name_of, (1, 2, 3))), limit_s)])


async def test_blocks_are_read_into_their_places(tier: Driven) -> None:
    ended: asyncio.Queue[Command] = asyncio.Queue()
    ReadSide(tier, ended.put_nowait).on_report(report())
    async with asyncio.timeout(PATIENCE_S):
        assert await ended.get() == BlocksRead(7, 3)
    assert [bytes(tier.pool.block_bytes_view(block)) for block in (4, 5, 6)] == [*map(content_of, (1, 2, 3))]


@pytest.fixture
def second_block_hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The reader waits before the second block, and says so."""
    reached, go_on, real = threading.Event(), threading.Event(), BlockFiles.read

    def read(files: BlockFiles, block_hash: bytes, data: memoryview) -> None:
        if block_hash == name_of(2):
            reached.set()
            assert go_on.wait(PATIENCE_S)
        real(files, block_hash, data)

    monkeypatch.setattr(BlockFiles, "read", read)
    yield reached
    go_on.set()


async def test_a_read_that_takes_too_long_ends_with_what_has_come(
    tier: Driven, second_block_hangs: threading.Event
) -> None:
    ended: asyncio.Queue[Command] = asyncio.Queue()
    ReadSide(tier, ended.put_nowait).on_report(report(LIMIT_S))
    async with asyncio.timeout(PATIENCE_S):
        told = await ended.get()
    assert told in (BlocksRead(7, 0), BlocksRead(7, 1))
    assert ended.empty()


async def test_a_cancelled_read_ends_at_once(tier: Driven, second_block_hangs: threading.Event) -> None:
    ended: asyncio.Queue[Command] = asyncio.Queue()
    side = ReadSide(tier, ended.put_nowait)
    side.on_report(report())
    assert await asyncio.to_thread(second_block_hangs.wait, PATIENCE_S)
    side.cancel(7)
    assert ended.get_nowait() == BlocksRead(7, 1)
    side.cancel(7)
    side.close()
    assert ended.empty()


async def test_reads_end_with_the_worker(tier: Driven, second_block_hangs: threading.Event) -> None:
    ended: asyncio.Queue[Command] = asyncio.Queue()
    side = ReadSide(tier, ended.put_nowait)
    side.on_report(report())
    assert await asyncio.to_thread(second_block_hangs.wait, PATIENCE_S)
    side.close()
    assert ended.get_nowait() == BlocksRead(7, 1)


async def test_blocks_that_steps_still_use_are_not_written_to(tier: Driven) -> None:
    behind: Any = Gate()
    ended = asyncio.Queue[Command]()
    ReadSide(tier, ended.put_nowait).on_report(replace(report(), received_behind=behind))
    assert await asyncio.to_thread(behind.is_awaited.wait, PATIENCE_S)
    assert ended.empty()
    assert bytes(tier.pool.block_bytes_view(4)) != content_of(1)
    behind.reach()
    async with asyncio.timeout(PATIENCE_S):
        assert await ended.get() == BlocksRead(7, 3)
