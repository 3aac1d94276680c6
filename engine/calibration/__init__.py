"""The facts that an engine finds out about its machine before the first request.

    dtype              the type of weights and KV that suits the processor
    pool_size          how many KV blocks fit
    host_memory        whether weights and blocks fit into a machine or container
    grid               the steps that a sweep times
    sweep              times a grid of steps, and warms up
    cuts               ways to cut a few sequences into steps
    determinism_check  a deterministic model gives the same bits however its steps are cut

Sweep and check run real steps by `engine.execution.model_runner`.
"""
