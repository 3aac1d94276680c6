"""The requests of a day: chats that follow the sun, bursts on top, and long documents at certain hours."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from workloads.shapes import DEFAULT_CAPS, WORKLOADS

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
QUIETEST_AT_S = 4 * HOUR_S
RAMP_S = 60.0
"""Bursts and documents begin and end within this long."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The limits that requests of one kind state; seconds."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class DaySpec:
    """A day. Rates are requests per second."""

    chat: Promise
    documents: Promise
    least_rate: float
    """Rate of chats at the quietest time."""
    most_rate: float
    """The same at the busiest, without bursts."""
    documents_rate: float
    """Rate of documents in their hours; a tenth of it at other times."""
    documents_s: tuple[float, float] = (8 * HOUR_S, 18 * HOUR_S)
    """When documents come; the end may be on the next day."""
    bursts_per_hour: float = 1.0
    """Bursts are for chats: each multiplies their rate by 1.5 to 2.5, for 5 to 15 minutes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    promise: Promise


@dataclass(frozen=True, slots=True)
class Burst:
    begin_s: float
    end_s: float
    factor: float

    def at(self, now: float) -> float:
        """Return the factor at a time; it rises and falls within `RAMP_S`."""
        inside = min(now - self.begin_s, self.end_s - now) / RAMP_S
        return 1 + (self.factor - 1) * min(1.0, max(0.0, inside))


def bursts(spec: DaySpec, rng: random.Random) -> list[Burst]:
    """Draw the bursts of a day, in order."""
    found: list[Burst] = []
    if spec.bursts_per_hour <= 0:
        return found
    at = rng.expovariate(spec.bursts_per_hour / HOUR_S)
    while at < DAY_S:
        end = at + rng.uniform(300, 900)
        found.append(Burst(at, end, rng.uniform(1.5, 2.5)))
        at = end + rng.expovariate(spec.bursts_per_hour / HOUR_S)
    return found


def sun(spec: DaySpec, now: float) -> float:
    """Return the rate of chats at a time of the day, without bursts."""
    height = (1 - math.cos(2 * math.pi * (now - QUIETEST_AT_S) / DAY_S)) / 2
    return spec.least_rate + (spec.most_rate - spec.least_rate) * height


def documents(spec: DaySpec, now: float) -> float:
    """Return the rate of documents at a time of the day."""
    begin_s, end_s = spec.documents_s
    inside = max(min(at - begin_s, end_s - at) for at in (now, now + DAY_S)) / RAMP_S
    return spec.documents_rate * (0.1 + 0.9 * min(1.0, max(0.0, inside)))


def requests(spec: DaySpec, seed: int) -> Iterator[Asked]:
    """Yield the requests of a day in order; the same seed gives the same day."""
    rng = random.Random(f"day:{seed}")
    coming = bursts(spec, rng)
    most = spec.most_rate * 2.5 + spec.documents_rate
    place, now = 0, 0.0
    while True:
        now += rng.expovariate(most)
        if now >= DAY_S:
            return
        while place < len(coming) and coming[place].end_s <= now:
            place += 1
        chats = sun(spec, now) * (coming[place].at(now) if place < len(coming) else 1.0)
        drawn = rng.random() * most
        if drawn < chats:
            yield _asked(rng, now, "chat", spec.chat)
        elif drawn < chats + documents(spec, now):
            yield _asked(rng, now, "summarise", spec.documents)


def _asked(rng: random.Random, now: float, workload: str, promise: Promise) -> Asked:
    shape = WORKLOADS[workload](rng, 1.0, DEFAULT_CAPS[workload])
    return Asked(now, shape.prompt_tokens, shape.output_tokens, promise)
