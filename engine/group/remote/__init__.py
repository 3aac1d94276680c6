"""A group whose processes share no memory, on whichever hosts or GPUs they are.

    group       its leader, and what a follower does
    sums        the parts' results, which meet over torch.distributed
    wires       how tensors go from one process to another, by messages or from GPU to GPU
    kv_mirror   the KV that they exchange

The leader's pool has the KV of all, so handoff, verification and tiers are those of a worker of one process.
"""
