"""Run a soak: a fleet, its clients, and a look at every process every few seconds."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client.samples import Sample

from baton.fleet import Fleet, FleetSpec, ManagedProcess
from benchmarks.compilers import compilers
from benchmarks.failures.crowd import Outcome, Plan, client_process, processes
from benchmarks.fleets.observe import memory_and_cpu, scrape
from scheduling.placement import Placement
from services.profiles import load_profile
from sim.commands.capacity import capacity_per_s
from sim.spec import FleetShape
from workloads.shapes import shapes

SOAK_WORKLOADS = ("chat", "shared")
NUM_BLOCKS = 60_000
SHAPE = FleetShape(prefill=1, decode=2)
NUM_ROUTERS = 2
PACE_S = 0.02
CPU_S_PER_REQUEST = 0.17
"""CPU seconds of routers, workers, Redis and clients together, for an unscaled request of `chat` or
`shared`."""
LOOK_S = 5.0
START_S = 5.0
DRAW_S = 0.006
"""Seconds to draw each request, before the first is sent."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second: the rate that the workers carry, and the rate that the machine carries."""

    planned_per_s: float
    machine_per_s: float

    @property
    def per_s(self) -> float:
        return min(self.planned_per_s, self.machine_per_s)

    def __str__(self) -> str:
        planned = f"{self.planned_per_s:.1f}/s that the workers carry"
        machine = f"{self.machine_per_s:.1f}/s that {_num_cores()} cores carry"
        is_machine = self.machine_per_s < self.planned_per_s
        return f"the {machine}, less than the {planned}" if is_machine else f"the {planned}"


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a soak; `rate` counts all clients together."""

    model: Path
    rate: float
    seconds: float
    num_blocks: int = NUM_BLOCKS
    profile: str = "h200-llama-3.1-8b"
    num_compilers: int = 0
    scale: float = 1.0


@dataclass(slots=True)
class ProcessReport:
    """One process of the fleet, from the first request to the last answer."""

    standstill_ms: float = 0.0
    """The longest standstill of its event loop; 0 for Redis, which does not measure it."""
    own_standstill_ms: float = 0.0
    """The longest standstill in which it computed itself, and did not wait for a core."""
    num_long: int = 0
    """Standstills of 50 ms or more."""
    num_given_up: int = 0
    """Workers that this router gave up."""
    memory_mb: float = 0.0
    memory_growth: float = 1.0
    """Memory in the last tenth of the load / two thirds into it."""
    cores: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a soak."""

    outcomes: dict[str, Outcome]
    """By workload."""
    processes: dict[str, ProcessReport]
    beside: str = ""

    @property
    def num_given_up(self) -> int:
        """Workers that a router gave up."""
        return sum(process.num_given_up for process in self.processes.values())

    @property
    def num_unfinished(self) -> int:
        return sum(
            outcome.sent - outcome.finished + outcome.wrong_length for outcome in self.outcomes.values()
        )

    @property
    def num_unavailable(self) -> int:
        errors = (pair for outcome in self.outcomes.values() for pair in outcome.errors.items())
        return sum(count for error, count in errors if error.startswith("Unavailable"))


def rate_of(profile: str, num_blocks: int) -> Rate:
    """Return the rates that workers and machine carry."""
    worker = replace(load_profile(profile), num_blocks=num_blocks)
    planned = [
        capacity_per_s(worker, SHAPE, Placement.CONDITIONAL, shapes(workload, 2000, 0, 1.0), PACE_S)
        for workload in SOAK_WORKLOADS
    ]
    return Rate(statistics.fmean(planned), _num_cores() / CPU_S_PER_REQUEST)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


async def measure(setting: Setting, seed: int, run_dir: Path | None = None) -> Report:
    """Start the fleet, send, observe, and judge."""
    blocks = ("--num-blocks", str(setting.num_blocks))
    spec = FleetSpec(
        model=setting.model,
        prefill=SHAPE.prefill,
        decode=SHAPE.decode,
        routers=NUM_ROUTERS,
        timed=setting.profile,
        run_dir=run_dir,
        standstill_s=180.0,
        extra_args={"prefill": blocks, "decode": blocks},
    )
    async with Fleet(spec) as fleet:
        watch = _Watch(fleet.processes)
        with compilers(setting.num_compilers) as beside:
            outcomes = await _send(setting, seed, fleet.router_addresses, watch)
        return Report(outcomes, watch.judged(setting.seconds), beside)


