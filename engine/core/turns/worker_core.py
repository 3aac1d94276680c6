"""A worker's decisions without its model: commands and finished steps in; steps, copies and reports out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from engine.core.adapters import AdapterSlots
from engine.core.admission import EngineLimits, Refuse
from engine.core.batch import Batch, ChunkWork, Rows, RowTable, Step, num_in, within_rows
from engine.core.commands import (
    AdapterLoaded,
    BeginLoan,
    BlocksRead,
    Cancel,
    Command,
    Decode,
    GrammarReady,
    HandBack,
    KVArrived,
    KVFailed,
    PreCopy,
    Prefill,
    Receive,
    Release,
    SetCost,
    StopAndCopy,
)
from engine.core.groups.groups import Groups, NewChoice
from engine.core.groups.incoming import Entrance, Incoming, PrefixReads
from engine.core.groups.outgoing import Loans, Outgoing
from engine.core.memory.block_tables import BlockNames, BlockTables
from engine.core.memory.stores import BlockPool, KVLinks, KVTiers, SwapMemory
from engine.core.report import ComputedChunk, Load, StepReport
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup
from scheduling.cost_model import CostModel, StepShape
from scheduling.draft_model import DraftPlan, ModelOffer, plan_drafts
from scheduling.policies.policy import Policy
from scheduling.prediction import step_limit_s
from scheduling.request import FailureReason
from scheduling.speculation import Offer, draft_lengths
from scheduling.step import DecodeLoad, StepPlan, StepView

Copies = list[tuple[int, int]]
"""(source, target) blocks to copy before the next step."""


class WorkerCore:
    """Schedules the sequences of one worker. The package's docstring says in which order it is called.

    The executor's own parts are handed in: `rows` and `new_choice` for what it keeps for each row and choice,
    `refuse` for what its model cannot run, `swap` for host memory, `tiers` for blocks that left the pool,
    `links` for those that other workers lend, `adapters` for the LoRA adapters of its model. Times are in
    seconds on one clock.

    A pipeline has `num_stages`, and shares its running choices among `num_micro_batches`: a step is planned
    while those of the other micro-batches are in flight. It computes nothing for running choices in flight,
    and at most an equal share of all of them. The next chunk of a prompt may follow one in flight only if
    `chunks_follow`. Steps end in the order of their launch. The executor waits for those in flight before it
    lets `grow_rows` preempt.
    """

    def __init__(
        self,
        pool: BlockPool,
        names: BlockNames,
        swap: SwapMemory,
        rows: RowTable,
        *,
        limits: EngineLimits,
        policy: Policy,
        cost: CostModel,
        refuse: Refuse,
        new_choice: NewChoice,
        tiers: KVTiers | None = None,
        links: KVLinks | None = None,
        num_stages: int = 1,
        num_micro_batches: int = 1,
        chunks_follow: bool = True,
        adapters: AdapterSlots | None = None,
    ) -> None:
        self._pool = pool
        self._num_stages = num_stages
        self._chunks_follow = chunks_follow
        self.limits = limits
        self._policy = policy
        self.cost = cost
        self.batch = Batch(limits.max_num_seqs, pool.block_size, rows, num_micro_batches)
        self.tables = BlockTables(pool, names, reserves_maximum=policy.reserves_maximum)
        adapters = adapters or AdapterSlots()
        self.groups = Groups(self.tables, self.batch, pool, swap, adapters, new_choice)
        self._incoming = Incoming(self.groups, self.tables, PrefixReads(tiers, links, self.tables))
        self._outgoing = Outgoing(self.groups, self.tables, Loans(pool, tiers))
        self._entrance = Entrance(self.groups, self._incoming, self.tables, pool.num_blocks, limits, refuse)
        self.num_steps = 0

    # Between two steps

    def apply(self, command: Command, now_s: float) -> None:
        """Carry out one command; its effects are in the report."""
        match command:
            case Prefill() | Decode() | Receive():
                self._entrance.enter(command, now_s)
            case GrammarReady() | AdapterLoaded():
                self._entrance.end_wait(command)
            case BlocksRead(handle) if self._outgoing.has_loan(handle):
                self._outgoing.end_read(command)
            case KVArrived() | KVFailed() | BlocksRead():
                self._incoming.end_copy(command, now_s, self.cost)
            case BeginLoan() | PreCopy() | StopAndCopy():
                self._outgoing.apply(command, now_s)
            case Release(handle) if self._outgoing.has_loan(handle):
                self._outgoing.release(handle)
            case Release(handle):
                self.groups.release(handle)
            case Cancel(handle):
                self.groups.cancel(handle)
            case HandBack():
                self.groups.hand_back()
            case SetCost(cost):
                self.cost = cost

    def grow_rows(self, now_s: float) -> None:
        """Give the running choices the blocks that their next tokens need; preempt where there are none."""
        self.groups.grow_rows(self.cost, now_s)

    def start_waiting(self) -> list[SequenceGroup]:
        """Let groups in while there is room, and return those that have come with their KV complete."""
        return self._entrance.start_waiting(self.cost)

    def adopt(self, group: SequenceGroup) -> None:
        """Make the choices of a group that came with its KV and its first tokens."""
        if self.groups.finish_prefill(group):
            self.groups.report_prefilled(group)

    def go_on(self, group: SequenceGroup) -> Copies:
        """Run the choices of an adopted group, which have their first tokens by now."""
        for choice in group.choices:
            self.batch.join(choice)
        return self.groups.start_choices(group)

    def plan(self, now_s: float, begins_s: float, *, takes_rows: bool = True) -> StepPlan:
        """Return the next step by the policy; it begins at `begins_s`, when what is in flight is over.

        Unless it `takes_rows`, it computes prompts alone.
        """
        rows = self.batch.next_rows() if takes_rows else self.batch.no_rows()
        return self._policy.plan(
            StepView(
                self._decode_load(begins_s, rows),
                self.groups.prefill_work(now_s, chunks_follow=self._chunks_follow),
                self.limits.token_budget,
                self.limits.max_num_seqs,
                self.cost,
            )
        )

    def _decode_load(self, begins_s: float, rows: Rows) -> DecodeLoad:
        load = self.batch.decode_load(begins_s, rows)
        if self._num_stages == 1:
            return load
        slack_s, gap_limit_s = (step_limit_s(s, self._num_stages) for s in (load.slack_s, load.gap_limit_s))
        return replace(load, slack_s=slack_s, gap_limit_s=gap_limit_s)

    # One step

    def begin(self, plan: StepPlan) -> Step:
        """Return the step that a plan with work comes to."""
        num_decodes = plan.num_decodes
        rows = self.batch.next_rows() if num_decodes else self.batch.no_rows()
        assert num_decodes == num_in(rows), f"{num_decodes} of {num_in(rows)} decodes are planned"
        groups = [(self.groups.roster.prefilling[chunk.key], chunk.num_tokens) for chunk in plan.chunks]
        chunks = [self._chunk(group, num_tokens) for group, num_tokens in within_rows(groups)]
        parts = [(chunk.begin, chunk.end - chunk.begin) for chunk in chunks]
        shape = StepShape.of(num_decodes, self.batch.context_of(rows), parts)
        return Step(num_decodes, chunks, shape, rows)

    def cover(self, step: Step) -> None:
        """Find blocks for all that the chunks of a step write."""
        for chunk in step.chunks:
            self.tables.cover(chunk.group, chunk.end)

    def skip(self, step: Step, num_known: Mapping[int, int]) -> None:
        """Count tokens that a step computes behind the newest of some rows: they are known before it runs.

        They need no further block, and are not the last ones of their choices.
        """
        for row, num_tokens in num_known.items():
            step.shape = step.shape.with_more(int(self.batch.positions[row]) + 1, num_tokens)
            self.batch.skip(row, num_tokens)

    def choose_drafts(self, step: Step, offers: Sequence[Offer], now_s: float, most: int) -> dict[int, int]:
        """Return how many drafted tokens of each row a step verifies, at most `most` in total.

        They are counted in its shape, and have blocks: none that others are about to need.
        """
        decodes = self._drafted_load(step, now_s)
        chosen = self._cover_drafts(draft_lengths(offers, step.shape, decodes, self.cost, most))
        self.count_drafts(step, chosen)
        return chosen

    def plan_drafts(
        self,
        step: Step,
        offers: Sequence[ModelOffer],
        draft_cost: CostModel,
        now_s: float,
        *,
        most: int,
        num_drafted_rows: int,
    ) -> DraftPlan:
        """Return what a draft model does before a step; see `scheduling.draft_model.plan_drafts`.

        The drafts have blocks, as those of `choose_drafts`. They are not counted in the step's shape yet.
        """
        # The first stage computes nothing while the draft model does, and all micro-batches wait for it.
        num_waiting = min(self._num_stages, self.batch.num_rows)
        plan = plan_drafts(
            offers,
            step.shape,
            self._drafted_load(step, now_s),
            (self.cost, draft_cost if num_waiting == 1 else draft_cost.scaled(num_waiting)),
            most=most,
            token_budget=self.limits.token_budget,
            num_drafted_rows=num_drafted_rows,
        )
        return DraftPlan(self._cover_drafts(plan.lengths), plan.catch_up)

    def count_drafts(self, step: Step, num_drafted: Mapping[int, int]) -> None:
        """Count drafted tokens in a step's shape, by row."""
        for row, num_tokens in num_drafted.items():
            step.shape = step.shape.with_more(int(self.batch.positions[row]) + 1, num_tokens)

    def accept_drafts(self, step: Step, num_accepted: Mapping[int, int]) -> None:
        """Count drafted tokens that the step has drawn too, by place; one more is drawn behind them."""
        for place, num_tokens in num_accepted.items():
            step.positions[place] += num_tokens
            self.batch.skip(step.row_of(place), num_tokens)

    def join(self, step: Step) -> None:
        """Count the chunks of a launched step; prompts that are complete with it take their rows."""
        self._count_chunks(step)
        self._take_rows(step)

    def send(self, step: Step) -> None:
        """Take in that a step is on its way through a pipeline; when it has passed, call `gather`."""
        self._count_chunks(step)
        step.choices = self.batch.choices_of(step.rows)
        self.batch.mark_pending(step.rows)

    def gather(self, step: Step) -> list[int]:
        """Find the rows of a step that was sent; prompts that are complete with it take their rows.

        Choices have moved or ended since it was sent. Return which of its decodes still run.
        """
        places = [place for place, choice in enumerate(step.choices) if choice.row >= 0]
        step.rows = np.array([step.choices[place].row for place in places], dtype=np.int64)
        step.num_decodes = len(places)
        self._take_rows(step)
        return places

    def _count_chunks(self, step: Step) -> None:
        for chunk in step.chunks:
            group, num_tokens = chunk.group, chunk.end - chunk.begin
            num_lost = min(num_tokens, group.num_known_tokens - group.num_computed_tokens)
            step.num_recomputed += max(0, num_lost)
            group.pending_chunks.append(group.num_computed_tokens)
            group.num_computed_tokens += num_tokens

    def _take_rows(self, step: Step) -> None:
        """Give the step's prompts that are complete their rows."""
        step.joining = [chunk.group for chunk in step.chunks if chunk.wants_logits and not chunk.is_void]
        num_rows = self.batch.num_rows
        for group in step.joining:
            if self.groups.finish_prefill(group):
                step.prefilled.append(group)
            for choice in group.choices:
                self.batch.join(choice)
        step.rows = self.batch.with_joined(step.rows, num_rows)
        step.choices = self.batch.choices_of(step.rows)
        step.positions = self.batch.positions[step.rows].copy()

    def advance(self, step: Step) -> Copies:
        """Append the tokens that a launched step draws, known or not; whatever can have no more leaves."""
        self.batch.mark_pending(step.rows)
        for choice in self.batch.advance(step.rows):
            self._leave(step, choice)
        copies: Copies = []
        for group in step.joining:
            going = [choice for choice in group.choices if choice.row >= 0]
            if group.goal is Goal.HAND_OVER:
                for choice in going:
                    self._leave(step, choice)
            elif going:
                copies += self.groups.start_choices(group)
        return copies

    def mark_written(self, step: Step) -> None:
        """Take in that a step is over: its KV is written."""
        self.num_steps += 1
        report = self.groups.report
        report.shape, report.recomputed_tokens = step.shape, step.num_recomputed
        report.chunks = [ComputedChunk(chunk.group.handle, chunk.begin, chunk.end) for chunk in step.chunks]
        for chunk in step.chunks:
            self.groups.mark_chunk_written(chunk.group)

    def count_tokens(
        self, step: Step, now_s: float, *, is_latest: bool = True, is_overtaken: bool = False
    ) -> None:
        """Take in that the tokens of a step that is over are known at `now_s`.

        It is the latest where only rows of this step have joined or left since its launch. It is overtaken
        where a step in flight has drawn a further token for its rows.
        """
        for group in step.prefilled:
            if group.phase is not Phase.ENDED:
                self.groups.report_prefilled(group)
        if not step.choices:
            return
        if is_latest:
            rows: Rows = slice(step.row_of(0), self.batch.num_rows)
        else:
            all_rows = np.array([choice.row for choice in step.choices])
            rows = all_rows[all_rows >= 0]
        self.batch.due_times.advance(rows, now_s)
        if not is_overtaken:
            self.batch.mark_known(rows)

    def finish(self, step: Step, filled: Iterable[Choice], finished: Iterable[Choice]) -> list[SequenceGroup]:
        """Share the blocks that choices have filled, and end those that are finished.

        Return the groups whose context is complete with the step and whose first tokens came from elsewhere.
        """
        for choice in filled:
            if choice.block_table:
                self.tables.register_written(choice)
        self.end(finished)
        for group in step.prefilled:
            if group.goal is Goal.HAND_OVER and group.phase is not Phase.ENDED:
                self.groups.keep_for_handoff(group)
        return [chunk.group for chunk in step.chunks if _brought_first_tokens(chunk.group)]

    def end(self, finished: Iterable[Choice]) -> None:
        """End choices that are finished; those of prompts for other workers are held instead."""
        for choice in finished:
            if choice.group.goal is not Goal.HAND_OVER:
                self.groups.end_choice(choice)

    def fail(self, groups: Iterable[SequenceGroup], message: str, *, is_wrong: bool = False) -> None:
        """End sequences that a step has failed; `is_wrong` KV must not be found in the cache again."""
        for group in groups:
            self.groups.fail(group, FailureReason.INTERNAL, message, is_wrong=is_wrong)

    def fail_output(self, group: SequenceGroup, message: str) -> None:
        """End a sequence whose output has no next token, on whatever worker."""
        self.groups.fail(group, FailureReason.OUTPUT, message)

    # Out

    def take_report(self) -> StepReport:
        """Return what happened since the last report."""
        return self.groups.take_report()

    def load(self, num_last: int = 0) -> Load:
        """Return the worker's load; `num_last` choices have left the batch and await their last token."""
        roster, num_free = self.groups.roster, self._pool.num_available_blocks
        return Load(
            step=self.num_steps,
            running=self.batch.num_rows + num_last,
            waiting=roster.num_waiting_choices,
            pending_prefill_tokens=roster.num_pending_tokens,
            free_blocks=num_free,
            cached_blocks=min(self._pool.num_cached_blocks, num_free),
            context_tokens=self.batch.num_context_tokens,
            preempted=roster.num_preempted_choices,
        )

    def check_integrity(self, *, is_whole: bool) -> None:
        """Assert that references and promises are those of groups and loans; see `Groups.check_integrity`."""
        self.groups.check_integrity(self._outgoing.loans, is_whole=is_whole)

    def _chunk(self, group: SequenceGroup, num_tokens: int) -> ChunkWork:
        begin = group.num_computed_tokens
        end = begin + num_tokens
        wants_logits = end == group.num_context_tokens and group.first_tokens is None
        return ChunkWork(group, begin, end, wants_logits, group.prompt_rows(begin, end))

    def _drafted_load(self, step: Step, now_s: float) -> DecodeLoad:
        """Return a step's decodes. Its drafts must not make the tokens of other micro-batches late."""
        load = self._decode_load(now_s, step.rows)
        is_all = step.num_decodes == self.batch.num_rows
        return load if is_all else replace(load, gap_limit_s=min(load.slack_s, load.gap_limit_s))

    def _cover_drafts(self, lengths: Mapping[int, int]) -> dict[int, int]:
        """Return how many drafted tokens of each row have blocks, without rows that have none."""
        covered = {row: self.groups.cover_draft(self.batch.choices[row], num) for row, num in lengths.items()}
        return {row: num for row, num in covered.items() if num}

    def _leave(self, step: Step, choice: Choice) -> None:
        self.batch.leave(choice)
        step.last.append(choice)


def _brought_first_tokens(group: SequenceGroup) -> bool:
    is_complete = group.phase is Phase.PREFILLING and group.num_written_tokens == group.num_context_tokens
    return is_complete and group.first_tokens is not None
