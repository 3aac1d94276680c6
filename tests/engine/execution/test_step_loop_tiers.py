"""Blocks of a real model that leave the pool for host memory come back as they were, on every device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.core.commands import Decode
from scheduling.memory.tiers import Tier
from scheduling.request import StopRules
from tests.engine.execution.tiered_engine import HASHES, OTHER, PROMPT, SIZE, Engine
from tests.engine.loop_driver import spec
from tests.engine.no_waiting import no_waiting
from tests.model_zoo import build
from tests.patience import PATIENCE_S

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("has_disk", "most_in_host"), [(False, 20), (True, 0), (True, 2)])
def test_a_prefix_that_left_the_device_comes_back_bit_for_bit(
    directory: Path, tmp_path: Path, device: str, has_disk: bool, most_in_host: int
) -> None:
    engine = Engine(directory, device, tmp_path if has_disk else None, most_in_host)
    tokens, _ = engine.ask(1, PROMPT)
    before = engine.content()
    engine.push_out()
    assert engine.ask(3, PROMPT) == (tokens, len(HASHES) * SIZE)
    assert torch.equal(engine.content(), before)
    if has_disk:
        assert engine.counts[Tier.DISK, "read"] > 0
    engine.loop.check_integrity()
    engine.tiers.close([], PATIENCE_S)


@pytest.mark.parametrize("device", DEVICES)
def test_behind_a_damaged_block_the_prompt_is_computed(directory: Path, device: str) -> None:
    engine = Engine(directory, device, None, 20)
    tokens, _ = engine.ask(1, PROMPT)
    engine.push_out()
    slot = engine.tiers._memory.find(HASHES[2])
    assert slot is not None
    engine.tiers._memory.data(slot)[7] ^= 1
    assert engine.ask(3, PROMPT) == (tokens, 2 * SIZE)
    assert engine.counts[Tier.HOST, "refused"] == 1
    engine.tiers.close([], PATIENCE_S)


@pytest.mark.gpu
def test_no_turn_waits_for_blocks_that_leave_the_device(directory: Path) -> None:
    engine = Engine(directory, "cuda", None, 20)
    engine.ask(1, OTHER)
    command = Decode(spec(2, [4] * 10, stop=StopRules(60, ignore_eos=True)))
    engine.loop.turn([command], lambda _: None)
    for _ in range(3):
        engine.loop.turn([], lambda _: None)
    num_kept = engine.counts[Tier.HOST, "kept"]
    with no_waiting():
        for _ in range(40):
            engine.loop.turn([], lambda _: None)
    assert engine.counts[Tier.HOST, "kept"] > num_kept
    engine.tiers.close([], PATIENCE_S)
