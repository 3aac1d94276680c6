"""An engine with a small pool, and tiers behind it with copies as a GPU's worker makes them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

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
from tests.patience import PATIENCE_S
from worker.engine.engine_thread import Inbox
from worker.handoff.tier_slots import TierSlots

SIZE, NUM_BLOCKS = 16, 9
PROMPT = [3 + place * 7 % 80 for place in range(90)]
OTHER = [5 + place * 11 % 80 for place in range(136)]
HASHES = hash_blocks(chain_root("model", b""), PROMPT, SIZE)[:5]


class Engine:
    """A model with a pool that one prompt fills, and copies of its blocks as a GPU's worker makes them."""

    def __init__(
        self,
        directory: Path,
        device: str,
        disk: Path | None,
        most_in_host: int,
        *,
        num_blocks: int = NUM_BLOCKS,
        overlaps: bool | None = None,
    ) -> None:
        model = load_model(directory, torch.float32, torch.device(device))
        self.pool = KVPool(model.block_layout(SIZE), num_blocks, model.device)
        settings = None if disk is None else DiskSettings(Folder(disk), 2**30, "model")
        self.tiers = Tiers(
            self.pool, most_in_host * self.pool.block_bytes, settings, partial(TierSlots, self.pool)
        )
        self.counts = Counter[tuple[Tier, str]]()
        self.tiers.start(self._count)
        assert self.tiers.wait_until_open(PATIENCE_S)
        self.blocks = BlockManager(num_blocks, SIZE, self.tiers)
        self.runner = ModelRunner(model, self.pool)
        self.loop = StepLoop(
            self.runner,
            self.pool.tensor,
            self.blocks,
            limits=EngineLimits(model.facts.vocab_size, model.facts.max_context, 16, 64, ()),
            fingerprint="model",
            detokenizer=None,
            policy=CHUNKED,
            cost=UNKNOWN_COST,
            overlaps=overlaps,
            tiers=self.tiers,
        )

    def ask(self, handle: int, prompt: Sequence[int], num_tokens: int = 6) -> tuple[list[int], int]:
        """Return the tokens behind a prompt, and how many of its own were not computed."""
        inbox, token_ids, cached = Inbox(), list[int](), 0

        def emit(told: StepReport) -> None:
            nonlocal cached
            rows = zip(told.tokens.handles, told.tokens.token_ids, strict=True)
            token_ids.extend(token_id for owner, token_id in rows if owner == handle)
            cached += sum(prefilled.cached_tokens for prefilled in told.prefilled)
            for reading in told.reads:
                inbox.put(BlocksRead(reading.handle, self.read(reading, told.received_behind)))
            if handle in told.freed:
                inbox.close()

        inbox.put(Decode(spec(handle, prompt, stop=StopRules(num_tokens, ignore_eos=True))))
        self.loop.run(inbox.drain, emit, lambda: inbox.is_closed)
        return token_ids, cached

    def read(self, reading: Reading, behind: Mark | None) -> int:
        """Read blocks for a sequence; return how many came."""
        ended = threading.Event()
        running = self.tiers.read(reading.blocks, reading.hashes, ended.set, behind)
        assert ended.wait(PATIENCE_S)
        return running.stop()

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
