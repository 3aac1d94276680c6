"""Costs of single steps and calls, nearly all timed in one process:

- `decisions`, `core_decisions`: how long policies and the router's core take to decide
- `step_error`: the error of the cost model, on the steps of `real_steps`
- `deterministic`, `quantisation`: steps of other kinds of engines
- `speculation`: steps that verify drafted tokens, beside steps without
- `lora`: steps whose rows have adapters, beside steps without
- `prefixes`: prefixes read from a disk or another worker, beside prefixes computed
- `grammars`: masks of output formats, and steps with them
- `memory`: how much of the KV pool is used; `verification`: checksums, and each token exactly once
"""
