"""The groups of sequences on a worker, by phase. In reading order:

- `groups`: what commands and steps do to them, which are let in, and which give their blocks up
- `registry`: which there are, what is reported of them, and how each one ends
- `arrivals`: KV that they wait for, from other workers and tiers; `lending`: what other workers borrow
- `moves`: running sequences that go on elsewhere
- `adapter_waits`: LoRA adapters that they wait for
- `queues`: what those wait for that do not run, and in which order their prompts are computed

Imports other modules of `engine.core`, and `scheduling`.
"""
