"""Holds the blocks of running choices for another worker, so that they go on there.

Each choice's blocks become a group of their own, under a handle of its own: it is offered as a prefilled
prompt is, and outlives the choice until it is released.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from engine.core.memory.block_tables import BlockTables
from engine.core.sequence import Choice, Goal, Phase, SequenceGroup


class Mover:
    """Makes the held groups, with keys of their own; its caller enters and offers them."""

    def __init__(self, tables: BlockTables, keys: Iterator[int]) -> None:
        self._tables = tables
        self._keys = keys

    def hold(
        self,
        groups: Iterable[SequenceGroup],
        parts: Mapping[int, int],
        now_s: float,
        num_blocks: int | None = None,
    ) -> list[SequenceGroup]:
        """Return a group for each running choice with blocks that `parts` has a handle for.

        It holds the choice's first `num_blocks`, by default all that are written to. A choice that has fewer
        full blocks than asked for has none to hold.
        """
        running = (group for group in groups if group.phase is Phase.RUNNING)
        choices = (choice for group in running for choice in group.choices if choice.index in parts)
        held = (self._hold(choice, parts[choice.index], now_s, num_blocks) for choice in choices)
        return [group for group in held if group is not None]

    def _hold(self, choice: Choice, part: int, now_s: float, num_blocks: int | None) -> SequenceGroup | None:
        blocks, num_tokens = self._tables.share_written(choice, num_blocks)
        if not blocks:
            return None
        tokens = (*choice.group.spec.prompt_token_ids, *choice.output_token_ids)[:num_tokens]
        spec = dataclasses.replace(
            choice.group.spec,
            handle=part,
            prompt_token_ids=tokens,
            output_token_ids=(),
            choices=(choice.index,),
        )
        hashes = self._tables.names.of_full_blocks(spec, ())
        held = SequenceGroup(next(self._keys), spec, Goal.HAND_OVER, choice.group.rules, hashes, now_s)
        held.phase, held.block_table, held.num_computed_tokens = Phase.HELD, blocks, num_tokens
        return held
