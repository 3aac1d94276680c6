"""Host memory for the KV blocks of sequences that wait for their place in the pool."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

# Until something was swapped: what a copy between a GPU and pageable memory reaches.
_ASSUMED_BYTES_PER_S = 4e9
_ASSUMED_BYTES = 64e6


class SwapSpace:
    """`num_slots` places for blocks of `pool`; their memory is taken when the first is used."""

    def __init__(self, pool: Tensor, num_slots: int) -> None:
        if num_slots < 0:
            raise ValueError(f"num_slots is {num_slots}; accepted: 0 or more")
        self._pool = pool
        self._num_slots = num_slots
        self._host = torch.empty((0, *pool.shape[1:]), dtype=pool.dtype)
        self._free = list(range(num_slots))
        self._bytes = _ASSUMED_BYTES
        self._seconds = _ASSUMED_BYTES / _ASSUMED_BYTES_PER_S

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def block_bytes(self) -> int:
        return max(1, self._pool[0].numel() * self._pool.element_size())

    @property
    def bytes_per_s(self) -> float:
        """As measured, in either direction."""
        return self._bytes / self._seconds

    def store(self, blocks: Sequence[int]) -> list[int]:
        """Copy blocks of the pool out; answers their slots. The caller has seen that there is room."""
        assert len(blocks) <= self.num_free
        if not len(self._host):
            self._host = torch.empty((self._num_slots, *self._pool.shape[1:]), dtype=self._pool.dtype)
        slots = [self._free.pop() for _ in blocks]
        started = time.perf_counter()
        self._host[slots] = self._pool[list(blocks)].cpu()
        self._observe(len(blocks), time.perf_counter() - started)
        return slots

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots back into blocks of the pool."""
        if not slots:
            return
        started = time.perf_counter()
        self._pool[list(blocks)] = self._host[list(slots)].to(self._pool.device)
        self._observe(len(blocks), time.perf_counter() - started)

    def release(self, slots: Sequence[int]) -> None:
        self._free.extend(slots)

    def check_integrity(self, held: Sequence[Sequence[int]]) -> None:
        """Assert that the slots in `held` are all that are not free, each once."""
        slots = [slot for part in held for slot in part]
        assert sorted([*slots, *self._free]) == list(range(self._num_slots))

    def _observe(self, num_blocks: int, seconds: float) -> None:
        self._bytes += num_blocks * self.block_bytes
        self._seconds += seconds
