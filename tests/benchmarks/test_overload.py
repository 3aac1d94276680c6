"""The comparison under twice the load counts as good what kept its limits, of all that was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.doors.arms import Run
from benchmarks.peers import overload
from benchmarks.peers.overload import LOADS, Found, Limits, play, section_of, told

LIMITS = Limits(ttft_ms=100.0, tpot_ms=10.0)
STREAM = b'HTTP/1.1 200 OK\r\n\r\ndata: {}\n\ndata: {"usage": {"completion_tokens": %d}}\n\r\n0\r\n\r\n'


@asynccontextmanager
async def server() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that takes, rejects and fails requests in turns; yield its address and what was sent."""
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length: ")[2].partition(b"\r")[0]
        bodies.append(await reader.readexactly(int(length)))
        turn = len(bodies) % 3
        errors = {1: b"HTTP/1.1 503 Service Unavailable\r\n\r\n", 2: b"HTTP/1.1 500 Broken\r\n\r\n"}
        writer.write(errors.get(turn, STREAM % overload.NUM_TOKENS))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield "{}:{}".format(*listening.sockets[0].getsockname()), bodies


@pytest.mark.parametrize("limits", [LIMITS, None])
async def test_a_run_counts_every_request_once(
    monkeypatch: pytest.MonkeyPatch, limits: Limits | None
) -> None:
    monkeypatch.setattr(overload, "SECONDS", 1.0)
    async with server() as (address, bodies):
        run = await play(told({}, address, limits), 30.0, 1)
    assert run.num_requests == len(bodies) > 3
    assert len(run.rejected_after_ms) == (len(bodies) + 2) // 3
    assert len(run.failed) == (len(bodies) + 1) // 3
    assert len(run.ttft_ms) == len(run.tpot_ms) == len(bodies) // 3
    assert all((b'"slo": {"ttft_ms": 100, "tpot_ms": 10}' in body) == bool(limits) for body in bodies)
    assert len({body.partition(b'"prompt"')[2] for body in bodies}) == len(bodies)


def test_a_good_request_keeps_both_limits() -> None:
    run = Run(
        ttft_ms=[100.0, 100.1, 9.0, 9.0],
        tpot_ms=[10.0, 1.0, 10.1, 1.0],
        rejected_after_ms=[5.0],
        failed=["x"],
    )
    assert LIMITS.num_good(run) == 2
    assert LIMITS.good_share(run) == pytest.approx(2 / 6)
    assert LIMITS.kept_share(run) == pytest.approx(2 / 5)


def test_the_peak_is_the_best_up_to_the_capacity() -> None:
    found = Found(LIMITS, 10.0)
    for load, number in zip(LOADS, (8, 4, 6), strict=True):
        run = Run(ttft_ms=[1.0] * number, tpot_ms=[1.0] * number, rejected_after_ms=[3.0], failed=["x"])
        found.runs[load].append(run)
    assert found.of_peak() == [pytest.approx(6 / 8)]
    told = section_of({"any": found}, "note").markdown()
    assert "| any | 100.0 | 10.0 | 10.0 | 0.75 |" in told
    assert "| any | 2 | 20.0 | 0.3 | 85.7 | 12 | 3 | 1 | 1 |" in told
