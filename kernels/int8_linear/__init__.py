"""A linear layer whose weights are int8 with one scale for each output.

kernel     the Triton kernel and its wrapper
reference  the same in plain PyTorch
tiles      tile sizes and splits by device and shape
"""

from kernels.int8_linear.kernel import int8_linear, make_counters
from kernels.int8_linear.reference import int8_linear_reference

__all__ = ["int8_linear", "int8_linear_reference", "make_counters"]
