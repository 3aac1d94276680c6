"""Costs of single steps and calls, timed in one process:

- `decisions`, `core_decisions`: how long policies and the router's core take to decide
- `token_path`: what each piece of code on a token's way takes
- `step_error`: the error of the cost model, on the steps of `real_steps`
- `switching`: how long a step waits for Python's interpreter lock
- `quantisation`: 8-bit weights and KV; `turns`: two engines that compute the same steps
"""
