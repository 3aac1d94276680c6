"""Names of the blocks that a trace's requests can share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.core.sequence import Choice, SequenceGroup
from scheduling.request import SequenceSpec
from sim.workers.sequence import SimSequence
from workloads.trace import TraceRequest


def names_of(asked: TraceRequest, tenant: int, block_size: int) -> tuple[bytes, ...]:
    """Return the names of the full blocks of a request's shared prefix, chained by its pieces."""
    tokens, pieces = asked.shared_block_tokens, asked.shared_blocks
    num_blocks = min(len(pieces) * tokens, asked.prompt_tokens) // block_size
    names = []
    for index in range(num_blocks):
        last_piece = ((index + 1) * block_size - 1) // tokens
        names.append(f"{tenant} {tokens} {pieces[: last_piece + 1]} {index}".encode())
    return tuple(names)


class SharedNames:
    """Implements `engine.core.memory.block_names.BlockNames`; all blocks of outputs are nameless."""

    def __init__(self, sequences: Mapping[int, SimSequence]) -> None:
        self._sequences = sequences

    def of_full_blocks(self, spec: SequenceSpec, output_token_ids: Sequence[int]) -> Sequence[bytes]:
        return self._sequences[spec.handle].block_names

    def of_received(self, group: SequenceGroup) -> Sequence[bytes]:
        return group.block_hashes

    def of_last(self, group: SequenceGroup, num_blocks: int) -> bytes:
        return group.block_hashes[num_blocks - 1] if 0 < num_blocks <= len(group.block_hashes) else b""

    def of_next(self, choice: Choice) -> bytes | None:
        index, names = choice.num_registered_blocks, choice.group.block_hashes
        return names[index] if index < len(names) else None
