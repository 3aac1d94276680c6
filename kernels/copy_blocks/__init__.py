"""Copy whole KV blocks out of a pool and into one: `kernel` in Triton, `reference` in PyTorch."""

from kernels.copy_blocks.kernel import gather_blocks, scatter_blocks
from kernels.copy_blocks.reference import gather_blocks_reference, scatter_blocks_reference

__all__ = ["gather_blocks", "gather_blocks_reference", "scatter_blocks", "scatter_blocks_reference"]
