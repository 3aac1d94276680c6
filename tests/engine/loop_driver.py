"""Drives a step loop from a list of commands, one turn at a time, and keeps what it reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from engine.core.admission import EngineLimits
from engine.core.commands import Command, Decode, GrammarReady, Prefill, Receive
from engine.core.memory.block_manager import BlockManager
from engine.core.memory.stores import KVLinks
from engine.core.report import StepReport
from engine.execution.draft_model import DraftEngine
from engine.execution.step_loop import StepLoop
from kvtransfer.tiers.tiers import Tiers
from model_output.grammar.grammar import Grammars
from model_output.text.detokenizer import Detokenizer
from scheduling.cost_model import CostModel
from scheduling.policies.chunked import CHUNKED
from scheduling.policies.policy import Policy
from scheduling.request import Fence, PrefixSource, SamplingParams, SequenceSpec, StopRules
from scheduling.step import StepPlan, StepView
from tests.engine.fake_runner import FakeRunner, FakeStages

VOCAB = 97
OVERLAPS = False
"""Whether drivers take in a step while the next one runs, unless they are told."""
GREEDY = SamplingParams(temperature=0.0)
RESERVING = replace(CHUNKED, reserves_maximum=True)
UNKNOWN_COST = CostModel((0.0,) * 6, 0.0, is_trusted=False)
DEAR_TOKENS = CostModel((0.0, 0.0, 1.0, 0.0, 0.0, 0.0), 0.0)
"""Computing anything again costs more than any copy, so that what can be swapped is."""
FREE_DRAFTS = CostModel((1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0.0)
"""A step takes a second, whatever it computes: every draft pays."""
CHEAP_DRAFTS = CostModel((0.01, 0.0, 0.0001, 0.0, 0.0, 0.0), 0.0)
"""A step of the draft model takes a hundredth of that."""


def spec(
    handle: int,
    prompt: Sequence[int],
    max_tokens: int = 8,
    *,
    sampling: SamplingParams = GREEDY,
    stop: StopRules | None = None,
    choices: tuple[int, ...] = (0,),
    outputs: Sequence[int] = (),
    salt: bytes = b"",
    source: PrefixSource | None = None,
) -> SequenceSpec:
    fence = Fence("tenant", f"request-{handle}", 0, 0, choices[0] if choices else 0, "source", "target")
    return SequenceSpec(
        handle=handle,
        fence=fence,
        prompt_token_ids=tuple(prompt),
        output_token_ids=tuple(outputs),
        choices=choices,
        sampling=sampling,
        stop=stop or StopRules(max_tokens=max_tokens),
        cache_salt=salt,
        prefix_source=source,
    )


def watching(views: list[StepView], policy: Policy = CHUNKED) -> Policy:
    """The policy, that keeps what it is shown as it is then."""

    def plan(view: StepView) -> StepPlan:
        views.append(replace(view, waiting=tuple(view.waiting)))
        return policy.plan(view)

    return replace(policy, plan=plan)


class Driver:
    """A step loop on the fake model, with everything it ever said."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        token_budget: int = 64,
        max_num_seqs: int = 16,
        max_context: int = 256,
        eos: tuple[int, ...] = (),
        detokenizer: Detokenizer | None = None,
        grammars: Grammars | None = None,
        policy: Policy = CHUNKED,
        cost: CostModel = UNKNOWN_COST,
        num_swap_blocks: int | None = None,
        takes_forced: bool = True,
        speculates: bool = False,
        draft: FakeRunner | None = None,
        draft_cost: CostModel = UNKNOWN_COST,
        draft_context: int = 256,
        num_seen: int | None = None,
        overlaps: bool | None = None,
        stages: FakeStages | None = None,
        runner: FakeRunner | None = None,
        tiers: Tiers | None = None,
        links: KVLinks | None = None,
    ) -> None:
        self._grammars = grammars
        self.overlaps = OVERLAPS if overlaps is None else overlaps
        self.runner = runner or FakeRunner(num_blocks, block_size, VOCAB, num_seen)
        if stages is not None:
            stages.compute_with(self.runner)
        self.draft = draft
        self.blocks = BlockManager(num_blocks, block_size, tiers)
        limits = EngineLimits(
            vocab_size=VOCAB,
            max_context=max_context,
            max_num_seqs=max_num_seqs,
            token_budget=token_budget,
            eos_token_ids=eos,
        )
        self.loop = StepLoop(
            self.runner,
            self.runner.pool,
            self.blocks,
            limits=limits,
            fingerprint="model",
            detokenizer=detokenizer,
            takes_forced=takes_forced,
            speculates=speculates,
            draft_model=None if draft is None else DraftEngine(draft, draft_cost, draft_context),
            policy=policy,
            cost=cost,
            num_swap_blocks=num_swap_blocks,
            clock=lambda: self.now_s,
            overlaps=self.overlaps,
            stages=stages,
            new_mark=self.runner.new_mark if self.overlaps else None,
            tiers=tiers,
            links=links,
        )
        self.now_s = 1000.0
        self.reports: list[StepReport] = []

    def turn(self, *commands: Command) -> list[StepReport]:
        """One pass of the loop, with `commands` in its inbox."""
        before = len(self.reports)
        self.loop.turn(self._with_grammars(commands), self._hear)
        self.loop.check_integrity()
        free = [block for block in self.runner.blocks_in_flight if not self.blocks._num_references[block]]
        assert not free, "a step in flight writes to what anybody may be given"
        return self.reports[before:]

    def finish(self, *commands: Command) -> list[StepReport]:
        """Passes until the loop would wait for something to do."""
        before = len(self.reports)
        inbox = [self._with_grammars(commands)]
        is_done = False

        def drain(timeout_s: float) -> list[Command]:
            nonlocal is_done
            if inbox:
                return inbox.pop()
            is_done = timeout_s == math.inf
            self.loop.check_integrity()
            return []

        self.loop.run(drain, self._hear, lambda: is_done)
        return self.reports[before:]

    def _with_grammars(self, commands: Sequence[Command]) -> list[Command]:
        """Return the commands, and behind them the grammars that they ask for."""
        grammars = [
            GrammarReady(command.spec.handle, self._grammars.compiled(command.spec.sampling.grammar))
            for command in commands
            if isinstance(command, Prefill | Decode | Receive)
            and command.spec.sampling.grammar
            and self._grammars is not None
        ]
        return [*commands, *grammars]

    def _hear(self, report: StepReport) -> None:
        if self.runner.blocks_in_flight:
            written = self.runner.blocks_in_flight
            told = [row.blocks for row in report.filled] + [row.blocks for row in report.received]
            told += [row.blocks for row in report.reads]
            for blocks in told:
                assert not written.intersection(blocks), "a step in flight writes to what others may use"
            shared = [block for block in written if self.blocks.hash_of(block) is not None]
            assert not shared, "what is in the prefix cache is not there yet"
        self.reports.append(report)

    def tokens(self, handle: int, choice: int = 0) -> list[int]:
        """Return the reported tokens of a choice; their indexes must be those of one growing output."""
        rows = self.rows(handle, choice)
        indexes = [index for index, _, _ in rows]
        assert indexes == list(range(indexes[0], indexes[0] + len(indexes))) if rows else True
        return [token for _, token, _ in rows]

    def rows(self, handle: int, choice: int = 0) -> list[tuple[int, int, int]]:
        """(index, token, finish reason) of every row of a choice."""
        return [
            row[2:]
            for report in self.reports
            for row in zip(
                report.tokens.handles,
                report.tokens.choices,
                report.tokens.indexes,
                report.tokens.token_ids,
                report.tokens.finish_reasons,
                strict=True,
            )
            if row[:2] == (handle, choice)
        ]

    def text(self, handle: int, choice: int = 0) -> str:
        parts = []
        for report in self.reports:
            columns, begin = report.tokens, 0
            lengths = columns.text_lengths or [0] * len(columns.handles)
            for row, length in enumerate(lengths):
                if (columns.handles[row], columns.choices[row]) == (handle, choice):
                    parts.append(columns.text_utf8[begin : begin + length])
                begin += length
        return b"".join(parts).decode()

    def logprobs(self, handle: int, choice: int = 0) -> list[tuple[float, tuple[int, ...]]]:
        """Return the log-probability and the reported alternatives of each token of a choice."""
        told = []
        for report in self.reports:
            columns, top = report.tokens, 0
            for place, row in enumerate(columns.logprob_rows):
                begin, top = top, top + columns.top_counts[place]
                if (columns.handles[row], columns.choices[row]) == (handle, choice):
                    told.append((columns.logprobs[place], tuple(columns.top_token_ids[begin:top])))
        return told

    def failures(self) -> dict[int, str]:
        return {
            failure.handle: f"{failure.reason.name}: {failure.message}"
            for report in self.reports
            for failure in report.failures
        }

    def cached_tokens(self) -> list[int]:
        """Return how many tokens of each prompt that was computed were cached, in order."""
        return [told.cached_tokens for report in self.reports for told in report.prefilled]

    def freed(self) -> list[int]:
        return [handle for report in self.reports for handle in report.freed]

    def assert_at_rest(self) -> None:
        """Nothing runs, and every block is free or cached."""
        self.blocks.check_integrity([], 0)
        load = self.reports[-1].load
        assert (load.running, load.waiting, load.pending_prefill_tokens, load.context_tokens) == (0, 0, 0, 0)
        assert load.free_blocks == self.blocks.num_blocks
