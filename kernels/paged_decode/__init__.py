"""Attention of one new token per sequence over its paged KV.

kernel     the Triton kernels and their wrapper
reference  the same in plain PyTorch
splits     how many programs share a long context
"""

from kernels.paged_decode.kernel import paged_decode
from kernels.paged_decode.reference import paged_decode_reference

__all__ = ["paged_decode", "paged_decode_reference"]
