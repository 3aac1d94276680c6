"""The memory of KV blocks.

    kv_pool          the block layout, and the pool of blocks that attention reads and writes
    rows             the pool as rows of one token's keys or values, for attention on a CPU
    quantised_rows   the same for 8-bit KV
    block_copies     blocks to host memory and back
    swap_space       host memory for the blocks of preempted sequences
    block_checksums  checksums of blocks, computed on their device
    gpu_sharing      a GPU's pool mapped into other processes by CUDA IPC

Of the engine it imports `engine.device`, and of `engine.core` only types.
"""
