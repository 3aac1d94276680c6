"""The facts that an engine finds out about its machine before the first request.

    pool_size          how many KV blocks fit
    sweep              times a grid of steps, and warms up
    determinism_check  a deterministic model gives the same bits however its steps are cut

Each runs real steps by `engine.execution.model_runner`.
"""
