"""Attention of a ragged batch of chunks, each at the end of its sequence's paged KV.

kernel     the Triton kernel and its wrapper
reference  the same in plain PyTorch
tiling     tile sizes by device, dtype and head size
"""

from kernels.chunked_prefill.kernel import chunked_prefill
from kernels.chunked_prefill.reference import chunked_prefill_reference

__all__ = ["chunked_prefill", "chunked_prefill_reference"]
