"""How blocks are named in the prefix cache: equal names mean equal content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.core.sequence import Choice, SequenceGroup
from scheduling.memory.block_hash import chain_root, hash_block, hash_blocks
from scheduling.request import SequenceSpec


class BlockNames(Protocol):
    """Names of full blocks, each of which follows from the one before."""

    def of_full_blocks(self, spec: SequenceSpec, output_token_ids: Sequence[int]) -> Sequence[bytes]:
        """Return the names of the leading full blocks of the prompt and some output that others may share."""
        ...

    def of_received(self, group: SequenceGroup) -> Sequence[bytes]:
        """Return the names of the blocks that are, or were, computed elsewhere.

        The last one may be partial.
        """
        ...

    def of_last(self, group: SequenceGroup, num_blocks: int) -> bytes:
        """Return the name of the last of the context's first `num_blocks`; the next one follows from it."""
        ...

    def of_next(self, choice: Choice) -> bytes | None:
        """Return the name of the choice's first block without one, all of whose tokens are known.

        None if it, and what follows it, is not to be found by others.
        """
        ...


class HashedNames:
    """Chained hashes of the tokens, the model, the tenant's salt and the adapter."""

    def __init__(self, fingerprint: str, block_size: int) -> None:
        self._fingerprint = fingerprint
        self._size = block_size

    def of_full_blocks(self, spec: SequenceSpec, output_token_ids: Sequence[int]) -> list[bytes]:
        return hash_blocks(self._root(spec), [*spec.prompt_token_ids, *output_token_ids], self._size)

    def of_received(self, group: SequenceGroup) -> list[bytes]:
        end = group.num_received_tokens
        hashes = list(group.block_hashes[: end // self._size])
        rest = group.context[len(hashes) * self._size : end]
        if rest.size:
            hashes.append(hash_block(hashes[-1] if hashes else self._root(group.spec), rest.tolist()))
        return hashes

    def of_last(self, group: SequenceGroup, num_blocks: int) -> bytes:
        return group.block_hashes[num_blocks - 1] if num_blocks else self._root(group.spec)

    def of_next(self, choice: Choice) -> bytes:
        index, hashes = choice.num_registered_blocks, choice.group.block_hashes
        return hashes[index] if index < len(hashes) else choice.hash_next_block(self._size)

    def _root(self, spec: SequenceSpec) -> bytes:
        return chain_root(self._fingerprint, spec.cache_salt, spec.adapter)
