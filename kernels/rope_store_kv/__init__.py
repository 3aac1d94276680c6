"""Rotate a step's queries and keys by their positions, and write keys and values into the paged pool.

`kernel` in Triton, `reference` in PyTorch.
"""

from kernels.rope_store_kv.kernel import rope_store_kv
from kernels.rope_store_kv.reference import HeadNorms, rope_store_kv_reference

__all__ = ["HeadNorms", "rope_store_kv", "rope_store_kv_reference"]
