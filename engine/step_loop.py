"""The step loop: commands in, one ragged batch through the model, a report out; and again.

Synchronous and single-threaded: no asyncio, no RPC, no locks. Only the thread that calls `run` touches the
batch, the groups and the block manager.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.admission import EngineLimits
from engine.batch import Batch, ChunkRow
from engine.block_manager import BlockManager
from engine.block_tables import BlockTables
from engine.commands import Command, SetCost
from engine.copy_stream import mark_steps
from engine.detokenizer import Detokenizer
from engine.groups import Groups
from engine.report import Load, StepReport
from engine.report_builder import ReportBuilder, first_token_rows
from engine.sampler import Sampled, sample, sample_each
from engine.sequence import Goal, SequenceGroup
from engine.sequence import Sequence as Choice
from engine.step_batch import StepBatch
from engine.swap_space import SwapSpace, default_slots
from scheduling.cost_model import CostModel, StepShape
from scheduling.policies.policy import Policy
from scheduling.request import FailureReason
from scheduling.step import StepPlan, StepView

_BROKEN_LOGITS = "the model's logits are not finite: its weights or its KV are damaged"


LEAST_WAIT_S = 0.001
"""However short a policy would wait: a loop that asks again at once is a busy one."""


class Runner(Protocol):
    """The model over its KV pool."""

    def forward(self, batch: StepBatch) -> Tensor:
        """Write the step's KV; answer logits [R, vocab] of `batch.logit_rows`, which may be empty."""
        ...


