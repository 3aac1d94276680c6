"""Host memory of a simulated worker: copies take time, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.memory.swap_memory import default_num_slots
from scheduling.memory.preemption import SwapSpeed


class CountedSwap:
    """Implements `engine.core.memory.swap_memory.SwapMemory`."""

    def __init__(self, num_blocks: int, speed: SwapSpeed) -> None:
        self.num_free = default_num_slots(num_blocks, speed.block_bytes, is_page_locked=True)
        self._num_slots = self.num_free
        self.block_bytes = speed.block_bytes
        self.bytes_per_s = speed.bytes_per_s
        self._copied_s = 0.0

    def store(self, blocks: Sequence[int]) -> list[int]:
        self.num_free -= len(blocks)
        self._copy(len(blocks))
        return [0] * len(blocks)

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        self._copy(len(slots))

    def release(self, slots: Sequence[int]) -> None:
        self.num_free += len(slots)

    def take_copied_s(self) -> float:
        """Return the seconds of copies that the next step waits for, once."""
        copied_s, self._copied_s = self._copied_s, 0.0
        return copied_s

    def check_integrity(self, held: Sequence[Sequence[int]]) -> None:
        self.check_some(held)

    def check_some(self, held: Sequence[Sequence[int]]) -> None:
        assert sum(map(len, held)) + self.num_free == self._num_slots

    def _copy(self, num_blocks: int) -> None:
        self._copied_s += num_blocks * self.block_bytes / self.bytes_per_s
