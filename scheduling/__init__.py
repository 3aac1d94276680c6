"""Decisions without I/O, and the types that router, workers and simulator share.

Nothing here does I/O, reads a clock, draws random numbers or logs. Most of it are functions that take frozen
snapshots and `now`, and return data; a few small classes learn, such as what steps cost, and change only when
they are called. The package imports only parts of Python's own library, and `cost.cost_fit` also numpy. In
reading order:

- `request`: a request as a worker receives it (sampling, stop rules, SLO)
- `cost`: what a step costs, and how that is measured
- `steps`: what a step consists of, how fast a worker computes prompts and decodes, and how many tokens it
  drafts; `columns`: the tokens that a step produced
- `policies`: the ways to fill a step, one file each
- `admission`: which requests are accepted, at risk or refused, and which goes first
- `placement`: which workers serve a request; `roles`: how much of its time a decode worker may spend on
  prompts
- `memory`: how many KV blocks requests need, which one gives them up, and whether blocks elsewhere are
  read
- `scaling`: how many workers a fleet needs
- `value`: fast frozen dataclasses
"""
