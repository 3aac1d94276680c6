"""Several processes that compute each step together, each its part of the model.

    links          the sockets between the processes, and messages on them
    opening        the memory and sockets that a leader gives to each follower
    steps          a step's batch as bytes
    sums           the parts' results, which meet in shared memory
    leader         tells followers the steps, of which each computes a part of every layer
    slots          what the stages of a pipeline pass on, in shared memory
    pipeline       sends steps through stages, of which each computes some layers, in one or several parts
    follower       computes them
    adapter_loads  LoRA adapters that all load, each its part
    remote/        groups whose processes share no memory, on several hosts or GPUs

The leader serves, plans and draws; followers only compute. On one host all map the leader's KV pool and write
their own heads or layers, so blocks have the same bytes as those of one process. The leader sends each step's
batch once; what follows from it, each follower computes by itself.

Of the engine it imports `engine.execution`, `engine.model`, `engine.kv` and the versions of `engine.proof`.
"""
