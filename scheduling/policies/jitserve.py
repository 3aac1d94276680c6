"""The most goodput for the work first: short requests, and those that are late last.

"JITServe: SLO-aware LLM Serving with Imprecise Request Information", 2025 (arXiv 2504.20068). Each request
gets just the bandwidth that its promise needs, and what is left goes to the request with the most goodput for
a second of work.

What the paper leaves open, and what differs here: just enough bandwidth for the running decodes is what the
slack of a step leaves to chunks. Each request that is good counts as one, so the most goodput for a second of
work has the shortest prompt; outputs, whose length is a guess, do not count. Requests are not grouped by
length, since a step here computes pieces of several prompts.
"""

from __future__ import annotations

from scheduling.policies.policy import Order, Policy
from scheduling.policies.slack import plan

JITSERVE = Policy(
    "jitserve", plan, order=Order.SHORT, late_go_last=True, binds_at_arrival=False, cuts_steps=True
)
