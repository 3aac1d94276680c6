"""Workers whose stages are processes: the same streams as one process's, in any mix of layouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.test_tensor_parallel import (
    EXACT,
    PROMPTS,
    SAMPLING,
    SPLIT,
    WHOLE,
    assert_deaths_are_pauses,
    assert_mixes_agree,
)
from tests.fleets import DEMO_MODEL

pytestmark = pytest.mark.integration

STAGED = (*EXACT, "--pipeline-parallel", "2")
BOTH = (*STAGED, "--tensor-parallel", "2")
MORE_PROMPTS = [*PROMPTS, *([5 + (i * step) % 83 for i in range(20 + step)] for step in (2, 9, 11))]


@pytest.mark.long
async def test_every_mix_of_layouts_gives_the_same_tokens(make_fleet: MakeFleet, tmp_path: Path) -> None:
    mixes = {
        "whole": (None, WHOLE),
        "staged": (None, STAGED),
        "staged-whole": (STAGED, WHOLE),
        "both-staged": (BOTH, STAGED),
        "split-both": (SPLIT, BOTH),
    }
    num_followers = {STAGED: 1, BOTH: 3}
    await assert_mixes_agree(make_fleet, tmp_path, mixes, MORE_PROMPTS, num_followers=num_followers)


async def test_the_death_of_each_kind_of_process_is_a_pause(make_fleet: MakeFleet, run_dir: Path) -> None:
    """Rank 1 is the other part of the leader's stage, and rank 2 the first part of the second one.

    Of a few tokens three often follow each other again, so that steps in flight have drafts.
    """
    both = FleetSpec(
        model=DEMO_MODEL,
        prefill=0,
        decode=2,
        placement="aggregated",
        tensor_parallel=2,
        pipeline_parallel=2,
        speculate="lookup",
        extra_args={"decode": EXACT},
        run_dir=run_dir,
    )
    flags = "--tensor-parallel 2 --pipeline-parallel 2"
    # Four processes may have only two cores, and then take turns in every layer.
    few = replace(SAMPLING, temperature=2.0, allowed_token_ids=(5, 6, 7, 8))
    await assert_deaths_are_pauses(
        make_fleet, both, ranks=(1, 2, 0), flags=flags, num_tokens=220, sampling=few
    )
