"""A step loop over a real model, for tests that compare its tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from tokenizers import Tokenizer

from engine.core.adapters import AdapterSlots
from engine.core.admission import EngineLimits
from engine.core.commands import Command
from engine.core.memory.block_manager import BlockManager
from engine.core.report import StepReport
from engine.execution.draft_model import DraftEngine
from engine.execution.model_runner import ModelRunner
from engine.execution.stages import Stages
from engine.execution.step_loop import StepLoop
from engine.kv.kv_pool import KVPool
from engine.model.model import Model
from model_output.text.detokenizer import Detokenizer
from scheduling.cost_model import CostModel
from scheduling.policies.chunked import CHUNKED
from tests.engine.loop_driver import CHEAP_DRAFTS, UNKNOWN_COST

SIZE, NUM_BLOCKS = 4, 96


class Engine:
    """A step loop over a real model, run until it idles."""

    def __init__(
        self,
        model: Model,
        token_budget: int = 64,
        *,
        num_blocks: int = NUM_BLOCKS,
        cost: CostModel = UNKNOWN_COST,
        stored: torch.dtype | None = None,
        speculates: bool = False,
        draft: Model | None = None,
        adapters: AdapterSlots | None = None,
        runner: ModelRunner | None = None,
        stages: Stages | None = None,
        on_allocated: Callable[[int], None] | None = None,
    ) -> None:
        """`adapters` are by default those that the model was loaded with.

        With a `draft` model, whose steps are taken to cost next to nothing. The `runner` of a group computes
        with its other processes, and comes with its pool.
        """
        model = replace(model, stored=stored)
        if runner is None:
            runner = ModelRunner(model, KVPool(model.block_layout(SIZE), num_blocks))
        self.pool, num_blocks = runner.pool, runner.pool.num_blocks
        self.blocks = BlockManager(num_blocks, SIZE, None, on_allocated)
        facts = model.facts
        limits = EngineLimits(facts.vocab_size, facts.max_context, 16, token_budget, facts.eos_token_ids)
        detokenizer = Detokenizer(Tokenizer.from_file(str(facts.tokenizer_path)))
        self.loop = StepLoop(
            runner,
            self.pool.tensor,
            self.blocks,
            limits=limits,
            fingerprint="model",
            detokenizer=detokenizer,
            policy=CHUNKED,
            cost=cost,
            num_swap_blocks=100,
            deterministic=model.is_deterministic,
            speculates=speculates,
            draft_model=None if draft is None else _draft_engine(draft, num_blocks),
            stages=stages,
            adapters=adapters or _fixed_adapters(model),
        )
        self.reports: list[StepReport] = []

    def finish(self, *commands: Command) -> None:
        inbox = [list(commands)]
        is_done = False

        def drain(timeout_s: float) -> list[Command]:
            nonlocal is_done
            is_done = timeout_s == math.inf and not inbox
            return inbox.pop() if inbox else []

        self.loop.run(drain, self.reports.append, lambda: is_done)

    def text(self, handle: int, choice: int = 0) -> str:
        parts = []
        for columns in (report.tokens for report in self.reports):
            begin = 0
            for row, length in enumerate(columns.text_lengths):
                if (columns.handles[row], columns.choices[row]) == (handle, choice):
                    parts.append(columns.text_utf8[begin : begin + length])
                begin += length
        return b"".join(parts).decode()

    def logprobs(self, handle: int) -> list[float]:
        columns = [report.tokens for report in self.reports]
        return [
            logprob
            for c in columns
            for row, logprob in zip(c.logprob_rows, c.logprobs, strict=True)
            if c.handles[row] == handle
        ]

    def tokens(self, handle: int, choice: int = 0) -> list[int]:
        columns = [report.tokens for report in self.reports]
        return [
            token
            for c in columns
            for of, which, token in zip(c.handles, c.choices, c.token_ids, strict=True)
            if (of, which) == (handle, choice)
        ]


def _fixed_adapters(model: Model) -> AdapterSlots:
    return AdapterSlots() if model.adapters is None else AdapterSlots(loaded=model.adapters.slots)


def _draft_engine(model: Model, num_blocks: int) -> DraftEngine:
    runner = ModelRunner(model, KVPool(model.block_layout(SIZE), num_blocks))
    return DraftEngine(runner, CHEAP_DRAFTS, model.facts.max_context)
