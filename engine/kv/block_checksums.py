"""Checksums of a pool's blocks, taken where they lie and beside the steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.device.copy_stream import copy_stream
from engine.device.host_copies import upload_ids
from kernels.checksum_blocks import checksum_blocks

UNSIGNED = (1 << 64) - 1


class BlockChecksums:
    """Of `pool` [num_blocks, ...], on any device. From any thread; what the blocks hold is there already."""

    def __init__(self, pool: Tensor) -> None:
        self._pool = pool
        self._stream = copy_stream(pool.device)
        self.of([0])  # on a GPU that compiles the kernel, before anybody waits for it

    def of(self, blocks: Sequence[int]) -> list[int]:
        """In 64 bits, in the order of `blocks`; waits until they are known."""
        with self._stream.behind(None):
            found = checksum_blocks(self._pool, upload_ids(blocks, self._pool.device))
            host = torch.empty(found.shape, dtype=found.dtype, pin_memory=found.is_cuda)
            host.copy_(found, non_blocking=True)
            known = self._stream.mark()
        known.synchronize()
        return [checksum & UNSIGNED for checksum in host.tolist()]
