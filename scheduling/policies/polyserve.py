"""Requests of one pace share workers, and each goes to the most loaded worker that still meets its pace.

Zhu et al., "PolyServe: Efficient Multi-SLO Serving at Scale", 2025 (arXiv 2507.17769). Paces are grouped in
bins, since the strictest one in a batch sets the pace for all. A load gradient leaves whole workers empty for
bins that grow, and a request of a loose bin may join a stricter one when its own workers are full.

What the paper leaves open, and what differs here: a bin is a factor of two; the fleet's size is fixed, so an
empty worker joins the bin of the first request that it gets; a request for which only workers of looser bins
are left takes one of these, and its pace then holds for all there; no request is refused: where no worker
meets its pace it waits, in order of due times. Chunks are as long as the paces of the running decodes allow.
"""

from __future__ import annotations

import math

from scheduling.placement import DecodeCandidate, held_prefix, least_delay, least_failed
from scheduling.policies.policy import Order, Policy
from scheduling.policies.slack import plan

LOOSEST = 100
"""The bin of requests without a pace."""
_EMPTY = -1000.0


def pace_bin(tpot_s: float) -> int:
    """Return a bin of paces: greater ones are looser."""
    return LOOSEST if tpot_s == math.inf else math.floor(math.log2(tpot_s))


def own_bin(candidate: DecodeCandidate) -> float:
    """Prefer workers of the request's bin, then of the next stricter ones, empty ones, and looser ones."""
    if candidate.num_seqs == 0:
        return _EMPTY
    looser_by = pace_bin(candidate.held_tpot_s) - pace_bin(candidate.tpot_s)
    return float(looser_by) if looser_by <= 0 else _EMPTY - looser_by


def most_loaded(candidate: DecodeCandidate) -> float:
    """Prefer the fullest worker: those without seats are left out before."""
    return float(candidate.num_seqs)


POLYSERVE = Policy(
    "polyserve",
    plan,
    order=Order.DUE,
    binds_at_arrival=False,
    cuts_steps=True,
    scores=(least_failed, least_delay, own_bin, most_loaded, held_prefix),
)
