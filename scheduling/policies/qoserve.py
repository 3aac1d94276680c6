"""Deadlines and short prompts first, and what is late goes last: nobody is refused.

Goel et al., "Niyama: Breaking the Silos of LLM Inference Serving", 2025 (arXiv 2503.22562), later "QoServe".
Three rules: chunks as long as the slack of the running decodes allows; a queue that goes by deadline plus
remaining work, which is between earliest deadline and shortest remaining time first; and relegation, where a
request that could not be served in time gives way to those that can.

What the paper leaves open, and what differs here: the queue is the fleet's and not each replica's, so a
prompt that has begun is not put behind another; a second of work weighs as much as a second of deadline; a
request without a TTFT is due by its class's default; and only being late relegates, since requests have no
hints of importance beyond their class.
"""

from __future__ import annotations

from scheduling.policies.policy import Order, Policy
from scheduling.policies.slack import plan

QOSERVE = Policy(
    "qoserve", plan, order=Order.DUE_AND_SHORT, late_go_last=True, binds_at_arrival=False, cuts_steps=True
)
