"""Admission: which requests are accepted with a promise, accepted at risk, or refused. In reading order:

- `prefixes`: the part of a prompt that workers have in memory, on a disk or at another worker
- `learnt`: how far predictions were off lately, when an idle fleet tries a request against what it has
  learnt, and fairness between classes and between prompt lengths
- `programs`: how much of a program is left after a call, and so when the call is due
- `admission`: the decision on an SLO, and the time after which to retry
- `backlog`: the order of the queue, its requests in buckets, and which of them a newcomer would make late
- `shedding`: which waiting requests give up being in time when not all can be
- `shares`: fairness between tenants, in the queue and for seats
- `budgets`: rate limits of tenants

The package may import only `scheduling`.
"""
