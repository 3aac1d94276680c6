"""The step loop: commands in, one ragged batch through the model, a report out; and again.

Synchronous and single-threaded: no asyncio, no RPC, no locks. Only the thread that calls `run` touches the
batch, the groups and the block manager.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.admission import EngineLimits
from engine.batch import Batch, ChunkRow
from engine.block_manager import BlockManager
from engine.block_tables import BlockTables
from engine.commands import Command, SetCost
from engine.detokenizer import Detokenizer
from engine.groups import Groups
from engine.report import Load, StepReport
from engine.report_builder import ReportBuilder, first_token_rows
from engine.sampler import Sampled, sample
from engine.sequence import Goal, SequenceGroup
from engine.sequence import Sequence as Choice
from engine.step_batch import StepBatch
from scheduling.cost_model import CostModel, StepShape
from scheduling.policies.policy import Policy
from scheduling.request import FailureReason
from scheduling.step import DecodeLoad, StepView

_BROKEN_LOGITS = "the model's logits are not finite: its weights or its KV are damaged"


class Runner(Protocol):
    """The model over its KV pool."""

    def forward(self, batch: StepBatch) -> Tensor:
        """Write the step's KV; answer logits [R, vocab] of `batch.logit_rows`, which may be empty."""
        ...


class StepLoop:
    """Runs the sequences of one worker.

    `pool` is the runner's KV [num_blocks, ...], of which the loop copies the partial blocks of forks; its
    device is where the steps run. `detokenizer` is None for a model without a tokenizer.
    """

    def __init__(
        self,
        runner: Runner,
        pool: Tensor,
        blocks: BlockManager,
        *,
        limits: EngineLimits,
        fingerprint: str,
        detokenizer: Detokenizer | None,
        policy: Policy,
        cost: CostModel,
    ) -> None:
        assert pool.shape[0] == blocks.num_blocks
        self._runner = runner
        self._pool = pool
        self._blocks = blocks
        self._limits = limits
        size = blocks.block_size
        max_blocks = -(-limits.max_context // size)
        self._batch = Batch(
            limits.max_num_seqs, max_blocks, blocks.block_size, limits.vocab_size, pool.device
        )
        self._tables = BlockTables(blocks, fingerprint)
        self._groups = Groups(self._tables, self._batch, limits, detokenizer)
        self._policy = policy
        self._cost = cost
        self._num_steps = 0

    @torch.inference_mode()
    def run(
        self,
        drain: Callable[[bool], Sequence[Command]],
        emit: Callable[[StepReport], None],
        stop: Callable[[], bool],
    ) -> None:
        """Step until `stop()` says so, which is asked before every step.

        `drain(wait)` answers the commands that have come; with `wait`, it blocks until there are some or the
        loop is to stop. `emit` gets a report after every step, and when commands alone had effects.
        """
        while not stop():
            is_idle = not self._groups.has_work
            if is_idle:
                self._groups.check_integrity()
            for command in drain(is_idle):
                if isinstance(command, SetCost):
                    self._cost = command.cost
                else:
                    self._groups.apply(command)
            if self._groups.has_work:
                self._step()
            if not self._groups.report.is_empty:
                emit(self._finish_report())

    def _step(self) -> None:
        started = time.perf_counter()
        for group in self._groups.start_waiting():
            self._adopt_first_tokens(group)
        view = StepView(
            DecodeLoad(self._batch.num_rows),
            self._groups.prefill_work(),
            self._limits.token_budget,
            self._limits.max_num_seqs,
            self._cost,
        )
        plan = self._policy.plan(view)
        if plan.num_decodes or plan.chunks:
            self._num_steps += 1
            chunks = [(self._groups[chunk.handle], chunk.num_tokens) for chunk in plan.chunks]
            parts = [(group.num_computed_tokens, num_tokens) for group, num_tokens in chunks]
            shape = StepShape.of(plan.num_decodes, self._batch.num_context_tokens, parts)
            self._run_step(chunks)
            self._groups.report.shape = shape
            self._groups.report.step_seconds = time.perf_counter() - started

    def _run_step(self, chunks: Sequence[tuple[SequenceGroup, int]]) -> None:
        self._groups.grow_rows()
        rows = [self._chunk_row(group, num_tokens) for group, num_tokens in chunks]
        try:
            logits = self._runner.forward(self._batch.assemble(rows))
            computed = self._complete_chunks(chunks)
            joining = [group for group in computed if group.first_tokens is None]
            sampled = self._sample(logits, joining)
        except Exception as error:  # noqa: BLE001 - one broken step must not end the worker; it is reported
            running = {choice.group for choice in self._batch.sequences}
            self._fail_all(running | {group for group, _ in chunks}, error)
            return
        if sampled is not None:
            self._take_tokens(sampled, joining)
        for group in computed:
            if group.first_tokens is not None:
                self._adopt_first_tokens(group)

    def _chunk_row(self, group: SequenceGroup, num_tokens: int) -> ChunkRow:
        begin = group.num_computed_tokens
        end = begin + num_tokens
        self._tables.cover(group, end)
        wants_logits = end == len(group.context) and group.first_tokens is None
        return ChunkRow(group.context[begin:end], begin, group.block_table, wants_logits)

    def _complete_chunks(self, chunks: Sequence[tuple[SequenceGroup, int]]) -> list[SequenceGroup]:
        """Take the step's KV into the books; answers the groups whose context is complete."""
        for group, num_tokens in chunks:
            group.num_computed_tokens += num_tokens
            self._groups.publish_blocks(group)
        return [group for group, _ in chunks if group.num_remaining_tokens == 0]

    def _sample(self, logits: Tensor, joining: Sequence[SequenceGroup]) -> Sampled | None:
        """Tokens for the running rows and for each choice of the groups that join them."""
        repeats = [1] * self._batch.num_rows + [group.num_rows for group in joining]
        for group in joining:
            self._groups.finish_prefill(group)
            for choice in group.sequences:
                self._batch.join(choice)
        n = self._batch.num_rows
        if n == 0:
            return None
        if n != len(repeats):
            logits = logits.repeat_interleave(torch.tensor(repeats, device=logits.device), dim=0)
        return sample(logits, self._batch.sampling, self._batch.num_outputs[:n])

    def _take_tokens(self, sampled: Sampled, joining: Sequence[SequenceGroup]) -> None:
        """Append each row's token, report it, and let go of what ended or broke."""
        choices = list(self._batch.sequences)
        broken = {choices[row].group for row in np.flatnonzero(sampled.is_broken)}
        self._report_tokens(sampled, choices, broken)
        self._batch.advance(sampled.token_ids)
        for group in broken:
            self._groups.fail(group, FailureReason.INTERNAL, _BROKEN_LOGITS, is_wrong=True)
        for group in joining:
            if group not in broken:
                self._start(group)
        for choice in choices:
            if choice.is_finished and choice.row >= 0:
                self._groups.end_choice(choice)

    def _report_tokens(self, sampled: Sampled, choices: Sequence[Choice], broken: set[SequenceGroup]) -> None:
        batch, n = self._batch, len(choices)
        columns = [
            column.tolist()
            for column in (batch.handles[:n], batch.choices[:n], batch.num_outputs[:n], sampled.token_ids)
        ]
        rows: Sequence[int] = range(n)
        if broken:
            rows = [row for row in rows if choices[row].group not in broken]
            columns = [[column[row] for row in rows] for column in columns]
            choices = [choices[row] for row in rows]
        if sampled.logprobs is not None:
            row_of = {row: place for place, row in enumerate(rows)}
            self._groups.report.add_logprobs(sampled.logprobs, batch.sampling.num_logprobs, row_of)
        token_ids = columns[-1]
        pushed = [choice.push(token_id) for choice, token_id in zip(choices, token_ids, strict=True)]
        handles, choice_indexes, positions, _ = columns
        self._groups.report.add_rows(handles, choice_indexes, positions, token_ids, pushed)

    def _adopt_first_tokens(self, group: SequenceGroup) -> None:
        """The context is complete and its first tokens came with it: report them again and go on."""
        self._groups.finish_prefill(group)
        assert group.first_tokens is not None
        choices = {choice.choice: choice for choice in group.sequences}
        for first in first_token_rows(group.first_tokens):
            choice = choices.get(first.choice)
            if choice is not None:
                text, reason = choice.push(first.token_id)
                self._groups.report.add_first_token(group.handle, first, text, reason)
        for choice in group.sequences:
            self._batch.join(choice)
        self._start(group)

    def _start(self, group: SequenceGroup) -> None:
        """The choices have their first tokens: hold them for the handoff, or let each go on by itself."""
        if group.goal is Goal.HOLD:
            self._groups.hold(group)
            return
        copies = self._groups.start_choices(group)
        try:
            if copies:
                sources, targets = zip(*copies, strict=True)
                self._pool[list(targets)] = self._pool[list(sources)]
        except Exception as error:  # noqa: BLE001 - as in a step
            self._fail_all({group}, error)

    def _fail_all(self, groups: set[SequenceGroup], error: Exception) -> None:
        report = self._groups.report
        report.step_error = "".join(traceback.format_exception(error))
        for group in groups:
            message = f"the step failed: {type(error).__name__}: {error}"
            self._groups.fail(group, FailureReason.INTERNAL, message)

    def _finish_report(self) -> StepReport:
        groups, blocks, batch = self._groups, self._blocks, self._batch
        built, groups.report = groups.report, ReportBuilder()
        events = blocks.take_cache_events()
        num_free = blocks.num_available_blocks
        return StepReport(
            load=Load(
                step=self._num_steps,
                running=batch.num_rows,
                waiting=groups.num_waiting_choices,
                pending_prefill_tokens=groups.num_pending_tokens,
                free_blocks=num_free,
                cached_blocks=min(blocks.num_cached_blocks, num_free),
                context_tokens=batch.num_context_tokens,
            ),
            step_seconds=built.step_seconds,
            tokens=built.finish_tokens(),
            filled=built.filled,
            received=built.received,
            prefilled=built.prefilled,
            failures=built.failures,
            freed=built.freed,
            cached_hashes=events.added,
            evicted_hashes=events.removed,
            shape=built.shape,
            step_error=built.step_error,
        )
