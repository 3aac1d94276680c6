"""Keep room for higher classes: a lower class may use only what they leave of the fleet's rate.

Higher classes go first in the queue, but a worker finishes the prompt that it has begun, and batch prompts
are long. A fleet kept busy by batch work makes every interactive request wait for such a prompt, and refuses
it for that wait. Batch requests have the most time and are refused last, so they would crowd out all others.

The work admitted per second for a class may be at most

    max(BATCH_SHARE, 1 - HEADROOM · demand of higher classes / rate) · rate

The demand is what higher classes asked for, not what was admitted, since crowded-out requests are not
admitted. If the demand is low, or all classes together ask for less than the rate, nothing is taken away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scheduling.request import SloClass

LOAD_WINDOW_S = 10.0
HEADROOM = 2.2
"""Room kept free for higher classes, per unit of their demand: a request with the promise of an early first
token must seldom find all workers busy."""


BATCH_SHARE = 0.05
"""The share of prefill tokens that batch always gets, whatever else waits: its floor.

`ClassShares` admits at least as much, `BatchFloor` gives it in the queue, and `shedding.plan` counts on it.
"""


@dataclass(slots=True)
class AdmittedLoad:
    """Work per second, averaged over the last ten seconds with exponential forgetting."""

    tokens_per_s: float = 0.0
    at: float = 0.0

    def add(self, tokens: int, now: float) -> None:
        """Count work that came now."""
        self.tokens_per_s = self.rate(now) + tokens / LOAD_WINDOW_S
        self.at = now

    def rate(self, now: float) -> float:
        """Return the recent tokens per second."""
        return self.tokens_per_s * math.exp(-max(0.0, now - self.at) / LOAD_WINDOW_S)


class ClassShares:
    """Each class's recent demand, and how much of it was admitted, in tokens and seconds."""

    def __init__(self) -> None:
        self._asked = {slo_class: AdmittedLoad() for slo_class in SloClass}
        self._admitted = {slo_class: AdmittedLoad() for slo_class in SloClass}

    def asked(self, slo_class: SloClass, tokens: int, now: float) -> None:
        """Count a request that came, whatever is decided about it."""
        self._asked[slo_class].add(tokens, now)

    def admitted(self, slo_class: SloClass, tokens: int, now: float) -> None:
        """Count a request that was admitted."""
        self._admitted[slo_class].add(tokens, now)

    def admitted_until(self, slo_class: SloClass, now: float) -> float:
        """Return the tokens per second admitted of a class and of all higher ones."""
        return sum(load.rate(now) for key, load in self._admitted.items() if key <= slo_class)

    def left_to(self, slo_class: SloClass, rate: float, now: float) -> float:
        """Return the tokens per second that higher classes leave of a fleet's rate."""
        asked = sum(load.rate(now) for key, load in self._asked.items() if key < slo_class)
        return max(BATCH_SHARE * rate, rate - HEADROOM * asked)

    def wait_s(self, slo_class: SloClass, rate: float, now: float) -> float:
        """Return the seconds until the class has no more than its share, if none of it is admitted meanwhile.

        Return 0 if it has no more now, or if no higher class asks for anything.
        """
        left = self.left_to(slo_class, rate, now)
        admitted = self._admitted[slo_class].rate(now)
        if left >= rate or admitted <= left:
            return 0.0
        return LOAD_WINDOW_S * math.log(admitted / left)


class BatchFloor:
    """Guards batch's share: while batch waits, every other token computed owes it a little."""

    def __init__(self) -> None:
        self.owed_tokens = 0.0

    def dispatched(self, slo_class: SloClass, tokens: int, *, batch_waits: bool) -> None:
        """Count tokens sent to a worker. Batch saves up nothing while it does not wait."""
        if slo_class is SloClass.BATCH:
            self.owed_tokens = max(0.0, self.owed_tokens - tokens)
        elif batch_waits:
            self.owed_tokens += tokens * BATCH_SHARE / (1 - BATCH_SHARE)
        else:
            self.owed_tokens = 0.0
