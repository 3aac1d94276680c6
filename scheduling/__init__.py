"""Decisions without I/O, and the types that router, workers and simulator share.

Nothing here does I/O, reads a clock, draws random numbers or logs. Most of it are functions that take frozen
snapshots and `now`, and return data; a few small classes learn, such as what steps cost, and change only when
they are called. The package imports only parts of Python's own library, and `cost.cost_fit` also numpy. In
reading order:

- `request`: a request as a worker receives it (sampling, stop rules, SLO)
- `step`: the types between a worker's step loop and its policy; `columns`: the tokens that a step produced
- `policies`: the ways to fill a step, one file each, built from `packing`
- `cost_model`: what a step costs; `cost`: how that is measured
- `prediction`: how fast workers compute prompts and decode, and the TTFT, TPOT and ITL of a request
- `admission`: which requests are accepted, at risk or refused, and which goes first
- `placement`: which workers serve a request, and how much of its time a decode worker may spend on prompts
- `memory`: how many KV blocks requests need, which one gives them up, and whether blocks elsewhere are
  read
- `speculation`: how many drafted tokens a step verifies; `draft_model`: how many of them a draft model drafts
- `scaling`: how many workers a fleet needs
- `value`: fast frozen dataclasses
"""
