"""An autoscaler that knows what nobody can know: the true rates of requests, now or until new workers serve.

It shows what is left to gain. With `ahead_s` of 0 it knows everything but the future.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from scheduling.scaling.demand import came, total
from scheduling.scaling.steady import WorkerModel, mean_sequence, prompt_speed, step_s, work_s
from sim.scaling.arms import PREFILL
from sim.scaling.day import Asked, Burst, DaySpec, Promise, bursts, documents, sun
from sim.scaling.fleet import Fleet
from sim.scaling.hpa import SYNC_S

Loads = tuple[float, float]
"""Workers of each role that a number of requests per second fills."""


@dataclass(slots=True)
class Known:
    """Proposes the workers that the most load within `ahead_s` fills to a share."""

    spec: DaySpec
    coming: Sequence[Burst]
    chat: Loads
    document: Loads
    shares: tuple[float, float]
    """The share of prefill workers' time, and of decode workers' seats."""
    ahead_s: float
    stabilisation_s: float = SYNC_S

    def heard(self, asked: Asked, alone_s: float) -> None:
        pass

    def propose(self, fleet: Fleet, role: str) -> int:
        place = 0 if role == PREFILL else 1
        times = range(int(fleet.now), int(fleet.now + self.ahead_s) + 1, round(SYNC_S))
        return math.ceil(max(self._load(place, at) for at in times) / self.shares[place])

    def _load(self, place: int, at_s: float) -> float:
        factor = max((burst.at(at_s) for burst in self.coming), default=1.0)
        chats = sun(self.spec, at_s) * factor
        return chats * self.chat[place] + documents(self.spec, at_s) * self.document[place]


def known(
    spec: DaySpec,
    day: Sequence[Asked],
    seed: int,
    worker: WorkerModel,
    shares: tuple[float, float],
    ahead_s: float,
) -> Known:
    """Return the autoscaler that knows this day; shares are of prefill and of decode."""
    coming = bursts(spec, random.Random(f"day:{seed}"))
    chat, document = (_each(day, promise, worker) for promise in (spec.chat, spec.documents))
    return Known(spec, coming, chat, document, shares, ahead_s)


def _each(day: Sequence[Asked], promise: Promise, worker: WorkerModel) -> Loads:
    """Return the load of one request per second of one kind."""
    found = [asked for asked in day if asked.promise == promise][:2000]
    whole = total(
        came(
            prompt_tokens=asked.prompt_tokens,
            cached_tokens=0.0,
            num_seqs=1,
            output_tokens=float(asked.output_tokens),
            slack_s=None,
            pace_s=None,
        )
        for asked in found
    )
    count = len(found) or 1
    prefill_s = work_s(whole.prompt_tokens, whole.prompt_squares, prompt_speed(worker)) / count
    each = mean_sequence(whole, worker, promise.tpot_s)
    return prefill_s, each.output_tokens * step_s(worker, each, each.seats) / each.seats
