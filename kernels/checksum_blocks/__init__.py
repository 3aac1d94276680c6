"""Checksums of whole KV blocks, computed on their device: `kernel` in Triton, `reference` in PyTorch."""

from kernels.checksum_blocks.kernel import checksum_blocks
from kernels.checksum_blocks.reference import checksum_blocks_reference

__all__ = ["checksum_blocks", "checksum_blocks_reference"]
