"""Run a simulation and return the columns that claims are judged by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from runtime.profiles import load_profile
from scheduling.cost.profiles import Profile
from scheduling.placement import Placement
from scheduling.policies.policy import Policy
from sim.commands.capacity import alone_s
from sim.metrics import measure
from sim.play.simulation import run
from sim.result import WARMUP_SHARE, End, RequestResult
from sim.spec import FleetShape, SimSpec
from sim.workload import Promises, draw
from sim.workloads.trace import TraceRequest

NOTHING = Promises()
PROFILE = "h200-llama-3.1-8b"
DRAIN_S = 60.0
"""Seconds after the last arrival; a request that waits longer has missed every promise of the grid."""

Column = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SimArm:
    """A policy with its settings; `fleet` as in `2p4d`."""

    policy: str | Policy
    token_budget: int | None = None
    placement: Placement = Placement.AGGREGATED
    fleet: str = "1d"

    @property
    def name(self) -> str:
        policy = self.policy if isinstance(self.policy, str) else self.policy.name
        budget = f" τ={self.token_budget}" if self.token_budget else ""
        where = "" if self.placement is Placement.AGGREGATED else f" {self.placement.value} {self.fleet}"
        return f"{policy}{budget}{where}"


@dataclass(frozen=True, slots=True)
class Case:
    """One run: an arm under a load."""

    arm: SimArm
    workload: str
    rate_per_s: float
    promises: Promises = NOTHING
    by_class: tuple[tuple[str, Promises], ...] = ()
    """Used instead of `promises` if classes have different promises."""
    has_classes: bool = True
    """The fleet knows the classes; otherwise all requests are standard."""
    seed: int = 1
    span_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Played:
    """The requests of a run except its first tenth, one row each; NaN where there is no value."""

    span_s: float
    prompt: Column
    output: Column
    ttft: Column
    tpot: Column
    queue: Column
    """TTFT minus the time the prompt takes alone: waiting at the router or at a worker."""
    finished: Flags
    refused: Flags
    promised: Flags
    """Accepted, and not at risk."""
    met_own: Flags
    """Finished, and met all that the request asked for."""
    asked_ttft_ms: Column
    itl_p99_s: float
    """Over all gaps of the run."""


@cache
def profile() -> Profile:
    """Return the profile, the same hardware for all claims."""
    return load_profile(PROFILE)


def trace_of(case: Case) -> tuple[TraceRequest, ...]:
    """Return the requests; the same seed has the same lengths and the same arrival pattern at every rate."""
    trace = draw(case.workload, "poisson", case.rate_per_s, case.span_s, case.seed, case.promises)
    promises = dict(case.by_class)
    if promises:
        trace = tuple(replace(request, **asdict(promises[request.slo_class])) for request in trace)
    if not case.has_classes:
        trace = tuple(replace(request, slo_class="standard") for request in trace)
    return trace


def spec_of(case: Case) -> SimSpec:
    """Return the simulator's specification of a case."""
    arm = case.arm
    return SimSpec(
        profile=profile(),
        fleet=FleetShape.parse(arm.fleet),
        trace=trace_of(case),
        policy=arm.policy,
        placement=arm.placement,
        token_budget=arm.token_budget,
        seed=case.seed,
        drain_s=DRAIN_S,
    )


def play(case: Case) -> Played:
    """Simulate a case."""
    result = run(spec_of(case))
    itl = measure(result).itl
    return columns(result.judged, case.span_s * (1 - WARMUP_SHARE), itl.p99 if itl else 0.0)


def columns(requests: Sequence[RequestResult], span_s: float, itl_p99_s: float) -> Played:
    """Return requests as columns."""

    def column(read: Callable[[RequestResult], float | None]) -> Column:
        return np.array(list(map(read, requests)), dtype=np.float64)

    def flags(read: Callable[[RequestResult], bool]) -> Flags:
        return np.array(list(map(read, requests)), dtype=np.bool_)

    return Played(
        span_s=span_s,
        prompt=column(lambda request: request.asked.prompt_tokens),
        output=column(lambda request: request.asked.output_tokens),
        ttft=column(lambda request: request.ttft_s),
        tpot=column(lambda request: request.tpot_s),
        queue=column(_queued_s),
        finished=flags(lambda request: request.end is End.FINISHED),
        refused=flags(lambda request: request.end is End.REFUSED),
        promised=flags(lambda request: request.promised_ttft_s is not None and not request.at_risk),
        met_own=flags(lambda request: request.good),
        asked_ttft_ms=column(lambda request: request.asked.ttft_ms),
        itl_p99_s=itl_p99_s,
    )


def _queued_s(request: RequestResult) -> float | None:
    if request.ttft_s is None:
        return None
    return max(0.0, request.ttft_s - alone_s(profile(), request.asked.prompt_tokens))


def good(played: Played, promises: Promises) -> Flags:
    """Return which requests finished within a promise, whether or not the fleet was asked for it."""
    is_good = played.finished.copy()
    if promises.ttft_ms is not None:
        is_good &= played.ttft * 1000 <= promises.ttft_ms
    if promises.tpot_ms is not None:
        is_good &= np.isnan(played.tpot) | (played.tpot * 1000 <= promises.tpot_ms)
    return is_good


def goodput(played: Played, promises: Promises) -> float:
    """Return good requests per second, without the first tenth."""
    return float(good(played, promises).sum()) / played.span_s


def own_goodput(case: Case) -> float:
    """Simulate a case, and return its goodput by its own promises."""
    return goodput(play(case), case.promises)
