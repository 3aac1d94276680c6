"""A strike counts the streams that are whole, and those that changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from benchmarks.doors.http import HttpError
from benchmarks.peers import strikes
from benchmarks.peers.strikes import BEGUN, Survival, play, section_of, survive
from benchmarks.peers.struck import STRIKES, Struck

PIECES = 2 * BEGUN


class Scripted:
    """Streams that go on, change or break once they are struck, and a stream that stands still."""

    def __init__(self, *, breaks: int = -1, changes: int = -1) -> None:
        self.is_struck = False
        self._breaks, self._changes = breaks, changes

    async def stream(self, index: int) -> AsyncGenerator[str, None]:
        for place in range(PIECES):
            if self.is_struck and index == self._breaks:
                raise HttpError(0, "cut")
            yield "other " if self.is_struck and index == self._changes else f"{index}:{place} "

    async def strike(self) -> None:
        self.is_struck = True


def struck(scripted: Scripted, *, is_deterministic: bool = True) -> Struck:
    return Struck(scripted.stream, scripted.strike, is_deterministic)


@pytest.mark.asyncio
async def test_undisturbed_streams_are_whole_and_equal() -> None:
    found = await survive(struck(Scripted()), 4)
    assert (found.whole, found.changed, found.errors) == (4, 0, ())


@pytest.mark.asyncio
async def test_a_broken_stream_is_not_whole_and_is_named() -> None:
    found = await survive(struck(Scripted(breaks=3)), 4)
    assert (found.whole, found.changed, found.errors) == (3, 0, ("HttpError: cut",))


@pytest.mark.asyncio
async def test_a_changed_stream_is_whole_and_counted() -> None:
    found = await survive(struck(Scripted(changes=3)), 4)
    assert (found.whole, found.changed) == (4, 1)


@pytest.mark.asyncio
async def test_random_outputs_are_not_compared() -> None:
    found = await survive(struck(Scripted(changes=3), is_deterministic=False), 4)
    assert (found.whole, found.changed) == (4, None)


@pytest.mark.asyncio
async def test_a_stream_that_stands_still_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strikes, "LIMIT_S", 0.2)
    hangs = HangsOnceStruck()
    first, second = await play(hangs.stream, 2, hangs.strike)
    assert (first.error, second.error) == ("", "not whole after 0.2 s")


class HangsOnceStruck(Scripted):
    async def stream(self, index: int) -> AsyncGenerator[str, None]:
        async for piece in super().stream(index):
            yield piece
            if self.is_struck and index == 1:
                await asyncio.Event().wait()


def test_rows_tell_random_outputs_from_unchanged_ones() -> None:
    ok, broken, unknown = Survival(16, 0, 0.1, ()), Survival(0, 0, 0.0, ("cut",)), Survival(16, None, 0.2, ())
    table = section_of(16, {STRIKES[0]: [ok], STRIKES[1]: [broken], STRIKES[4]: [unknown]}, "note").markdown()
    assert "| worker killed | Baton, gRPC | 16 | 0 | 0.10 |" in table
    assert "| worker stopped | Baton, gRPC | 0 | - | - |" in table
    assert "| worker killed | Dynamo, HTTP | 16 | random | 0.20 |" in table
