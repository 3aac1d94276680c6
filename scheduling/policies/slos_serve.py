"""The largest set of waiting requests that can all be in time comes first, and the others are served later.

"SLOs-Serve: Optimized Serving of Multi-SLO LLMs", 2025 (arXiv 2504.08784). When requests arrive, those that
can all be in time are chosen anew, and get tokens as their deadlines ask. The others are served best-effort.

What the paper leaves open, and what differs here: the paper chooses by dynamic programming over token
budgets. Here `scheduling.admission.shedding` chooses, which leaves the most in time for one kind of work and
unlike due times (Moore, 1968); paces are counted as seats. Requests do not move to other replicas, since the
queue is the fleet's.
"""

from __future__ import annotations

from scheduling.policies.policy import Order, Policy
from scheduling.policies.slack import plan

SLOS_SERVE = Policy(
    "slos_serve",
    plan,
    order=Order.DUE,
    promises=True,
    takes_at_risk=True,
    binds_at_arrival=False,
    cuts_steps=True,
)
