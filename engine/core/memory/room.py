"""Decides which groups memory has room for: who starts, who gives way, and who comes back.

A forecast of lengths says whether the pool is enough until they end: how many blocks running sequences will
need, as expected from the lengths of recent outputs.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import chain

from engine.core.batch import Batch
from engine.core.memory.block_manager import BlockShortage
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.stores import BlockPool, SwapMemory
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup
from scheduling.cost_model import CostModel
from scheduling.memory.preemption import Means, Preemption, SwapSpeed, VictimView, choose

MAX_TURNS_UNASKED = 16
"""A group that there was no room for is looked at again when blocks come back, or after so many turns."""
_CAN_GIVE_UP = (Phase.ARRIVED, Phase.PREFILLING, Phase.RUNNING)
DEVIATION = 0.75
"""Standard deviation of an output length divided by its mean: between lognormal (0.6) and exponential (1)."""


class Room:
    """Gives groups the blocks they start with, if there are enough until all end, as is expected.

    Where there are not enough in the end, it takes the blocks of groups away, without loss to their output.
    It keeps the forecast and the host memory; the block tables say what each group has. Groups lose blocks
    through its methods alone, so that it knows when to look again at a group it has refused.
    """

    def __init__(self, tables: BlockTables, batch: Batch, blocks: BlockPool, swap: SwapMemory) -> None:
        self._tables = tables
        self._batch = batch
        self._blocks = blocks
        self._swap = swap
        self._forecast = MemoryForecast(blocks)
        self._refused_key: int | None = None
        self.num_turns_unasked = 0
        """Turns since a refused group was last looked at."""

    # To start, or to come back

    def take(self, group: SequenceGroup, holders: Iterable[SequenceGroup]) -> bool:
        """Return True if the group has its blocks now; `holders` are all groups that have some.

        A group that was refused is looked at again when blocks have come back, after `MAX_TURNS_UNASKED`
        turns, or if nothing runs.
        """
        if self._batch.num_rows and self.num_turns_in_vain(group) > 0:
            self.num_turns_unasked += 1
            return False
        self.num_turns_unasked = 0
        has_room = self._swap_in if group.phase is Phase.SWAPPED else self._reserve
        is_in = has_room(group, holders)
        self._refused_key = None if is_in else group.key
        if is_in:
            self._forecast.add(group)
        return is_in

    def num_turns_in_vain(self, group: SequenceGroup) -> int:
        """Return for how many turns a group will not be looked at, as there was no room for it."""
        return MAX_TURNS_UNASKED - self.num_turns_unasked if group.key == self._refused_key else 0

    def _reserve(self, group: SequenceGroup, holders: Iterable[SequenceGroup]) -> bool:
        prefix = (
            group.block_hashes
            if group.receives and not group.lacks_newest
            else self._tables.computable_prefix(group)
        )
        try:
            self._tables.reserve(group, prefix)
        except BlockShortage:
            return False
        if not (self._tables.reserves_maximum or self._forecast.fits(chain(holders, [group]), group)):
            self._tables.return_context(group)
            return False
        return True

    def _swap_in(self, group: SequenceGroup, holders: Iterable[SequenceGroup]) -> bool:
        assert group.swapped is not None
        if not self._forecast.fits(holders, group):
            return False
        slots = group.swapped.slots
        try:
            copies = self._tables.swap_in(group)
        except BlockShortage:
            return False
        self._swap.load([slot for slot, _ in copies], [block for _, block in copies])
        self._swap.release(slots)
        return True

    # To end

    def end(self, group: SequenceGroup) -> None:
        """Take back all that a group and its choices have, in host memory too."""
        for choice in group.choices:
            self._tables.return_choice(choice)
        self._tables.return_context(group)
        if group.swapped is not None:
            self._swap.release(group.swapped.slots)
            group.swapped = None
        self._forecast.remove(group)
        self.note_return()

    def end_choice(self, choice: Choice) -> None:
        """Take back what a running choice has that got its last token."""
        self._tables.return_choice(choice)
        self.note_return()

    def observe(self, choice: Choice) -> None:
        """Learn from the length of a choice that has its last token."""
        self._forecast.observe(choice)

    def give_back(self, held: list[int]) -> None:
        """The step that blocks were held back for is over."""
        self._tables.give_back(held)
        if held:
            self.note_return()

    def note_return(self) -> None:
        """Blocks came back: a group that was refused may be asked again."""
        self._refused_key = None

    # To give way

    def num_short(self) -> int:
        """Return how many blocks running choices need next beyond those promised and available."""
        num_available = self._blocks.num_available_blocks
        if num_available >= self._batch.num_rows:
            return 0
        return max(0, sum(self._needs().values()) - num_available)

    def choose_victim(
        self, groups: Iterable[SequenceGroup], num_short: int, cost: CostModel, now_s: float
    ) -> Preemption:
        """Return which of `groups`, named by its key, gives its blocks up, and how."""
        needs = self._needs()
        views = [
            self._view(group, needs[group], now_s)
            for group in groups
            if group.phase in _CAN_GIVE_UP and group.goal is Goal.DECODE
        ]
        speed = SwapSpeed(self._swap.block_bytes, self._swap.bytes_per_s)
        chosen = choose(views, num_short, cost, speed)
        assert chosen is not None, "a choice that is short of a block needs it no longer once preempted"
        return chosen

    def suspend(self, group: SequenceGroup, means: Means, keys: Iterator[int]) -> list[SequenceGroup]:
        """Take a group's blocks away and return the groups that go on in its stead, once there is room.

        That is the group itself or, if running choices are to be computed again, one for each of them, with
        keys of their own.
        """
        pieces = [group]
        if means is Means.SWAP:
            slots = self._swap.store(self._tables.unique_blocks(group))
            self._tables.swap_out(group, slots)
        elif group.phase is Phase.RUNNING:
            pieces = self._drop_choices(group, keys)
        else:
            self._tables.lose_context(group)
        self._forecast.remove(group)
        self.note_return()
        return pieces

    def _drop_choices(self, group: SequenceGroup, keys: Iterator[int]) -> list[SequenceGroup]:
        for choice in group.choices:
            self._tables.return_choice(choice)
        pieces = [group]
        if len(group.choices) > 1:
            pieces = [group.piece(next(keys), choice) for choice in group.choices]
        for piece in pieces:
            self._tables.rewind(piece)
        return pieces

    def _needs(self) -> Counter[SequenceGroup]:
        """Count the blocks that running groups need now and were not promised."""
        needs: Counter[SequenceGroup] = Counter()
        for choice in self._batch.rows_at_block_start():
            position = int(self._batch.positions[choice.row])
            is_short = not choice.num_reserved_blocks and self._tables.lacks_block(choice, position)
            needs[choice.group] += is_short
        return needs

    def _view(self, group: SequenceGroup, num_needed: int, now_s: float) -> VictimView:
        is_running = group.phase is Phase.RUNNING
        tables = [choice.block_table for choice in group.choices] if is_running else [group.block_table]
        num_promised = group.num_reserved_blocks + sum(c.num_reserved_blocks for c in group.choices)
        num_swap = len(tables[0]) if len(tables) == 1 else len({block for table in tables for block in table})
        return VictimView(
            key=group.key,
            num_tokens=_num_lost_tokens(group, is_running),
            num_freed_blocks=self._blocks.num_exclusive(tables) + num_promised + num_needed,
            num_swap_blocks=num_swap,
            arrival=group.arrival,
            slack_s=min((self._slack_s(choice, now_s) for choice in group.choices), default=math.inf),
            can_swap=is_running and num_swap <= self._swap.num_free,
        )

    def _slack_s(self, choice: Choice, now_s: float) -> float:
        due_s = choice.due.next_s if choice.row < 0 else float(self._batch.due_times.next_due[choice.row])
        return max(0.0, due_s - now_s)

    def check_integrity(self, groups: Iterable[SequenceGroup], *, is_whole: bool) -> None:
        """Assert that host memory is what swapped groups hold; unless `is_whole`, by the number of slots."""
        slots = [group.swapped.slots for group in groups if group.swapped is not None]
        check = self._swap.check_integrity if is_whole else self._swap.check_some
        check(slots)


def _num_lost_tokens(group: SequenceGroup, is_running: bool) -> int:
    if not is_running:
        return group.num_computed_tokens
    num_prompt = len(group.spec.prompt_token_ids)
    return sum(num_prompt + choice.num_outputs for choice in group.choices)


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


class LengthQuantiles:
    """The last `window` output lengths, to predict how long a running output gets."""

    # With fewer examples the longest output is assumed: a guess that is too low costs computed work.
    MIN_EXAMPLES = 8

    def __init__(self, window: int = 512) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; accepted: at least 1")
        self._window = window
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def observe(self, num_tokens: int) -> None:
        """Learn from an output that ended by itself after `num_tokens`."""
        if len(self._recent) == self._window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(num_tokens)
        insort(self._sorted, num_tokens)

    def remaining(self, num_so_far: int, limit: int, share: float) -> int:
        """Return the tokens still to come that a share of outputs does not exceed, 1 to `limit - num_so_far`.

        Only outputs longer than `num_so_far` count: P(total ≤ x | total > so far) ≥ share.
        """
        begin = bisect_right(self._sorted, num_so_far)
        num_longer = len(self._sorted) - begin
        most = max(1, limit - num_so_far)
        if num_longer < self.MIN_EXAMPLES:
            return most
        place = begin + min(num_longer - 1, int(share * num_longer))
        return min(most, self._sorted[place] - num_so_far)


def spread(index: int) -> float:
    """Return a share from 0 to 1 for the index-th sequence; any run of indexes covers 0 to 1 evenly.

    It is the fraction of a multiple of the golden ratio: the least clustered of all such sequences (Knuth,
    "The Art of Computer Programming" 3, 6.4).
    """
    return (index * 0.6180339887498949) % 1.0


def peak_blocks(sequences: Iterable[tuple[float, int]], block_size: int) -> int:
    """Return the most blocks that running sequences will hold at one time, if each runs as long as expected.

    A sequence is (blocks it holds, tokens still to come). All get a token per step, and give their blocks
    back when they end. The peak is just before a sequence ends, so each end is examined. One standard
    deviation of the sum is added, with the lengths taken as independent.

    A sum of one high quantile per sequence would keep half of the pool for outputs that never get that long,
    and ignore that short outputs make room for long ones: Gong et al., "Past-Future Scheduler for LLM Serving
    under SLA Guarantees", ASPLOS 2025. There, lengths are drawn at random from past outputs; here, `spread`
    gives each sequence its own quantile, which needs no randomness and less of a margin.
    """
    peak = held = squares = 0.0
    for count, (blocks, remaining) in enumerate(sorted(sequences, key=_by_remaining, reverse=True), 1):
        held += blocks
        squares += remaining * remaining
        peak = max(peak, held + (count * remaining + DEVIATION * math.sqrt(squares)) / block_size)
    return math.ceil(peak)


def _by_remaining(sequence: tuple[float, int]) -> int:
    return sequence[1]
