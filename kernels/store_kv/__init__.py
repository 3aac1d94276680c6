"""Write a step's keys and values into the paged pool.

kernel     the Triton kernel and its wrapper
reference  the same in plain PyTorch
quantise   8-bit keys and values, with a scale for each token and head
"""

from kernels.store_kv.kernel import store_kv
from kernels.store_kv.quantise import quantise
from kernels.store_kv.reference import store_kv_reference

__all__ = ["quantise", "store_kv", "store_kv_reference"]
