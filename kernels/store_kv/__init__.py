"""Write a step's keys and values into the paged pool."""

from kernels.store_kv.kernel import store_kv
from kernels.store_kv.quantise import quantise
from kernels.store_kv.reference import store_kv_reference

__all__ = ["quantise", "store_kv", "store_kv_reference"]