class StepLoop:
    """Runs the sequences of one worker.

    `pool` is the runner's KV [num_blocks, ...], of which the loop copies the partial blocks of forks; its
    device is where the steps run. `detokenizer` is None for a model without a tokenizer. `num_swap_blocks` of
    host memory are for sequences that give up their place in the pool; by default see `default_slots`.
    `clock` is monotonic, in seconds. A `deterministic` loop draws for each row alone.
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
        num_swap_blocks: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        deterministic: bool = False,
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
        self._tables = BlockTables(blocks, fingerprint, reserves_maximum=policy.reserves_maximum)
        swap = SwapSpace(pool, default_slots(pool) if num_swap_blocks is None else num_swap_blocks)
        self._groups = Groups(self._tables, self._batch, blocks, swap, limits, detokenizer, clock)
        self._clock = clock
        self._policy = policy
        self._cost = cost
        self._draw = sample_each if deterministic else sample
        self._num_steps = 0

    @torch.inference_mode()
    def run(
        self,
        drain: Callable[[float], Sequence[Command]],
        emit: Callable[[StepReport], None],
        stop: Callable[[], bool],
    ) -> None:
        """Step until `stop()` says so, which is asked before every step.

        `drain(timeout_s)` answers the commands that have come; unless there are some it waits for them, for
        `timeout_s` at most or until the loop is to stop. `emit` gets a report after every step, and when
        commands alone had effects.
        """
        wait_s = 0.0
        while not stop():
            if wait_s == math.inf:
                self.check_integrity()
            for command in drain(wait_s):
                if isinstance(command, SetCost):
                    self._cost = command.cost
                else:
                    self._groups.apply(command)
            if self._groups.report.parked:
                emit(self._finish_report())  # its client waits for whoever goes on: not for another step here
            wait_s = self._turn()
            if not self._groups.report.is_empty:
                emit(self._finish_report())

    def check_integrity(self) -> None:
        """Assert that every block and slot has the owners it should; costs O(used blocks)."""
        self._groups.check_integrity()

    def _turn(self) -> float:
        """One step, if there is one; answers for how long commands may be waited for before the next."""
        started = time.perf_counter()
        self._make_room()
        plan = self._policy.plan(self._view())
        if not (plan.num_decodes or plan.chunks):
            return max(LEAST_WAIT_S, plan.wait_s)
        self._num_steps += 1
        self._step(plan)
        self._groups.report.step_seconds = time.perf_counter() - started
        return 0.0

    def _make_room(self) -> None:
        """Blocks for the running choices first, then for those that wait, whose blocks may be theirs."""
        self._groups.grow_rows(self._cost)
        num_rows = self._batch.num_rows
        for group in self._groups.start_waiting():
            self._adopt_first_tokens(group)
        if self._batch.num_rows > num_rows:
            self._groups.grow_rows(self._cost)

    def _view(self) -> StepView:
        now_s = self._clock()
        return StepView(
            self._batch.decode_load(now_s),
            self._groups.prefill_work(now_s),
            self._limits.token_budget,
            self._limits.max_num_seqs,
            self._cost,
        )

    def _step(self, plan: StepPlan) -> None:
        num_decodes, num_rows = plan.num_decodes, self._batch.num_rows
        assert num_decodes in (0, num_rows), f"{num_decodes} of {num_rows} decodes are planned"
        chunks = [(self._groups[chunk.handle], chunk.num_tokens) for chunk in plan.chunks]
        parts = [(group.num_computed_tokens, num_tokens) for group, num_tokens in chunks]
        context = self._batch.num_context_tokens if num_decodes else 0
        self._groups.report.shape = StepShape.of(num_decodes, context, parts)
        self._run_step(num_decodes, chunks)

    def _run_step(self, num_decodes: int, chunks: Sequence[tuple[SequenceGroup, int]]) -> None:
        paused = self._batch.num_rows - num_decodes
        rows = [self._chunk_row(group, num_tokens) for group, num_tokens in chunks]
        try:
            logits = self._runner.forward(self._batch.assemble(num_decodes, rows))
            computed = self._complete_chunks(chunks)
            joining = [group for group in computed if group.first_tokens is None]
            sampled = self._sample(logits, paused, joining)
        except Exception as error:  # noqa: BLE001 - one broken step must not end the worker; it is reported
            running = {choice.group for choice in self._batch.sequences[paused:]}
            self._fail_all(running | {group for group, _ in chunks}, error)
            return
        if sampled is not None:
            self._take_tokens(sampled, paused, joining)
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
            num_lost = min(num_tokens, group.num_known_tokens - group.num_computed_tokens)
            self._groups.report.recomputed_tokens += max(0, num_lost)
            group.num_computed_tokens += num_tokens
            self._groups.publish_blocks(group)
        return [group for group, _ in chunks if group.num_remaining_tokens == 0]

    def _sample(self, logits: Tensor, paused: int, joining: Sequence[SequenceGroup]) -> Sampled | None:
        """Tokens for the rows behind the `paused` ones and for each choice of the groups that join them."""
        repeats = [1] * (self._batch.num_rows - paused) + [group.num_rows for group in joining]
        for group in joining:
            self._groups.finish_prefill(group)
            for choice in group.sequences:
                self._batch.join(choice)
        end = self._batch.num_rows
        if end == paused:
            return None
        if end - paused != len(repeats):
            logits = logits.repeat_interleave(torch.tensor(repeats, device=logits.device), dim=0)
        return self._draw(logits, self._batch.sampling, self._batch.num_outputs[paused:end], paused)

    def _take_tokens(self, sampled: Sampled, paused: int, joining: Sequence[SequenceGroup]) -> None:
        """Append and report a token of each row behind the `paused` ones; let go of what ended or broke."""
        choices = self._batch.sequences[paused:]
        broken = {
            choices[place].group.handle: choices[place].group for place in np.flatnonzero(sampled.is_broken)
        }
        self._report_tokens(sampled, paused, choices, broken)
        self._batch.advance(sampled.token_ids, paused, self._clock())
        for group in broken.values():
            self._groups.fail(group, FailureReason.INTERNAL, _BROKEN_LOGITS, is_wrong=True)
        for group in joining:
            if group.handle not in broken:
                self._start(group)
        for choice in choices:
            if choice.is_finished and choice.row >= 0:
                self._groups.end_choice(choice)

    def _report_tokens(
        self, sampled: Sampled, paused: int, choices: Sequence[Choice], broken: Mapping[int, SequenceGroup]
    ) -> None:
        batch, rows = self._batch, slice(paused, paused + len(choices))
        columns = [
            column.tolist()
            for column in (
                batch.handles[rows],
                batch.choices[rows],
                batch.num_outputs[rows],
                sampled.token_ids,
            )
        ]
        places: Sequence[int] = range(len(choices))
        if broken:
            places = [place for place in places if choices[place].group.handle not in broken]
            columns = [[column[place] for place in places] for column in columns]
            choices = [choices[place] for place in places]
        if sampled.logprobs is not None:
            row_of = {paused + place: order for order, place in enumerate(places)}
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
                waiting=groups.queues.num_waiting_choices,
                pending_prefill_tokens=groups.queues.num_pending_tokens,
                free_blocks=num_free,
                cached_blocks=min(blocks.num_cached_blocks, num_free),
                context_tokens=batch.num_context_tokens,
                preempted=groups.queues.num_preempted_choices,
            ),
            step_seconds=built.step_seconds,
            tokens=built.finish_tokens(),
            filled=built.filled,
            received=built.received,
            behind=mark_steps(self._pool.device) if built.filled or built.received else None,
            prefilled=built.prefilled,
            failures=built.failures,
            preempted=built.preempted,
            resumed=built.resumed,
            parked=built.parked,
            freed=built.freed,
            cached_hashes=events.added,
            evicted_hashes=events.removed,
            recomputed_tokens=built.recomputed_tokens,
            shape=built.shape,
            step_error=built.step_error,
        )
