"""Measure in simulation how many programs are in time: agents, whose calls share one deadline.

Each arm gets the same programs. Under `slack` calls state the time that their program has left, or an SLO of
their own; under other policies the latter. A call that is refused comes back when it was told to, as long as
its program has time.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, partial
from itertools import islice

from benchmarks.report import report
from runtime.profiles import load_profile
from scheduling.admission.programs import PACE
from scheduling.cost.profiles import Profile
from scheduling.placement import Placement
from scheduling.prediction import lone_step_s
from sim.commands.capacity import alone_s, capacity_per_s, references
from sim.metrics import ProgramMetrics, measure_programs
from sim.play.all_cores import on_all_cores
from sim.play.simulation import run as simulate
from sim.reporting.progress import progress_bars
from sim.reporting.section import Section, table
from sim.reporting.tables import cell
from sim.spec import FleetShape, SimSpec
from sim.workload import Promises
from sim.workloads.agents import Call, draw_agents, programs
from sim.workloads.trace import TraceRequest

PROFILE = "h200-llama-3.1-8b"
LOADS = (0.8, 1.2)
SPAN_S = 120.0
DRAIN_S = 240.0
TTFT_X, TPOT_X = 10.0, 2.5
SAMPLE = 500
FLEET = FleetShape(0, 1)


class Stated(Enum):
    """The limits that the calls of an arm state."""

    PROGRAM = "the time that its program has left"
    SLO = "TTFT and TPOT"
    AT_RISK = "TTFT and TPOT, at risk"
    PACE = "the TPOT that slack gives programs, at risk"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy, and what each call states."""

    policy: str
    stated: Stated


ARMS = (
    Arm("slack", Stated.PROGRAM),
    Arm("slack", Stated.SLO),
    Arm("slack", Stated.AT_RISK),
    Arm("slack", Stated.PACE),
    Arm("slos_serve", Stated.SLO),
    Arm("jitserve", Stated.SLO),
    Arm("jitserve", Stated.PACE),
    Arm("qoserve", Stated.SLO),
    Arm("qoserve", Stated.PACE),
    Arm("chunked", Stated.NOTHING),
)


@cache
def _profile() -> Profile:
    return load_profile(PROFILE)


@cache
def _calls() -> tuple[tuple[Call, ...], ...]:
    return tuple(islice(programs(0), SAMPLE))


@cache
def _promises() -> Promises:
    alone = references(_profile(), [call.shape for calls in _calls() for call in calls], 1.0)
    return Promises(alone.ttft_ms(TTFT_X), alone.tpot_ms(TPOT_X))


@cache
def capacity() -> float:
    """Return the programs per second that the fleet carries at most, by arithmetic."""
    shapes = [call.shape for calls in _calls() for call in calls]
    tpot_ms = _promises().tpot_ms
    assert tpot_ms is not None, "it was made with one"
    calls_per_s = capacity_per_s(_profile(), FLEET, Placement.AGGREGATED, shapes, tpot_ms / 1000)
    return calls_per_s * SAMPLE / len(shapes)


def _alone_s(call: Call) -> float:
    step_s = references(_profile(), [call.shape], 1.0).decode_step_s
    return alone_s(_profile(), call.new_tokens) + call.output_tokens * step_s


def _pace_ms(call: TraceRequest) -> int:
    return round(1000 * PACE * lone_step_s(_profile().cost, call.prompt_tokens))


def _play(arm: Arm, load: float, seed: int, arrived: Callable[[], None]) -> ProgramMetrics:
    trace = draw_agents(load * capacity(), SPAN_S, seed, _alone_s)
    if arm.stated in {Stated.SLO, Stated.AT_RISK}:
        slo = _promises()
        trace = tuple(replace(call, ttft_ms=slo.ttft_ms, tpot_ms=slo.tpot_ms) for call in trace)
    elif arm.stated is Stated.PACE:
        trace = tuple(replace(call, tpot_ms=_pace_ms(call)) for call in trace)
    spec = SimSpec(
        profile=_profile(),
        fleet=FLEET,
        trace=trace,
        policy=arm.policy,
        seed=seed,
        states_programs=arm.stated is Stated.PROGRAM,
        at_risk=frozenset(range(len(trace)) if arm.stated in {Stated.AT_RISK, Stated.PACE} else ()),
        drain_s=DRAIN_S,
    )
    return measure_programs(simulate(spec, arrived))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are no flags but those of every measurement."""


def run(args: argparse.Namespace) -> int:
    """Play all arms at all loads."""
    return report(args, [_section(args.seeds)])


def _section(seeds: Sequence[int]) -> Section:
    cases = [(arm, load) for arm in ARMS for load in LOADS]
    tasks = [((*case, seed), partial(_play, *case, seed)) for case in cases for seed in seeds]
    with progress_bars() as bars:
        runs = dict(bars.track(on_all_cores(tasks), total=len(tasks), description="programs"))
    played = {case: [runs[*case, seed] for seed in seeds] for case in cases}

    def share(load: float, arm: Arm) -> str:
        return cell([100 * run.in_time_share for run in played[arm, load]], spec=".1f")

    def goodput(load: float, arm: Arm) -> str:
        return cell([run.in_time_per_s for run in played[arm, load]])

    columns: dict[str, Callable[[Arm], object]] = {
        "policy": lambda arm: arm.policy,
        "each call states": lambda arm: arm.stated.value,
    }
    columns |= {f"in time at {load:g}, %": partial(share, load) for load in LOADS}
    columns |= {f"good/s at {load:g}": partial(goodput, load) for load in LOADS}
    slo, most = _promises(), capacity()
    num_calls = statistics.fmean(len(calls) for calls in _calls())
    method = (
        f"One worker, profile {PROFILE}, {SPAN_S:g} s of programs that begin as a Poisson process, seeds "
        f"{', '.join(map(str, seeds))}; a load of 1 is {most:.2f} programs/s, of {num_calls:.1f} calls each. "
        f"The SLO of a call is TTFT {slo.ttft_ms} ms and TPOT {slo.tpot_ms} ms. A program is in time if "
        "all its calls have ended by its deadline."
    )
    return Section("programs: one deadline for several calls", method, (), (table(ARMS, columns),))
