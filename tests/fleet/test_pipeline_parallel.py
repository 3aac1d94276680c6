"""Workers whose stages are processes: the same streams as one process's, in any mix of layouts."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import DEMO_MODEL, assert_all_is_freed, children_of, greedy, metric
from tests.fleet.test_tensor_parallel import (
    EXACT,
    PROMPTS,
    SAMPLING,
    SPLIT,
    STOP,
    WHOLE,
    running,
    spec,
    struck_stream,
)
from worker.errors import EXIT_GROUP

pytestmark = pytest.mark.integration

STAGED = (*EXACT, "--pipeline-parallel", "2")
MORE_PROMPTS = [*PROMPTS, *([5 + (i * step) % 83 for i in range(20 + step)] for step in (2, 9, 11))]


async def test_every_mix_of_layouts_gives_the_same_tokens(make_fleet: MakeFleet, tmp_path: Path) -> None:
    mixes = {
        "whole": (None, WHOLE),
        "staged": (None, STAGED),
        "staged-whole": (STAGED, WHOLE),
        "whole-staged": (WHOLE, STAGED),
        "split-staged": (SPLIT, STAGED),
    }
    answers = {}
    for name, (prefill, decode) in mixes.items():
        async with running(make_fleet, spec(tmp_path / name, prefill=prefill, decode=decode)) as (
            fleet,
            client,
        ):
            assert len(children_of(fleet.process("decode-0").pid)) == (decode is STAGED)
            answers[name] = await greedy(client, MORE_PROMPTS, 24)
            await assert_all_is_freed(fleet, client)
            if prefill is not None:
                assert await metric(fleet, "decode-0", "baton_kv_handoffs_total") >= len(MORE_PROMPTS)
    for name in mixes:
        for answer, expected in zip(answers[name], answers["whole"], strict=True):
            assert answer.token_ids == expected.token_ids, name
            assert answer.logprobs == pytest.approx(expected.logprobs, rel=0, abs=1e-9), name


@pytest.mark.parametrize("struck", ["leader", "follower"])
async def test_a_death_in_a_pipeline_is_a_pause(struck: str, make_fleet: MakeFleet, run_dir: Path) -> None:
    both = FleetSpec(
        model=DEMO_MODEL,
        prefill=0,
        decode=2,
        placement="aggregated",
        pipeline_parallel=2,
        extra_args={"decode": EXACT},
        run_dir=run_dir,
    )
    async with running(make_fleet, both) as (fleet, client):
        expected = await client.complete(PROMPTS[0], sampling=SAMPLING, stop=STOP)
        received, worker = await struck_stream(fleet, client, struck)
        assert tuple(received) == expected.choices[0].token_ids
        await asyncio.wait_for(fleet.process(worker).wait(), 60)
        code = fleet.process(worker).exit_code
        assert code == (EXIT_GROUP if struck == "follower" else -signal.SIGKILL)
        if struck == "follower":
            log = fleet.process(worker).log_path.read_text()
            assert "--pipeline-parallel 2: its process of rank 1" in log
            assert "was killed by SIGKILL; this worker cannot go on without it" in log
