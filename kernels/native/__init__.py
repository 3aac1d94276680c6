"""Ops of a decoder layer for processors, in C: what `kernels` computes on a CPU without Triton.

    source/   the loops, in C
        entry.c      what Python calls for a single op
        layers.c     what it calls for decoder layers, one after the other
        ops.h        the arguments of the ops
        rows.c       norms, activations, rotation
        attention.h  attention over the paged KV, for attention.c in floats and attention_whole.c in 8 bits
        linear.c     linear layers
        adapters.c   LoRA adapters beside linear layers
        group.c      waits for the other processes that compute parts of the same layers
        whole.h      weights of 8 and 4 bits, which these multiply
        products.h   the sums of products that both are made of, in vectors or in AMX tiles
        program.c    how threads share the work
        common.h     what all use
    build     compiles them, once for each kind of processor of this architecture
    loader    loads what was built for this processor, once in a process
    ops       calls it: single ops
    panels    weights in the order in which linear layers read them
    adapters  LoRA adapters, as ops read them
    group     the memory in which such processes meet
    layers    calls decoder layers

All arithmetic is in float32, or in products of bfloat16 that are summed in float32. A row's bits depend on
that row and on the library alone. An op falls back to its reference in PyTorch where nothing was built, and
for other dtypes.
"""
