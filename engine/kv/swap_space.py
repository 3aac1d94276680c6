"""Host memory for the KV blocks of sequences that wait for their place in the pool.

On a GPU the copies run beside the steps: nobody waits for them but the step that would write to blocks still
being read, or read blocks still being written.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.device.copy_stream import hold_steps, mark_steps
from engine.kv.block_copies import BlockCopies, Copying

# Until something was swapped: what a copy between a GPU and pageable memory reaches.
_ASSUMED_BYTES_PER_S = 4e9
_ASSUMED_BYTES = 64e6

_MAX_LOCKED_BYTES = 8 * 1024**3


def default_slots(pool: Tensor) -> int:
    """Half as many as the pool has blocks; where they are page-locked, 8 GiB at most, which takes seconds."""
    most = len(pool) // 2
    if pool.device.type != "cuda":
        return most
    return min(most, _MAX_LOCKED_BYTES // (pool[0].numel() * pool.element_size()))


class SwapSpace:
    """`num_slots` places for blocks of `pool`, used by the thread of the steps alone.

    On a CPU their memory is taken when the first is used; on a GPU at once, as page-locking takes seconds.
    """

    def __init__(self, pool: Tensor, num_slots: int) -> None:
        if num_slots < 0:
            raise ValueError(f"num_slots is {num_slots}; accepted: 0 or more")
        self._pool = pool
        self._num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        """Descending, so that neighbours are taken together."""
        self._bytes = _ASSUMED_BYTES
        self._seconds = _ASSUMED_BYTES / _ASSUMED_BYTES_PER_S
        self._unobserved: list[Copying] = []
        self._copies: BlockCopies | None = None
        if num_slots and pool.device.type == "cuda":
            self._copies = self._take_memory()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def block_bytes(self) -> int:
        return max(1, self._pool[0].numel() * self._pool.element_size())

    @property
    def bytes_per_s(self) -> float:
        """As measured, in either direction, of the copies that have ended."""
        while self._unobserved and self._unobserved[0].ended.query():
            copying = self._unobserved.pop(0)
            self._bytes += copying.num_blocks * self.block_bytes
            self._seconds += copying.begun.elapsed_time(copying.ended) / 1000
        return self._bytes / self._seconds

    def store(self, blocks: Sequence[int]) -> list[int]:
        """Copy blocks of the pool out; answers their slots. The caller has seen that there is room."""
        assert len(blocks) <= self.num_free
        if self._copies is None:
            self._copies = self._take_memory()
        slots = [self._free.pop() for _ in blocks]
        copying = self._copies.store(blocks, slots, mark_steps(self._pool.device))
        hold_steps(self._pool.device, copying.read)
        self._unobserved.append(copying)
        return slots

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots back into blocks of the pool; they may be released at once."""
        if not slots:
            return
        assert self._copies is not None, "nothing has been stored"
        copying = self._copies.load(slots, blocks, mark_steps(self._pool.device))
        hold_steps(self._pool.device, copying.ended)
        self._unobserved.append(copying)

    def release(self, slots: Sequence[int]) -> None:
        """What is stored in them next comes behind what is still read from them."""
        self._free.extend(slots)
        self._free.sort(reverse=True)

    def check_integrity(self, held: Sequence[Sequence[int]]) -> None:
        """Assert that the slots in `held` are all that are not free, each once."""
        slots = [slot for part in held for slot in part]
        assert sorted([*slots, *self._free]) == list(range(self._num_slots))

    def check_some(self, held: Sequence[Sequence[int]]) -> None:
        """Assert that no slot is lost or held twice, by their number."""
        assert sum(map(len, held)) + len(self._free) == self._num_slots

    def _take_memory(self) -> BlockCopies:
        host = torch.empty((self._num_slots, *self._pool.shape[1:]), dtype=self._pool.dtype)
        return BlockCopies(self._pool, host)
