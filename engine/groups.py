"""The groups a step loop has, by phase: what commands do to them between two steps, and who is next."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

from engine.admission import EngineLimits, refusal
from engine.batch import Batch
from engine.block_manager import BlockManager
from engine.block_tables import BlockTables
from engine.commands import (
    Cancel,
    Decode,
    HandBack,
    HandOver,
    KVArrived,
    KVFailed,
    Lend,
    Prefill,
    Receive,
    Release,
    SequenceCommand,
)
from engine.detokenizer import Detokenizer
from engine.due_times import after_first_token
from engine.forecast import WITHOUT_BLOCKS, Forecast
from engine.output import OutputStream, output_rules
from engine.preempter import Preempter
from engine.report import Failure, Prefilled, Received
from engine.report_builder import ReportBuilder
from engine.room import Room
from engine.sequence import Goal, Phase, SequenceGroup
from engine.sequence import Sequence as Choice
from engine.swap_space import SwapSpace
from engine.waiting import WaitingQueue
from scheduling.cost_model import CostModel
from scheduling.preemption import Means
from scheduling.request import FailureReason, ReceiveKind, SequenceSpec
from scheduling.step import PrefillWork

Queue = dict[int, SequenceGroup]
"""By key, as an ordered set: first in, first served, and a group can leave from anywhere."""


class Groups:
    """Every group that has not ended."""

    def __init__(
        self,
        tables: BlockTables,
        batch: Batch,
        blocks: BlockManager,
        swap: SwapSpace,
        limits: EngineLimits,
        detokenizer: Detokenizer | None,
        clock: Callable[[], float],
    ) -> None:
        self._tables = tables
        self._batch = batch
        self._blocks = blocks
        self._limits = limits
        self._detokenizer = detokenizer
        self._clock = clock
        self._forecast = Forecast(blocks)
        self._preempter = Preempter(tables, batch, blocks, swap)
        self._room = Room(tables, self._forecast, self._preempter)
        self._parts: dict[int, list[SequenceGroup]] = {}
        """By handle. All choices of a handle are one group, unless a preemption parted them."""
        self._keys = itertools.count(1)
        self._receiving: Queue = {}
        self._arrived: Queue = {}
        self._waiting = WaitingQueue()
        self._preempted: Queue = {}
        self._prefilling: Queue = {}
        self._num_promised_rows = 0
        self.report = ReportBuilder()
        """Where effects are told; replaced for every report."""

    @property
    def num_waiting_choices(self) -> int:
        queues = (self._receiving, self._arrived, self._preempted, self._prefilling)
        return self._waiting.num_rows + sum(group.num_rows for queue in queues for group in queue.values())

    @property
    def num_preempted_choices(self) -> int:
        return sum(group.num_rows for group in self._preempted.values())

    @property
    def num_pending_tokens(self) -> int:
        queues = (self._arrived, self._preempted, self._prefilling)
        groups = (group for queue in queues for group in queue.values())
        return self._waiting.num_tokens + sum(
            group.num_remaining_tokens for group in groups if group.phase is not Phase.SWAPPED
        )

    def __getitem__(self, key: int) -> SequenceGroup:
        """A group that is being prefilled."""
        return self._prefilling[key]

    def apply(self, command: SequenceCommand) -> None:
        """Carry out one command; what comes of it is in the report."""
        match command:
            case Prefill(spec):
                self._enter(spec, Goal.HOLD)
            case Decode(spec):
                self._enter(spec, Goal.DECODE)
            case Receive(spec, kind):
                goal = Goal.CACHE if kind is ReceiveKind.AHEAD else Goal.DECODE
                self._enter(spec, goal, receives=kind)
            case KVArrived():
                self._arrive(command)
            case KVFailed(handle, message):
                self._give_up_copy(handle, message)
            case Release(handle):
                self._release(handle)
            case Cancel(handle):
                self._cancel(handle)
            case HandBack():
                self._hand_back()
            case Lend():
                self._lend(command)
            case HandOver():
                self._hand_over(command)

    def start_waiting(self) -> list[SequenceGroup]:
        """Let groups in while memory and the batch have room: who came first goes first.

        Whoever was preempted comes before anybody new. Answers those whose KV is complete.
        """
        has_room = self._resume_preempted()
        for group in list(self._arrived.values()):
            if not self._has_rows(group):
                break
            del self._arrived[group.key]
            self._begin_prefill(group)
        if has_room:
            self._admit_waiting()
        return [group for group in self._prefilling.values() if group.num_remaining_tokens == 0]

    def prefill_work(self, now_s: float) -> list[PrefillWork]:
        """What is to be computed, after taking what has become cached in the meantime."""
        for group in self._prefilling.values():
            self._tables.extend_from_cache(group)
            self.publish_blocks(group)
        in_order = sorted(self._prefilling.values(), key=_by_arrival)
        return [
            PrefillWork(
                handle=group.key,
                num_remaining_tokens=group.num_remaining_tokens,
                num_computed_tokens=group.num_computed_tokens,
                num_seqs=group.num_rows,
                waited_s=max(0.0, now_s - group.arrived_s),
            )
            for group in in_order
        ]

    def finish_prefill(self, group: SequenceGroup) -> None:
        """The context is complete: say so and make the choices, to take the rows promised to them."""
        self._leave_prefill(group)
        if not group.is_resuming:
            self.report.prefilled.append(Prefilled(group.handle, group.num_cached_tokens))
            group.sequences = [self._new_choice(group, index) for index in group.spec.choices]
        group.phase = Phase.RUNNING

    def publish_blocks(self, group: SequenceGroup) -> None:
        """Share the blocks filled since the last time and, if they are to be handed over, report them."""
        filled = self._tables.register_filled(group)
        if filled is not None and group.goal is Goal.HOLD:
            self.report.filled.append(filled)

    def hold(self, group: SequenceGroup) -> None:
        """First tokens are out: keep the blocks for the handoff and nothing else."""
        for choice in group.sequences:
            self._batch.leave(choice)
        group.sequences = []
        group.phase = Phase.HELD

    def start_choices(self, group: SequenceGroup) -> list[tuple[int, int]]:
        """First tokens are out: a block table for each choice that goes on; the others leave.

        Answers the (source, target) copies to make before the next step.
        """
        going = [choice for choice in group.sequences if not choice.is_finished]
        for choice in group.sequences:
            if choice.is_finished:
                self._forecast.observe(choice)
                self._batch.leave(choice)
        group.sequences = going
        if not going:
            self._end(group)
            return []
        copies = self._tables.start_choices(group)
        for choice in going:
            self._batch.set_blocks(choice)
        return copies

    def grow_rows(self, cost: CostModel) -> None:
        """Give a block to each choice whose newest token begins one; where there are none, preempt."""
        while (num_short := self._preempter.num_short()) > 0:
            victims = [group for parts in self._parts.values() for group in parts]
            chosen = self._preempter.choose(victims, num_short, cost, self._clock())
            victim = next(group for group in victims if group.key == chosen.handle)
            self._preempt(victim, chosen.means)
        for choice in self._batch.rows_at_block_start():
            block = self._tables.grow(choice, int(self._batch.positions[choice.row]))
            if block is not None:
                self._batch.add_block(choice, block)

    def end_choice(self, choice: Choice) -> None:
        """A running choice has its last token; the group ends with the last choice."""
        group = choice.group
        self._forecast.observe(choice)
        self._batch.leave(choice)
        self._tables.return_choice(choice)
        self._room.note_return()
        group.sequences.remove(choice)
        if not group.sequences:
            self._end(group)

    def fail(
        self, group: SequenceGroup, reason: FailureReason, message: str, *, is_wrong: bool = False
    ) -> None:
        """End a sequence that cannot go on, once; `is_wrong` KV must not be found in the cache again."""
        parts = list(self._parts.get(group.handle, ()))
        if not parts:
            return
        tables = [part.block_table for part in parts]
        tables += [choice.block_table for part in parts for choice in part.sequences]
        self.report.failures.append(Failure(group.handle, reason, message))
        for part in parts:
            self._end(part)
        if is_wrong:
            self._tables.forget(tables)

    def check_integrity(self) -> None:
        """Assert that the groups' references and promises are all there are."""
        groups = [group for parts in self._parts.values() for group in parts]
        self._tables.check_integrity(groups)
        self._preempter.check_integrity(groups)
        assert self._num_promised_rows == sum(group.num_rows for group in self._prefilling.values())

    # In

    def _enter(self, spec: SequenceSpec, goal: Goal, *, receives: ReceiveKind | None = None) -> None:
        assert spec.handle not in self._parts, f"handle {spec.handle} is in use"
        sentence = refusal(spec, self._limits, has_text=self._detokenizer is not None)
        if sentence is not None:
            self._refuse(spec, FailureReason.REFUSED, sentence)
            return
        num_prompt = len(spec.prompt_token_ids)
        rules = output_rules(spec.stop, self._limits.eos_token_ids, num_prompt, self._limits.max_context)
        hashes = self._tables.hash_full_blocks(spec, spec.output_token_ids)
        group = SequenceGroup(next(self._keys), spec, goal, rules, hashes, self._clock())
        group.receives = receives is not None
        group.lacks_newest = receives is ReceiveKind.STOPPED
        num_most, num_blocks = self._tables.most_blocks(group, group.num_rows), self._blocks.num_blocks
        if num_most > num_blocks:
            sentence = f"up to {num_most} blocks are needed, and the pool has {num_blocks}"
            self._refuse(spec, FailureReason.NO_BLOCKS, sentence)
            return
        self._parts[group.handle] = [group]
        self._waiting.add(group)

    def _refuse(self, spec: SequenceSpec, reason: FailureReason, sentence: str) -> None:
        self.report.failures.append(Failure(spec.handle, reason, sentence))
        self.report.freed.append(spec.handle)

    def _admit_waiting(self) -> None:
        while (group := self._waiting.next(self._has_rows)) is not None and self._take_memory(group):
            self._waiting.remove(group)
            if group.receives:
                self._begin_receive(group)
            else:
                self._begin_prefill(group)
                self.publish_blocks(group)

    def _has_rows(self, group: SequenceGroup) -> bool:
        return self._batch.num_rows + self._num_promised_rows + group.num_rows <= self._batch.max_rows

    def _take_memory(self, group: SequenceGroup) -> bool:
        return self._room.take(group, self._holders(), is_idle=not self._batch.num_rows)

    def _holders(self) -> Iterator[SequenceGroup]:
        for parts in self._parts.values():
            for group in parts:
                if group.phase not in WITHOUT_BLOCKS:
                    yield group

    def _begin_prefill(self, group: SequenceGroup) -> None:
        group.phase = Phase.PREFILLING
        self._prefilling[group.key] = group
        self._num_promised_rows += group.num_rows

    def _new_choice(self, group: SequenceGroup, index: int) -> Choice:
        stream = None if self._detokenizer is None else self._detokenizer.stream()
        choice = Choice(group, index, OutputStream(group.rules, stream))
        # Delivered output has had its effect on the text, as if it had been generated here.
        for token_id in group.spec.output_token_ids:
            choice.output.push(token_id)
        if group.first_tokens is not None:
            choice.due = after_first_token(group.spec.tpot_ms, group.spec.itl_ms, group.first_token_s)
        return choice

    # Handed over from elsewhere

    def _begin_receive(self, group: SequenceGroup) -> None:
        group.phase = Phase.RECEIVING
        self._receiving[group.key] = group
        num_held = len(group.block_table)
        self._tables.cover(group, len(group.context))
        hashes = tuple(self._tables.hash_all_blocks(group))
        blocks = tuple(group.block_table[: len(hashes)])
        self.report.received.append(Received(group.handle, blocks, hashes, num_held))

    def _arrive(self, arrived: KVArrived) -> None:
        group = self._undivided(arrived.handle)
        if group is None:
            return
        if group.phase is Phase.ABANDONED:
            self._end(group)
            return
        assert group.phase is Phase.RECEIVING, f"KV arrived for a sequence that is {group.phase.value}"
        del self._receiving[group.key]
        self._tables.accept(group, arrived.num_verified_blocks)
        if group.goal is Goal.CACHE:
            self.report.prefilled.append(Prefilled(group.handle, group.num_cached_tokens))
            self._end(group)
            return
        group.receives = False
        if not group.lacks_newest:
            group.first_tokens = arrived.first_tokens
            group.first_token_s = self._clock() - arrived.first_token_age_s
        group.phase = Phase.ARRIVED
        self._arrived[group.key] = group

    def _give_up_copy(self, handle: int, message: str) -> None:
        group = self._undivided(handle)
        if group is None:
            return
        if group.phase is Phase.ABANDONED:
            self._end(group)
        else:
            assert group.phase is Phase.RECEIVING, f"KV failed for a sequence that is {group.phase.value}"
            self.fail(group, FailureReason.HANDOFF, message)

    def _undivided(self, handle: int) -> SequenceGroup | None:
        """The one group of a handle that has not run yet."""
        parts = self._parts.get(handle)
        return None if parts is None else parts[0]

    # Preempted

    def _preempt(self, group: SequenceGroup, means: Means) -> None:
        """Suspend a group until there is room for it again."""
        if group.phase is Phase.PREFILLING:
            self._leave_prefill(group)
        self._arrived.pop(group.key, None)
        if means is Means.SWAP:
            self._preempter.swap_out(group)
            parts = [group]
        else:
            parts = self._preempter.drop(group, self._keys)
            siblings = self._parts[group.handle]
            siblings.remove(group)
            siblings.extend(parts)
        if not self._is_preempted(group.handle):
            self.report.preempted.append(group.handle)
        self._room.note_return()
        waiting = [*self._preempted.values(), *parts]
        self._preempted = {part.key: part for part in sorted(waiting, key=_by_arrival)}

    def _resume_preempted(self) -> bool:
        """Whether nobody is left who has to come back before others start."""
        for group in list(self._preempted.values()):
            if not (self._has_rows(group) and self._take_memory(group)):
                return False
            del self._preempted[group.key]
            if group.phase is not Phase.RUNNING:
                self._begin_prefill(group)
            if not self._is_preempted(group.handle):
                self.report.resumed.append(group.handle)
        return True

    def _is_preempted(self, handle: int) -> bool:
        """Whether any part of it is."""
        return any(part.key in self._preempted for part in self._parts[handle])

    # To another worker

    def _lend(self, lend: Lend) -> None:
        running = (group for group in self._parts.get(lend.handle, ()) if group.phase is Phase.RUNNING)
        for choice in (choice for group in running for choice in group.sequences):
            if choice.choice == lend.choice and self._hold_part(choice, lend.part, lend.num_blocks):
                return
        self._refuse_part(lend.part)

    def _hand_over(self, stop: HandOver) -> None:
        parts = dict(stop.parts)
        for group in self._parts.get(stop.handle, ()):
            for choice in group.sequences if group.phase is Phase.RUNNING else ():
                self._batch.leave(choice)
                if choice.choice in parts and self._hold_part(choice, parts[choice.choice]):
                    del parts[choice.choice]
        for part in parts.values():
            self._refuse_part(part)
        self.report.parked.append(stop.handle)
        self._cancel(stop.handle)

    def _hold_part(self, choice: Choice, part: int, num_blocks: int | None = None) -> bool:
        """Hold a choice's blocks, under a handle of their own, until `Release`; whether there are any."""
        blocks, num_tokens = self._tables.share_written(choice, num_blocks)
        if not blocks:
            return False
        tokens = (*choice.group.spec.prompt_token_ids, *choice.output_token_ids)[:num_tokens]
        spec = dataclasses.replace(
            choice.group.spec,
            handle=part,
            prompt_token_ids=tokens,
            output_token_ids=(),
            choices=(choice.choice,),
        )
        hashes = self._tables.hash_full_blocks(spec, ())
        held = SequenceGroup(next(self._keys), spec, Goal.HOLD, choice.group.rules, hashes, self._clock())
        held.phase, held.block_table, held.num_computed_tokens = Phase.HELD, blocks, num_tokens
        self._parts[part] = [held]
        self.publish_blocks(held)
        return True

    def _refuse_part(self, part: int) -> None:
        self.report.failures.append(
            Failure(part, FailureReason.DRAINING, "its blocks are not there to offer")
        )
        self.report.freed.append(part)

    # Out

    def _release(self, handle: int) -> None:
        group = self._undivided(handle)
        if group is not None and group.goal is Goal.HOLD:
            self._end(group)

    def _cancel(self, handle: int) -> None:
        for group in list(self._parts.get(handle, ())):
            if group.phase in (Phase.RECEIVING, Phase.ABANDONED):
                group.phase = Phase.ABANDONED
                self._receiving.pop(group.key, None)
            else:
                self._end(group)

    def _end(self, group: SequenceGroup) -> None:
        """Return everything the group has, from whatever phase; the handle is free with its last part."""
        if group.phase is Phase.PREFILLING:
            self._leave_prefill(group)
        self._waiting.remove(group)
        for queue in (self._receiving, self._arrived, self._preempted):
            queue.pop(group.key, None)
        for choice in group.sequences:
            if choice.row >= 0:
                self._batch.leave(choice)
            self._tables.return_choice(choice)
        self._tables.return_context(group)
        self._preempter.forget(group)
        self._room.note_return()
        parts = self._parts[group.handle]
        parts.remove(group)
        if not parts:
            del self._parts[group.handle]
            self.report.freed.append(group.handle)

    def _hand_back(self) -> None:
        for parts in list(self._parts.values()):
            if all(_has_not_begun(group) for group in parts):
                self.fail(parts[0], FailureReason.DRAINING, "this worker is draining")

    def _leave_prefill(self, group: SequenceGroup) -> None:
        del self._prefilling[group.key]
        self._num_promised_rows -= group.num_rows


def _has_not_begun(group: SequenceGroup) -> bool:
    if group.is_resuming:
        return False
    has_computed = group.num_computed_tokens > group.num_cached_tokens
    return group.phase is Phase.WAITING or (group.phase is Phase.PREFILLING and not has_computed)


def _by_arrival(group: SequenceGroup) -> tuple[int, int]:
    return group.arrival, group.key
