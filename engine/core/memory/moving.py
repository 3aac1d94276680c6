"""Holds the blocks of running choices for another worker, so that they go on there.

Each choice's blocks become a group of their own, under a handle of its own: it is offered as a prefilled
prompt is, and outlives the choice until it is released.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from engine.core.memory.block_tables import BlockTables
from engine.core.sequence import Goal, Phase, SequenceGroup


def make_parts(
    tables: BlockTables,
    keys: Iterator[int],
    groups: Iterable[SequenceGroup],
    parts: Mapping[int, int],
    now_s: float,
    num_blocks: int | None = None,
) -> list[SequenceGroup]:
    """Return a group, with a new key, for each running choice with blocks that `parts` has a handle for.

    It holds the choice's first `num_blocks`, by default all that are written to. A choice that has fewer full
    blocks than asked for has none to hold. The caller enters and offers the groups.
    """
    made = []
    running = (group for group in groups if group.phase is Phase.RUNNING)
    for choice in (choice for group in running for choice in group.choices if choice.index in parts):
        blocks, num_tokens = tables.share_written(choice, num_blocks)
        if not blocks:
            continue
        group = choice.group
        spec = dataclasses.replace(
            group.spec,
            handle=parts[choice.index],
            prompt_token_ids=(*group.spec.prompt_token_ids, *choice.output_token_ids)[:num_tokens],
            output_token_ids=(),
            choices=(choice.index,),
        )
        hashes = tables.names.of_full_blocks(spec, ())
        part = SequenceGroup(next(keys), spec, Goal.HAND_OVER, group.rules, hashes, now_s)
        part.phase, part.block_table, part.num_computed_tokens = Phase.HELD, blocks, num_tokens
        made.append(part)
    return made
