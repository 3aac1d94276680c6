"""Takes a step that is over into the books: what follows from its tokens, and what to report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engine.core.batch import Batch
from engine.core.groups import Groups
from engine.core.memory.block_tables import BlockTables
from engine.core.sequence import Goal, Phase, SequenceGroup
from engine.core.sequence import Sequence as Choice
from engine.execution.flight import Flight
from engine.sampling.sampler import Sampled
from scheduling.request import FailureReason

_BROKEN_LOGITS = "the model's logits are not finite: its weights or its KV are damaged"


class Books:
    """A later step may be in flight meanwhile, with rows of choices that turn out to have ended."""

    def __init__(
        self, groups: Groups, batch: Batch, tables: BlockTables, block_size: int, clock: Callable[[], float]
    ) -> None:
        self._groups = groups
        self._batch = batch
        self._tables = tables
        self._block_size = block_size
        self._clock = clock

    def enter(self, flight: Flight, sampled: Sampled | None, *, is_overtaken: bool) -> list[SequenceGroup]:
        """Take in a step that is over, and overtaken where the one in flight has a further token of its rows.

        Answers the groups whose context is complete and whose first tokens came with it.
        """
        report = self._groups.report
        report.shape, report.recomputed_tokens = flight.shape, flight.num_recomputed
        for group in flight.chunks:
            self._groups.settle_chunk(group)
        self._report_prompts(flight)
        prefilled = [group for group in flight.prefilled if group.phase is not Phase.ENDED]
        for group in prefilled:
            report.add_prefilled(group)
        if sampled is not None:
            self._take_tokens(flight, sampled, is_overtaken=is_overtaken)
        for group in prefilled:
            if group.goal is Goal.HOLD and group.phase is not Phase.ENDED:
                self._groups.hold(group)
        return [group for group in flight.chunks if _brought_first_tokens(group)]

    def _report_prompts(self, flight: Flight) -> None:
        for taken in flight.prompt_rows:
            if taken.group.phase is Phase.ENDED:
                continue
            told = taken.wait()
            if told is None:
                self._groups.fail(taken.group, FailureReason.INTERNAL, _BROKEN_LOGITS, is_wrong=True)
            else:
                self._groups.report.prompt_logprobs.append(told)

    def _take_tokens(self, flight: Flight, sampled: Sampled, *, is_overtaken: bool) -> None:
        """Append and report a token of each row; let go of what ended or broke."""
        self._move_on(flight, sampled, is_overtaken=is_overtaken)
        choices = flight.choices
        wanted = [place for place, choice in enumerate(choices) if not choice.is_over]
        broken: dict[int, SequenceGroup] = {}
        if sampled.is_broken.any():
            groups = [choices[place].group for place in wanted if sampled.is_broken[place]]
            broken = {group.handle: group for group in groups}
            wanted = [place for place in wanted if choices[place].group.handle not in broken]
        first_row = self._groups.report.num_rows
        self._report_tokens(flight, sampled, wanted)
        for group in broken.values():
            self._groups.fail(group, FailureReason.INTERNAL, _BROKEN_LOGITS, is_wrong=True)
        fills = (flight.positions + 1) % self._block_size == 0
        fills[flight.shape.num_decodes :] = True
        self._share_blocks([choices[place] for place in wanted if fills[place]])
        for row, place in enumerate(wanted, first_row):
            choice = choices[place]
            if choice.is_finished:
                self._groups.report.add_stop(row, choice)
                if choice.group.goal is not Goal.HOLD:
                    self._groups.end_choice(choice)

    def _move_on(self, flight: Flight, sampled: Sampled, *, is_overtaken: bool) -> None:
        """The rows that go on, wherever they are by now."""
        rows = np.array([choice.row for choice in flight.choices])
        is_in = rows >= 0
        self._batch.due_times.advance(rows[is_in], self._clock())
        if not is_overtaken:
            self._batch.landed(rows[is_in], sampled.token_ids[is_in])

    def _report_tokens(self, flight: Flight, sampled: Sampled, wanted: Sequence[int]) -> None:
        choices = flight.choices
        columns = [flight.handles, flight.choice_indexes, flight.token_indexes, sampled.token_ids.tolist()]
        if len(wanted) < len(choices):
            columns = [[column[place] for place in wanted] for column in columns]
        if sampled.logprobs is not None:
            row_of = {flight.first_row + place: order for order, place in enumerate(wanted)}
            self._groups.report.add_logprobs(sampled.logprobs, flight.num_logprobs, row_of)
        handles, choice_indexes, token_indexes, token_ids = columns
        pushed = [choices[place].push(token_id) for place, token_id in zip(wanted, token_ids, strict=True)]
        self._groups.report.add_rows(handles, choice_indexes, token_indexes, token_ids, pushed)

    def _share_blocks(self, choices: Sequence[Choice]) -> None:
        for choice in choices:
            if choice.block_table:
                self._tables.register_written(choice)


def _brought_first_tokens(group: SequenceGroup) -> bool:
    is_complete = group.phase is Phase.PREFILLING and group.num_settled_tokens == len(group.context)
    return is_complete and group.first_tokens is not None
