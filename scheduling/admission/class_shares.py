"""Room for what higher classes ask for: a lower one is admitted only what they leave of the fleet's rate.

Higher classes go first in the queue, but a prompt that a worker has begun is finished first, and batch
prompts are long: a fleet kept busy by batch work makes every interactive request wait for one of them, and
refuses it for that wait. Batch has the most time, is refused last, and so would crowd out everybody.

So the work admitted per second for a class may be at most

    max(BATCH_SHARE, 1 - HEADROOM · asked for by higher classes / rate) · rate

What counts of the higher ones is what they asked for, not what was admitted of it: who is crowded out is not
admitted. Where they ask for little, or all classes together for less than the rate, nothing is taken away.
"""

from __future__ import annotations

import math

from scheduling.admission.admission import LOAD_WINDOW_S, AdmittedLoad
from scheduling.admission.shedding import BATCH_SHARE
from scheduling.request import SloClass

HEADROOM = 2.2
"""Kept free for higher classes, by what they ask for: who is promised a first token soon must seldom find
all workers busy."""


class ClassShares:
    """What each class asked for of late, and what of it was admitted; tokens, and seconds."""

    def __init__(self) -> None:
        self._asked = {one: AdmittedLoad() for one in SloClass}
        self._admitted = {one: AdmittedLoad() for one in SloClass}

    def asked(self, slo_class: SloClass, tokens: int, now: float) -> None:
        """A request came, whatever is decided on it."""
        self._asked[slo_class].add(tokens, now)

    def admitted(self, slo_class: SloClass, tokens: int, now: float) -> None:
        """It was admitted."""
        self._admitted[slo_class].add(tokens, now)

    def admitted_until(self, slo_class: SloClass, now: float) -> float:
        """Tokens per second admitted of a class and of all higher ones."""
        return sum(load.rate(now) for one, load in self._admitted.items() if one <= slo_class)

    def left_to(self, slo_class: SloClass, rate: float, now: float) -> float:
        """Tokens per second that higher classes leave of a fleet's rate."""
        asked = sum(load.rate(now) for one, load in self._asked.items() if one < slo_class)
        return max(BATCH_SHARE * rate, rate - HEADROOM * asked)

    def wait_s(self, slo_class: SloClass, rate: float, now: float) -> float:
        """Seconds until the class has no more than what is left to it, if nothing of it is admitted until
        then; 0 where it has no more now, or where no higher class asks for anything.
        """
        left = self.left_to(slo_class, rate, now)
        admitted = self._admitted[slo_class].rate(now)
        if left >= rate or admitted <= left:
            return 0.0
        return LOAD_WINDOW_S * math.log(admitted / left)
