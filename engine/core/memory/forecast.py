"""Whether the pool is enough for groups until they end, by how long outputs have been."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.core.memory.block_manager import BlockManager
from engine.core.sequence import Goal, Phase, SequenceGroup
from engine.core.sequence import Sequence as Choice
from scheduling.memory.reservation import LengthQuantiles, peak_blocks, spread

WITHOUT_BLOCKS = (Phase.WAITING, Phase.PREEMPTED, Phase.SWAPPED)


class Forecast:
    """Learns lengths from the outputs that end here."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._lengths = LengthQuantiles()

    def observe(self, choice: Choice) -> None:
        """The choice has its last token; a length that was demanded says nothing of others."""
        if not choice.group.spec.stop.ignore_eos:
            self._lengths.observe(len(choice.output_token_ids))

    def fits(self, groups: Iterable[SequenceGroup], candidate: SequenceGroup) -> bool:
        """Whether the pool stands `groups`, who are all that hold blocks, and `candidate` until they end.

        Always so for a candidate that would decode alone: no pool has more room for it later.
        """
        num_held = num_fixed = num_most = 0
        growing: list[tuple[float, int]] = []
        is_alone = True
        for group in groups:
            held = _num_held(group)
            num_held += held
            if not _grows(group):
                num_fixed += held
                continue
            growing.extend(self._choices(group, held))
            num_most += held + self._most_growth(group)
            is_alone = is_alone and group is candidate
        if is_alone:
            return True
        if candidate.swapped is not None:
            num_swapped = len(candidate.swapped.slots)
            growing.extend(self._choices(candidate, num_swapped))
            num_most += num_swapped + self._most_growth(candidate)
        num_shared = num_held - self._blocks.num_taken_blocks
        peak = min(num_most, peak_blocks(growing, self._blocks.block_size))
        return peak + num_fixed - num_shared <= self._blocks.num_blocks

    def _most_growth(self, group: SequenceGroup) -> int:
        """Blocks that its choices can take on top."""
        size, limit, first = self._blocks.block_size, group.rules.limit, _num_first_outputs(group)
        if not group.sequences:
            return group.num_rows * -(-(limit - first) // size)
        return sum(-(-(limit - len(choice.output_token_ids)) // size) for choice in group.sequences)

    def _choices(self, group: SequenceGroup, num_held: int) -> Iterator[tuple[float, int]]:
        """Per choice: blocks it holds, and tokens it is expected to get yet."""
        share = num_held / group.num_rows
        if not group.sequences:
            for choice in group.spec.choices:
                yield share, self._remaining(group, choice, _num_first_outputs(group))
        for sequence in group.sequences:
            yield share, self._remaining(group, sequence.choice, len(sequence.output_token_ids))

    def _remaining(self, group: SequenceGroup, choice: int, num_outputs: int) -> int:
        limit = group.rules.limit
        if group.spec.stop.ignore_eos:
            return max(1, limit - num_outputs)
        return self._lengths.remaining(num_outputs, limit, spread(group.arrival + choice))


def _num_first_outputs(group: SequenceGroup) -> int:
    """Output tokens that each choice of a group has before it runs."""
    return len(group.spec.output_token_ids) + (group.first_tokens is not None)


def _grows(group: SequenceGroup) -> bool:
    return group.goal is Goal.DECODE and group.phase is not Phase.ABANDONED


def _num_held(group: SequenceGroup) -> int:
    holders: list[SequenceGroup | Choice] = [group, *group.sequences]
    return sum(len(holder.block_table) + holder.num_reserved_blocks for holder in holders)
