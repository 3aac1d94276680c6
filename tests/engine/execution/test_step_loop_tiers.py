"""Blocks of a real model that leave the pool for host memory come back as they were, on every device."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.core.admission import EngineLimits
from engine.core.commands import BlocksRead, Decode
from engine.core.memory.block_manager import BlockManager
from engine.core.report import Mark, Reading, StepReport
from engine.execution.model_runner import ModelRunner
from engine.execution.step_loop import StepLoop
from engine.kv.kv_pool import KVPool
from engine.model.model import load_model
from kvtransfer.tiers.disk import DiskSettings
from kvtransfer.tiers.folder import Folder
from kvtransfer.tiers.tiers import Tiers
from scheduling.memory.block_hash import chain_root, hash_blocks
from scheduling.memory.tiers import Tier
from scheduling.policies.chunked import CHUNKED
from scheduling.request import StopRules
from tests.engine.loop_driver import UNKNOWN_COST, spec
from tests.engine.no_waiting import no_waiting
from tests.model_zoo import build
from tests.patience import PATIENCE_S
from worker.engine_thread import Inbox
from worker.handoff.tier_slots import TierSlots

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SIZE, NUM_BLOCKS = 16, 9
PROMPT = [3 + place * 7 % 80 for place in range(90)]
OTHER = [5 + place * 11 % 80 for place in range(136)]
HASHES = hash_blocks(chain_root("model", b""), PROMPT, SIZE)[:5]


class Engine:
    """A model with a pool that one prompt fills, and copies of its blocks as a GPU's worker makes them."""

    def __init__(self, directory: Path, device: str, disk: Path | None, most_in_host: int) -> None:
        model = load_model(directory, torch.float32, torch.device(device))
        self.pool = KVPool(model.block_layout(SIZE), NUM_BLOCKS, model.device)
        settings = None if disk is None else DiskSettings(Folder(disk), 2**30, "model")
        self.tiers = Tiers(
            self.pool, most_in_host * self.pool.block_bytes, settings, partial(TierSlots, self.pool)
        )
        self.counts = Counter[tuple[Tier, str]]()
        self.tiers.start(self._count)
        assert self.tiers.wait_until_open(PATIENCE_S)
        self.blocks = BlockManager(NUM_BLOCKS, SIZE, self.tiers)
        self.loop = StepLoop(
            ModelRunner(model, self.pool),
            self.pool.tensor,
            self.blocks,
            limits=EngineLimits(model.facts.vocab_size, model.facts.max_context, 16, 64, ()),
            fingerprint="model",
            detokenizer=None,
            policy=CHUNKED,
            cost=UNKNOWN_COST,
            tiers=self.tiers,
        )

    def ask(self, handle: int, prompt: Sequence[int], num_tokens: int = 6) -> tuple[list[int], int]:
        """Return the tokens behind a prompt, and how many of its own were not computed."""
        inbox, token_ids, cached = Inbox(), list[int](), 0

        def read(reading: Reading, behind: Mark | None) -> None:
            ended = threading.Event()
            running = self.tiers.read(reading.blocks, reading.hashes, ended.set, behind)
            assert ended.wait(PATIENCE_S)
            inbox.put(BlocksRead(reading.handle, running.stop()))

        def emit(told: StepReport) -> None:
            nonlocal cached
            token_ids.extend(told.tokens.token_ids)
            cached += sum(prefilled.cached_tokens for prefilled in told.prefilled)
            for reading in told.reads:
                read(reading, told.received_behind)
            if told.freed:
                inbox.close()

        inbox.put(Decode(spec(handle, prompt, stop=StopRules(num_tokens, ignore_eos=True))))
        self.loop.run(inbox.drain, emit, lambda: inbox.is_closed)
        return token_ids, cached

    def content(self) -> Tensor:
        """Return the bytes of the prompt's full blocks in the pool, [blocks, bytes]."""
        found = [self.blocks.find(block_hash) for block_hash in HASHES]
        places = [block for block in found if block is not None]
        assert len(places) == len(HASHES)
        return self.pool.tensor[places].flatten(1).view(torch.uint8).cpu()

    def push_out(self) -> None:
        """Let another prompt take the place of the first one, whose blocks are where they belong then."""
        self.ask(2, OTHER)
        assert all(self.blocks.find(block_hash) is None for block_hash in HASHES)
        assert self.tiers.wait_until_written(PATIENCE_S)

    def _count(self, tier: Tier, outcome: str, num_blocks: int, _: int) -> None:
        self.counts[tier, outcome] += num_blocks


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
