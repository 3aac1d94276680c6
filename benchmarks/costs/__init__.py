"""Costs that are timed in one process, without load from a fleet:

- `decisions`, `core_decisions`: how long policies and the router's core take to decide
- `step_error`: the error of the cost model, on the steps of `real_steps`
- `deterministic`, `quantisation`: steps of other kinds of engines
- `memory`: how much of the KV pool is used; `verification`: checksums, and each token exactly once
"""
