"""Checksums of a pool's blocks, computed on their device beside the steps."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.device import CopyStream, Download, upload_ids
from kernels.checksum_blocks import checksum_blocks

UNSIGNED = (1 << 64) - 1


class BlockChecksums:
    """Computes checksums of blocks of `pool` [num_blocks, ...], on any device, from any thread."""

    def __init__(self, pool: Tensor) -> None:
        self._pool = pool
        self._stream = CopyStream(pool.device)
        self.of([0])  # compiles the kernel on a GPU before a request waits for it

    def of(self, blocks: Sequence[int]) -> list[int]:
        """Return 64-bit checksums in the order of `blocks`, whose content must be complete; wait for them."""
        with self._stream.behind(None):
            found = Download(checksum_blocks(self._pool, upload_ids(blocks, self._pool.device)))
        return [checksum & UNSIGNED for checksum in found.wait().tolist()]
