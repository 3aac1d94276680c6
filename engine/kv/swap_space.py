"""Host memory for the KV blocks of preempted sequences.

On a GPU the copies run beside the steps. Only a step that would overwrite blocks still being read, or read
blocks still being written, waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.core.memory.stores import default_num_slots
from engine.device import delay_steps, mark_steps
from engine.kv.block_copies import BlockCopies, Copying

# Assumed until something was swapped: the speed of a copy between a GPU and pageable memory.
_ASSUMED_BYTES_PER_S = 4e9
_ASSUMED_BYTES = 64e6


def default_slots(pool: Tensor) -> int:
    """Return how many slots a worker has for blocks of `pool` unless it is told."""
    return default_num_slots(len(pool), max(1, pool[0].nbytes), is_page_locked=pool.device.type == "cuda")


class SwapSpace:
    """`num_slots` slots for blocks of `pool`, used by the thread of the steps alone.

    On a CPU their memory is allocated at first use; on a GPU at once, as page-locking takes seconds.
    """

    def __init__(self, pool: Tensor, num_slots: int) -> None:
        if num_slots < 0:
            raise ValueError(f"num_slots is {num_slots}; accepted: 0 or more")
        self._pool = pool
        self._num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        """Descending, so that neighbours are reserved together."""
        self._bytes = _ASSUMED_BYTES
        self._seconds = _ASSUMED_BYTES / _ASSUMED_BYTES_PER_S
        self._unobserved: list[Copying] = []
        self._copies: BlockCopies | None = None
        if num_slots and pool.device.type == "cuda":
            self._copies = self._allocate()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def block_bytes(self) -> int:
        return max(1, self._pool[0].nbytes)

    @property
    def bytes_per_s(self) -> float:
        """The measured speed, in either direction, of copies that have ended."""
        while self._unobserved and self._unobserved[0].ended.query():
            copying = self._unobserved.pop(0)
            self._bytes += copying.num_blocks * self.block_bytes
            self._seconds += copying.begun.elapsed_time(copying.ended) / 1000
        return self._bytes / self._seconds

    def store(self, blocks: Sequence[int]) -> list[int]:
        """Copy blocks of the pool out; return their slots. The caller checks that there is room."""
        assert len(blocks) <= self.num_free
        if self._copies is None:
            self._copies = self._allocate()
        slots = [self._free.pop() for _ in blocks]
        copying = self._copies.store(blocks, slots, mark_steps(self._pool.device))
        delay_steps(self._pool.device, copying.read)
        self._unobserved.append(copying)
        return slots

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots back into blocks of the pool; the slots may be released at once."""
        if not slots:
            return
        assert self._copies is not None, "nothing has been stored"
        copying = self._copies.load(slots, blocks, mark_steps(self._pool.device))
        delay_steps(self._pool.device, copying.ended)
        self._unobserved.append(copying)

    def release(self, slots: Sequence[int]) -> None:
        """Free slots. They may still be read: later copies into them run after that."""
        self._free.extend(slots)
        self._free.sort(reverse=True)

    def check_integrity(self, held: Sequence[Sequence[int]]) -> None:
        """Assert that the slots in `held` are all that are not free, each once."""
        slots = [slot for part in held for slot in part]
        assert sorted([*slots, *self._free]) == list(range(self._num_slots))

    def check_some(self, held: Sequence[Sequence[int]]) -> None:
        """Assert that no slot is lost or held twice, by their number."""
        assert sum(map(len, held)) + len(self._free) == self._num_slots

    def _allocate(self) -> BlockCopies:
        host = torch.empty((self._num_slots, *self._pool.shape[1:]), dtype=self._pool.dtype)
        return BlockCopies(self._pool, host)
