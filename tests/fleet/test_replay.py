"""A replay of a live router's recording decides the same, action for action."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from baton import AsyncClient, Sampling, Slo, Stop, Tokens
from baton.errors import InvalidRequest, Refused
from baton.fleet import FleetSpec
from router.core.model.actions import Reject, Relay, RequestEnded, TellQuoted
from router.core.model.events import StepReported
from router.replay.replay import replay
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import TRIES, assert_all_is_freed, num_given_up

pytestmark = pytest.mark.integration


LENGTHS = range(1, 120, 17)
PROMPT_TOKENS = sum(LENGTHS) + 40 + 30 + 20
"""Prompt tokens computed below; the prompts have nothing in common, so none are cached."""


async def traffic(client: AsyncClient) -> None:
    """Plain, promised, quoted, refused, split into choices, and abandoned requests at once."""

    async def plain(length: int, n: int = 1, slo: Slo | None = None) -> None:
        sampling = Sampling(seed=length, n=n)
        stop = Stop(max_tokens=12, ignore_eos=True)
        await client.complete([3 + length % 90] * length, sampling=sampling, stop=stop, slo=slo)

    async def abandoned() -> None:
        async for event in client.generate([5] * 20, stop=Stop(max_tokens=200, ignore_eos=True)):
            if isinstance(event, Tokens):
                break

    async def quoted(length: int) -> None:
        await client.quote([3] * length, slo=Slo(ttft_ms=60_000))

    async def refused() -> None:
        with pytest.raises((Refused, InvalidRequest)):
            await plain(60, slo=Slo(ttft_ms=1, tpot_ms=1))

    await asyncio.gather(
        *(plain(length) for length in LENGTHS),
        *(quoted(length) for length in LENGTHS),
        plain(40, n=3),
        plain(30, slo=Slo(ttft_ms=60_000, tpot_ms=10_000)),
        refused(),
        abandoned(),
    )


async def test_a_live_routers_decisions_are_replayed_identically(
    tiny_llama: Path, run_dir: Path, make_fleet: MakeFleet
) -> None:
    for number in range(TRIES):
        chunks, num_lost = await replayed(tiny_llama, run_dir / str(number), make_fleet)
        if not num_lost:  # a worker that is starved for a second is given up, and its prompts computed again
            break
    assert sum(chunks) == PROMPT_TOKENS, "a step of a prompt is missing from the recording"


async def replayed(model: Path, run_dir: Path, make_fleet: MakeFleet) -> tuple[list[int], int]:
    """Record a router and replay what it decided; it has to be the same.

    Return the numbers of prompt tokens in its steps, and how often it gave a worker up.
    """
    recording = run_dir.parent / f"router-{run_dir.name}.jsonl"
    # Prompts of more than one chunk: their first steps bring no token.
    small_steps = ["--token-budget", "64", "--max-num-seqs", "32"]
    extra = {"router": ["--record", str(recording)], "prefill": small_steps, "decode": small_steps}
    spec = FleetSpec(model=model, run_dir=run_dir, extra_args=extra)
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        await traffic(client)
        await assert_all_is_freed(fleet, client)
        num_lost = num_given_up(fleet)
    with recording.open() as lines:
        decided = list(replay(lines))
    different = [entry.recorded for entry in decided if not entry.identical]
    assert not different, different[0]
    kinds = {type(action) for entry in decided for action in entry.actions}
    assert kinds >= {Relay, RequestEnded, Reject, TellQuoted}, "the run did too little to prove anything"
    chunks = [
        event.shape.num_tokens - event.shape.num_decodes
        for entry in decided
        if isinstance(event := entry.recorded.event, StepReported) and event.shape is not None
    ]
    return chunks, num_lost
