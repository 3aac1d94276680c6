"""Workers whose stages are processes: the same streams as one process's, in any mix of layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import DEMO_MODEL
from tests.fleet.test_tensor_parallel import (
    EXACT,
    PROMPTS,
    SPLIT,
    WHOLE,
    assert_death_is_a_pause,
    assert_mixes_agree,
)

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
    await assert_mixes_agree(make_fleet, tmp_path, mixes, MORE_PROMPTS, of_two=STAGED)


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
    log = await assert_death_is_a_pause(make_fleet, both, struck)
    if struck == "follower":
        assert "--pipeline-parallel 2: its process of rank 1" in log
