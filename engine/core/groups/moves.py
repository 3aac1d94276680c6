"""Running sequences that move to another worker: their blocks are offered to it."""

from __future__ import annotations

from collections.abc import Iterator

from engine.core.commands import PreCopy, StopAndCopy
from engine.core.groups.registry import GroupRegistry
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.moving import make_parts
from engine.core.report import Failure
from scheduling.request import FailureReason


class Moves:
    """Offers blocks of running choices; `keys` gives the groups that hold them new keys."""

    def __init__(self, registry: GroupRegistry, tables: BlockTables, keys: Iterator[int]) -> None:
        self._registry = registry
        self._tables = tables
        self._keys = keys

    def offer(self, command: PreCopy | StopAndCopy, now_s: float) -> None:
        """Carry out a command for the blocks of a sequence; with `StopAndCopy` the sequence ends."""
        match command:
            case PreCopy(handle, choice, num_blocks, part):
                self._hold(handle, {choice: part}, now_s, num_blocks)
            case StopAndCopy(handle, parts):
                self._hold(handle, dict(parts), now_s)
                self._registry.report.parked.append(handle)
                self._registry.cancel(handle)

    def _hold(self, handle: int, parts: dict[int, int], now_s: float, num_blocks: int | None = None) -> None:
        """Hold blocks of a handle's running choices, each under its handle in `parts`, until `Release`."""
        pieces = self._registry.pieces(handle)
        made = make_parts(self._tables, self._keys, pieces, parts, now_s, num_blocks)
        for group in made:
            self._registry.add(group)
            self._registry.publish_blocks(group)
        handles = {group.handle for group in made}
        for part in (part for part in parts.values() if part not in handles):
            self._registry.refuse(Failure(part, FailureReason.DRAINING, "its blocks are not there to offer"))