async def _send(setting: Setting, seed: int, addresses: Sequence[str], watch: _Watch) -> dict[str, Outcome]:
    """Send each workload from its own process, at an equal share of the rate, and observe the fleet."""
    begin_at = time.time() + START_S + DRAW_S * setting.rate * setting.seconds
    plans = {
        workload: Plan(
            model=setting.model,
            rate=setting.rate / len(SOAK_WORKLOADS),
            seconds=setting.seconds,
            scale=setting.scale,
            workload=workload,
            seed=seed,
        )
        for workload in SOAK_WORKLOADS
    }
    loop = asyncio.get_running_loop()
    with processes(len(plans)) as pool:
        sending = [
            loop.run_in_executor(pool, client_process, plan, 0, addresses, begin_at)
            for plan in plans.values()
        ]
        await asyncio.sleep(begin_at - time.time())
        watching = asyncio.create_task(watch.run())
        try:
            outcomes = await asyncio.gather(*sending)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await watch.look()
        return dict(zip(plans, outcomes, strict=True))


@dataclass(slots=True)
class _Look:
    """One process at one moment."""

    at_s: float
    """Seconds since the load began."""
    memory: float
    cpu_s: float
    samples: list[Sample]

    def value(self, name: str, **labels: str) -> float:
        """Return a metric; 0 if it is missing."""
        found = (sample.value for sample in self.samples if sample.name == name and sample.labels == labels)
        return float(next(found, 0.0))


class _Watch:
    """Looks at every process every few seconds, from the beginning of the load on."""

    def __init__(self, fleet: Sequence[ManagedProcess]) -> None:
        self._fleet = fleet
        self._began_at = 0.0
        self._looks: dict[str, list[_Look]] = {process.name: [] for process in fleet}

    async def run(self) -> None:
        """Look until cancelled."""
        self._began_at = time.monotonic()
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        for process in self._fleet:
            samples = await scrape(process.metrics_address) if process.metrics_address else []
            at_s = time.monotonic() - self._began_at
            self._looks[process.name].append(_Look(at_s, *memory_and_cpu(process.pid), samples))

    def judged(self, seconds: float) -> dict[str, ProcessReport]:
        """Return the reports of all processes by name, for a load of this duration."""
        return {name: _judged(looks, seconds) for name, looks in self._looks.items()}


def _judged(looks: Sequence[_Look], seconds: float) -> ProcessReport:
    first, last = looks[0], looks[-1]
    during = [look for look in looks if look.at_s <= seconds]
    settled = _median_memory(during, 0.6 * seconds, 0.7 * seconds)
    return ProcessReport(
        standstill_ms=1000 * last.value("baton_event_loop_standstill_seconds", since="start"),
        own_standstill_ms=1000 * last.value("baton_event_loop_own_standstill_seconds", since="start"),
        num_long=round(_more(first, last, "baton_event_loop_long_standstills_total")),
        num_given_up=round(_more(first, last, "baton_lost_workers_total")),
        memory_mb=last.memory / 1e6,
        memory_growth=_median_memory(during, 0.9 * seconds, seconds) / settled,
        cores=(last.cpu_s - first.cpu_s) / (last.at_s - first.at_s),
    )


def _more(first: _Look, last: _Look, name: str) -> float:
    return last.value(name) - first.value(name)


def _median_memory(looks: Sequence[_Look], begin_s: float, end_s: float) -> float:
    """Return the median over the looks in that time, or the last look before its end if there was none."""
    found = [look.memory for look in looks if begin_s <= look.at_s <= end_s]
    return statistics.median(found or [[look.memory for look in looks if look.at_s <= end_s][-1]])
