"""The content of a step, and how long steps take. In reading order:

- `step`: the types between a worker's step loop and its policy
- `packing`: chunks of prompts that fill a step, from which policies are built
- `speeds`: how fast a worker computes prompts and decodes, on one pipeline stage or several
- `speculation`: how many drafted tokens a step verifies; `draft_model`: how many of them a draft model drafts

The package may import only `scheduling.cost` and `scheduling.value`.
"""
