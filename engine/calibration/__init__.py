"""The facts that an engine finds out about its machine before the first request.

    pool_size          how many KV blocks fit
    sweep_grid         which steps a sweep times
    sweep              times them, and warms up
    determinism_check  a deterministic model gives the same bits however its steps are cut

Each runs real steps by `engine.execution.model_runner`.
"""
