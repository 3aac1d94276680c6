"""`baton bench` plays a trace of others to a live fleet, which finds the shared prefixes in its cache."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from baton import Finished, Stop
from benchmarks.__main__ import flags
from benchmarks.fleets.bench import bench
from benchmarks.fleets.load import recorded_jobs
from benchmarks.fleets.targets import reached
from sim.workloads.trace import TraceRequest
from tests.fleets import NewFleet
from tests.sim.workloads.formats.written import mooncake

pytestmark = pytest.mark.integration

SIZE = 128
"""Tokens of a block at a quarter of its length."""


async def test_a_trace_is_played_to_a_live_fleet(new_fleet: NewFleet, tmp_path: Path) -> None:
    turns = [
        TraceRequest(0.1 * turn, 512 * (turn + 1), 8, shared_blocks=tuple(range(turn + 1)))
        for turn in range(4)
    ]
    failed = TraceRequest(0.4, 0, 0)
    path, out = tmp_path / "conversation.gz", tmp_path / "out.json"
    path.write_bytes(gzip.compress("".join(mooncake([*turns, failed])).encode()))
    async with new_fleet(prefill=0, decode=1, timed="demo-cpu") as fleet:
        address = fleet.router_addresses[0]
        typed = ["bench", "--address", address, "--trace", str(path), "--scale", "0.25", "--speed", "2"]
        args = flags(["bench"]).parse_args([*typed, "--seeds", "1", "--json", str(out)])
        args.argv = typed[1:]
        assert await bench(args) == 0
        (run,) = json.loads(out.read_text())["runs"]
        assert run["summary"]["completed"] == run["summary"]["requests"] == len(turns)
        assert "requests left out, without a prompt or without an output: 1" in out.read_text()
        # A fifth turn finds the four blocks that the bench has sent.
        next_turn = TraceRequest(0.0, 5 * SIZE, 1, shared_blocks=(0, 1, 2, 3, 9), shared_block_tokens=SIZE)
        async with reached([address], "the fleet") as at:
            (job,) = recorded_jobs(at, [next_turn], 1)
            events = [event async for event in at.client.generate(job.token_ids, stop=Stop(max_tokens=1))]
    (finished,) = [event for event in events if isinstance(event, Finished)]
    assert finished.usage.cached_prompt_tokens == 4 * SIZE
