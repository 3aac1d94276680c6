"""The reference of `gather_blocks` and `scatter_blocks` in plain PyTorch."""

from torch import Tensor


def gather_blocks_reference(pool: Tensor, block_ids: Tensor, out: Tensor) -> None:
    """Arguments as for `kernels.copy_blocks.gather_blocks`."""
    out.copy_(pool[block_ids])


def scatter_blocks_reference(source: Tensor, pool: Tensor, block_ids: Tensor) -> None:
    """Arguments as for `kernels.copy_blocks.scatter_blocks`."""
    pool[block_ids] = source
