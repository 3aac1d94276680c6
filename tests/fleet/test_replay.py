"""What a live router decided is decided again, action for action, from the recording of what it was told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient, Sampling, Slo, Stop, Tokens
from baton.errors import InvalidRequest, Refused
from baton.fleet import Fleet, FleetSpec
from router.actions import Reject, Relay, RequestEnded
from router.replay import replay
from tests.fleet.driving import assert_all_is_freed

pytestmark = pytest.mark.integration


async def traffic(client: AsyncClient) -> None:
    """Plain, promised, refused, split into choices, and abandoned requests at once."""

    async def plain(length: int, n: int = 1, slo: Slo | None = None) -> None:
        sampling = Sampling(seed=length, n=n)
        stop = Stop(max_tokens=12, ignore_eos=True)
        await client.complete([3 + length % 90] * length, sampling=sampling, stop=stop, slo=slo)

    async def abandoned() -> None:
        async for event in client.generate([5] * 20, stop=Stop(max_tokens=200, ignore_eos=True)):
            if isinstance(event, Tokens):
                break

    async def refused() -> None:
        with pytest.raises((Refused, InvalidRequest)):
            await plain(60, slo=Slo(ttft_ms=1, tpot_ms=1))

    await asyncio.gather(
        *(plain(length) for length in range(1, 120, 17)),
        plain(40, n=3),
        plain(30, slo=Slo(ttft_ms=60_000, tpot_ms=10_000)),
        refused(),
        abandoned(),
    )


async def test_a_live_routers_decisions_are_replayed_identically(tiny_llama: Path, run_dir: Path) -> None:
    recording = run_dir.parent / "router.jsonl"
    spec = FleetSpec(model=tiny_llama, run_dir=run_dir, extra_args={"router": ["--record", str(recording)]})
    async with Fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        await traffic(client)
        await assert_all_is_freed(fleet, client)
    with recording.open() as lines:
        decided = list(replay(lines))
    different = [one.recorded for one in decided if not one.identical]
    assert not different, different[0]
    kinds = {type(action) for one in decided for action in one.actions}
    assert kinds >= {Relay, RequestEnded, Reject}, "the run did too little to prove anything"
