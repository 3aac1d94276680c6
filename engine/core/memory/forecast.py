"""Foresees whether the pool is enough for groups until they end, by how long outputs have been."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.core.memory.block_pool import BlockPool
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup
from scheduling.memory.reservation import LengthQuantiles, peak_blocks, spread


class MemoryForecast:
    """Learns lengths from the outputs that end here."""

    def __init__(self, blocks: BlockPool) -> None:
        self._blocks = blocks
        self._lengths = LengthQuantiles()
        self._growths: dict[int, int] = {}
        """By the key of each group with blocks: the blocks that it could take on top when it got them."""
        self._most_growth_of_all = 0

    def add(self, group: SequenceGroup) -> None:
        """A group has got blocks."""
        growth = self._most_growth(group) if _grows(group) else 0
        self._growths[group.key] = growth
        self._most_growth_of_all += growth

    def remove(self, group: SequenceGroup) -> None:
        """A group has no blocks any more."""
        self._most_growth_of_all -= self._growths.pop(group.key, 0)

    def observe(self, choice: Choice) -> None:
        """The choice has its last token; a length that was demanded says nothing of others."""
        if not choice.group.spec.stop.ignore_eos:
            self._lengths.observe(choice.num_outputs)

    def fits(self, groups: Iterable[SequenceGroup], candidate: SequenceGroup) -> bool:
        """Return True if the pool is enough for all holders of blocks and `candidate` until they end.

        A candidate that would decode alone always fits, as there will never be more room for it.
        """
        if self._fits_at_most(candidate):
            return True
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

    def _fits_at_most(self, candidate: SequenceGroup) -> bool:
        """Return True if the pool is enough even if every output becomes as long as it may."""
        most = self._blocks.num_taken_blocks + self._most_growth_of_all
        if candidate.swapped is not None:
            most += len(candidate.swapped.slots)
        if _grows(candidate):
            most += self._most_growth(candidate)
        return most <= self._blocks.num_blocks

    def _most_growth(self, group: SequenceGroup) -> int:
        """Return the number of blocks that its choices can take on top."""
        size, limit, first = self._blocks.block_size, group.rules.limit, _num_first_outputs(group)
        if not group.choices:
            return group.num_rows * -(-(limit - first) // size)
        return sum(-(-(limit - choice.num_outputs) // size) for choice in group.choices)

    def _choices(self, group: SequenceGroup, num_held: int) -> Iterator[tuple[float, int]]:
        """Yield for each choice the blocks it holds and the tokens it is expected to get yet."""
        share = num_held / group.num_rows
        if not group.choices:
            for index in group.spec.choices:
                yield share, self._remaining(group, index, _num_first_outputs(group))
        for choice in group.choices:
            yield share, self._remaining(group, choice.index, choice.num_outputs)

    def _remaining(self, group: SequenceGroup, index: int, num_outputs: int) -> int:
        limit = group.rules.limit
        if group.spec.stop.ignore_eos:
            return max(1, limit - num_outputs)
        return self._lengths.remaining(num_outputs, limit, spread(group.arrival + index))


def _num_first_outputs(group: SequenceGroup) -> int:
    """Output tokens that each choice of a group has before it runs."""
    return len(group.spec.output_token_ids) + (group.first_tokens is not None)


def _grows(group: SequenceGroup) -> bool:
    return group.goal is Goal.DECODE and group.phase is not Phase.ABANDONED


def _num_held(group: SequenceGroup) -> int:
    holders: list[SequenceGroup | Choice] = [group, *group.choices]
    return sum(len(holder.block_table) + holder.num_reserved_blocks for holder in holders)
