"""Ops of a decoder layer for processors, in C: what `kernels` computes on a CPU without Triton.

    ops.c    the loops, for float32 and bfloat16
    build    compiles ops.c, once for each kind of processor of this architecture
    loader   loads what was built for this processor
    ops      calls it

An op falls back to its reference in PyTorch where nothing was built, and for other dtypes.
"""
