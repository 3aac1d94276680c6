"""Situations are requests that fleets are offered: made workloads under promises, and recorded traffic."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from benchmarks.claims.classes import promises as by_class
from benchmarks.claims.play import profile
from benchmarks.rivals.conversations import conversations
from scheduling.placement import Placement
from sim.commands.capacity import capacity_per_s, references
from sim.commands.recorded import read_part
from sim.spec import FleetShape
from sim.workload import Promises, draw, sample
from sim.workloads.shapes import RequestShape
from sim.workloads.slo import References
from sim.workloads.trace import Part, TraceRequest, rate_per_s

SIZES = (2, 4, 8, 16)
"""Workers of a fleet."""
SPANS_S = {2: 60.0, 4: 40.0, 8: 32.0, 16: 24.0}
"""How long requests arrive. Large fleets take as many in less time, and a simulation costs by the request."""
MIDDLE = 4
"""The fleet for recorded traffic, which has no more requests than it has, and for lengths that are guesses.
"""
SEEDS_OF_A_TRACE = 5
"""Each seed plays a part of its own."""
CAP_SHIFTED = 2048

Draw = Callable[[float, float, int], tuple[TraceRequest, ...]]
"""Returns the requests of a rate, a span in seconds and a seed."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Requests with their promises, at any rate."""

    name: str
    lengths: tuple[RequestShape, ...]
    """A sample of them."""
    tpot_ms: int
    """The usual promise, by which a fleet's capacity is estimated."""
    draw: Draw
    sizes: tuple[int, ...] = SIZES

    def rate_per_s(self, num_workers: int, load: float) -> float:
        """Return the rate of a load, which is a share of what workers of both roles carry by arithmetic."""
        fleet = FleetShape(0, num_workers)
        return load * capacity_per_s(
            profile(), fleet, Placement.AGGREGATED, self.lengths, self.tpot_ms / 1000
        )


@cache
def situations(traces: tuple[Path, ...] = ()) -> Mapping[str, Situation]:
    """Return all situations by name; a trace's is the name of its file."""
    workloads = (
        _workload("balanced", "chat", 10.0, 2.5),
        _workload("tight TTFT", "chat", 5.0, 5.0),
        _workload("tight TPOT", "chat", 25.0, 1.5),
        _classes(),
        _conversations(),
        _guesses("limits 30 % off", 0.3),
        _guesses("limits 60 % off", 0.6),
        _shifted(),
    )
    return {each.name: each for each in (*workloads, *map(_trace, traces))}


# Made workloads


def _workload(name: str, workload: str, ttft_x: float, tpot_x: float) -> Situation:
    lengths = tuple(sample(workload, 1.0))
    promises = _promises(_units(lengths), ttft_x, tpot_x)

    def requests_of(rate: float, span_s: float, seed: int) -> tuple[TraceRequest, ...]:
        return draw(workload, "poisson", rate, span_s, seed, promises)

    return Situation(name, lengths, _tpot_ms(promises), requests_of)


def _classes() -> Situation:
    lengths = tuple(sample("mixed", 1.0))
    promises = dict(by_class())

    def requests_of(rate: float, span_s: float, seed: int) -> tuple[TraceRequest, ...]:
        plain = draw("mixed", "poisson", rate, span_s, seed, Promises())
        return tuple(replace(each, **asdict(promises[each.slo_class])) for each in plain)

    return Situation("three classes", lengths, _tpot_ms(promises["standard"]), requests_of)


def _conversations() -> Situation:
    lengths = tuple(each.shape for each in conversations(20.0, 100.0, 0, Promises()))
    promises = _promises(_units(lengths), 10.0, 2.5)

    def requests_of(rate: float, span_s: float, seed: int) -> tuple[TraceRequest, ...]:
        return conversations(rate, span_s, seed, promises)

    return Situation("conversations", lengths, _tpot_ms(promises), requests_of)


# Outputs whose length the fleet has to guess: it knows the limit that a request states, and recent outputs


def _guesses(name: str, noise: float) -> Situation:
    """Return `balanced` with limits that are too high, by a half-normal share with this deviation."""
    exact = _workload(name, "chat", 10.0, 2.5)

    def requests_of(rate: float, span_s: float, seed: int) -> tuple[TraceRequest, ...]:
        rng = random.Random(f"limits:{seed}")
        return tuple(
            replace(each, max_tokens=round(each.output_tokens * (1 + abs(rng.gauss(0.0, noise)))))
            for each in exact.draw(rate, span_s, seed)
        )

    return replace(exact, draw=requests_of, sizes=(MIDDLE,))


def _shifted() -> Situation:
    """Return outputs that become seven times as long in the middle, and say nothing of it."""
    exact = _workload("lengths shift", "chat", 10.0, 2.5)

    def requests_of(rate: float, span_s: float, seed: int) -> tuple[TraceRequest, ...]:
        return tuple(
            replace(
                each,
                output_tokens=each.output_tokens if each.at_s > span_s / 2 else -(-each.output_tokens // 7),
                max_tokens=max(each.output_tokens, CAP_SHIFTED),
            )
            for each in exact.draw(rate, span_s, seed)
        )

    return replace(exact, draw=requests_of, sizes=(MIDDLE,))


# Recorded traffic


def _trace(path: Path) -> Situation:
    """Return the requests of a file; raise ValueError naming file, line and field."""
    whole = read_part(path, Part()).fitting(profile().max_context).requests
    lengths = tuple(each.shape for each in whole)
    promises = _promises(_units(lengths), 10.0, 2.5)

    def requests_of(rate: float, span_s: float, seed: int) -> tuple[TraceRequest, ...]:
        return _played(_part_of(whole, seed), rate, span_s, promises)

    return Situation(path.name.split(".")[0], lengths, _tpot_ms(promises), requests_of, (MIDDLE,))


def _part_of(whole: Sequence[TraceRequest], seed: int) -> Sequence[TraceRequest]:
    count = max(1, len(whole) // SEEDS_OF_A_TRACE)
    first = seed % SEEDS_OF_A_TRACE * count
    return whole[first : first + count] or whole


def _played(
    part: Sequence[TraceRequest], rate: float, span_s: float, promises: Promises
) -> tuple[TraceRequest, ...]:
    """Return a part as fast as its rate must be, cut where the span is over."""
    speed, first_s, limits = rate / rate_per_s(part), part[0].at_s, asdict(promises)
    played = (replace(each, at_s=(each.at_s - first_s) / speed, **limits) for each in part)
    return tuple(each for each in played if each.at_s <= span_s)


# Promises


def _units(lengths: Iterable[RequestShape]) -> References:
    return references(profile(), tuple(lengths), 1.0)


def _promises(units: References, ttft_x: float, tpot_x: float) -> Promises:
    return Promises(units.ttft_ms(ttft_x), units.tpot_ms(tpot_x))


def _tpot_ms(promises: Promises) -> int:
    assert promises.tpot_ms is not None, "made of a ratio"
    return promises.tpot_ms
