"""Measure how long the router's core takes to decide, in microseconds.

A core with many waiting requests and busy workers gets events as a shell sends them, without store or
network. Each figure is the median or the 95th percentile over many different requests.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import time
from collections.abc import Callable
from functools import partial

from benchmarks.report import report
from router.core.admit import full_plan
from router.core.core import RouterCore
from router.core.model.actions import Action, ChargeTenant, Enqueue, SendDecode, Settle
from router.core.model.events import (
    Arrived,
    Charged,
    Enqueued,
    Event,
    Granted,
    SettleAnswered,
    StepReported,
    WorkerFacts,
    WorkerJoined,
    WorkerLoad,
)
from router.core.model.state import CoreConfig
from router.request import Request
from runtime.state.records import Settled
from scheduling.admission.shares import Standing
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.placement import Placement
from scheduling.request import SamplingParams, Slo, SloClass, StopRules
from sim.reporting.progress import tracked
from sim.reporting.quantiles import quantile
from sim.reporting.section import Section, at_most, table
from sim.reporting.tables import cell

COST = CostModel((4.8e-3, 1.4e-5, 2.3e-5, 3.5e-8, 8.9e-10, 2.9e-8), 176.0, 0.95, 1.0, 1.1)
"""About the costs of an 8B model on an H200."""
ROUTER = "router"
MOST_ARRIVAL_US = 200.0
MOST_PLAN_US = 20_000.0
PLANS = 20


class Bench:
    """A core whose workers have joined, and its clock."""

    def __init__(self, num_workers: int, seed: int = 1) -> None:
        self.now = 1000.0
        self.draw = random.Random(seed)
        self.arrived = 0
        self.core = RouterCore(CoreConfig(ROUTER, placement=Placement.AGGREGATED, queue_capacity=10**6))
        self.workers = [
            WorkerFacts(f"d{i}", "1", "decode", f"d{i}:1", "f", 16, 100_000, 512, 8192)
            for i in range(num_workers)
        ]
        for facts in self.workers:
            self.tell(WorkerJoined(facts, self.load(pending=0), COST))

    def load(self, pending: int, running: int = 64) -> WorkerLoad:
        return WorkerLoad(1, running, 0, pending, free_blocks=90_000, context_tokens=1100 * running)

    def tell(self, event: Event) -> list[Action]:
        return self.core.on(event, self.now)

    def step(self, handles: list[int], index: int) -> StepReported:
        """Return the report of a step in which each of the first worker's sequences gets a token."""
        rows = len(handles)
        tokens = TokenColumns(handles, [0] * rows, [index] * rows, [9] * rows, [0] * rows)
        self.now += 0.02
        return StepReported(self.workers[0].key, tokens, self.load(pending=100_000, running=rows), 0.02)

    def arrival(self, slo: Slo | None = None) -> Arrived:
        """Return a chat-like request; due times and classes vary."""
        self.arrived += 1
        draw = self.draw
        some = Slo(
            ttft_ms=draw.choice((None, *range(60_000, 600_000, 5000))),
            tpot_ms=draw.choice((30, 50, 100)),
            slo_class=draw.choice(tuple(SloClass)),
        )
        return Arrived(
            listener=self.arrived,
            request=Request(
                tenant="t",
                request_id=f"r{self.arrived}",
                session=0,
                digest=b"",
                prompt_token_ids=range(round(min(8192, draw.lognormvariate(7.45, 0.93))) + 1),
                sampling=SamplingParams(),
                seed_given=True,
                stop=StopRules(max_tokens=400, ignore_eos=True),
                slo=slo or some,
                received_at=self.now,
            ),
        )

    def admit(self, event: Arrived, position: int, tokens: int) -> list[Action]:
        """Take a request from the call to the decision: place in the queue, tenant's charge, verdict."""
        actions = self.tell(event)
        key = next(action.entry.request_key for action in actions if isinstance(action, Enqueue))
        actions = self.tell(Enqueued(key, position, tokens))
        if any(isinstance(action, ChargeTenant) for action in actions):
            actions = self.tell(Charged(key, Standing(0.0, None, 0, is_over=False)))
        return actions

    def fill(self, waiting: int) -> None:
        """Make all workers busy, with this many requests waiting."""
        for facts in self.workers:
            self.tell(StepReported(facts.key, TokenColumns(), self.load(pending=100_000)))
        while len(self.core.state.waiting) < waiting:
            backlog = self.core.state.waiting.backlog
            ttft_ms, slo_class = self.draw.randrange(10_000, 600_000), self.draw.choice(tuple(SloClass))
            slo = Slo(ttft_ms=ttft_ms, slo_class=slo_class, allow_at_risk=True)
            self.admit(self.arrival(slo), 1, backlog.tokens)
            self.now += 0.001

    def decode(self, count: int) -> list[int]:
        """Start requests that decode on the first worker, and return their handles."""
        handles: list[int] = []
        facts = self.workers[0]
        for _ in range(count):
            event = self.arrival(Slo(tpot_ms=100))
            self.admit(event, 0, 0)
            key = f"t/{event.request.request_id}/0"
            actions = self.tell(Granted(key, facts.key, facts.key))
            if any(isinstance(action, Settle) for action in actions):
                actions = self.tell(SettleAnswered(key, facts.key, facts.key, Settled.OK))
                handles += [action.spec.handle for action in actions if isinstance(action, SendDecode)]
        assert len(handles) == count, "each was dispatched"
        return handles


def timed(calls: int, prepare: Callable[[], Callable[[], object]]) -> list[float]:
    """Return the microseconds of each call, without its preparation."""
    times_us = []
    gc.collect()
    gc.disable()
    for _ in range(calls):
        call = prepare()
        started = time.perf_counter()
        call()
        times_us.append((time.perf_counter() - started) * 1e6)
    gc.enable()
    return times_us


def arrivals(num_workers: int, waiting: int, calls: int, seed: int) -> list[float]:
    """Time newcomers in the middle of the queue, with every kind of SLO."""
    bench = Bench(num_workers, seed)
    bench.fill(waiting)

    def prepare() -> Callable[[], object]:
        bench.now += 0.01
        facts = bench.workers[bench.arrived % num_workers]
        bench.tell(StepReported(facts.key, TokenColumns(), bench.load(pending=100_000)))
        event = bench.arrival()
        ahead = bench.core.state.waiting.backlog.tokens // 2
        return lambda: bench.admit(event, waiting // 2, ahead)

    return timed(calls, prepare)


def full_plans(num_workers: int, waiting: int, calls: int, seed: int) -> list[float]:
    """Time the full plan of all waiting requests, after nine of ten workers were lost."""
    bench = Bench(num_workers, seed)
    bench.fill(waiting)
    for facts in bench.workers[num_workers // 10 :]:
        bench.core.state.fleet.lose(facts.key)
    bench.core.state.capacity_died = True

    def prepare() -> Callable[[], object]:
        bench.now += 0.1
        return lambda: full_plan(bench.core.state)

    return timed(calls, prepare)


def reports(rows: int, waiting: int, calls: int, seed: int) -> list[float]:
    """Time the report of a step in which each of a worker's sequences gets a token."""
    bench = Bench(16, seed)
    handles = bench.decode(rows)
    bench.fill(waiting)
    indexes = itertools.count()

    def prepare() -> Callable[[], object]:
        event = bench.step(handles, next(indexes))
        return lambda: bench.tell(event)

    return timed(min(calls, 390), prepare)


Timed = Callable[[int], list[float]]
"""Microseconds of each call, by seed."""


def measurements(waiting: int, calls: int) -> dict[str, tuple[Timed, float | None]]:
    """Return each measurement by name, with the limit of its median."""
    cases: dict[str, tuple[Timed, float | None]] = {}
    for workers in (16, 200):
        name = f"an arrival, {workers} workers, {waiting} waiting"
        cases[name] = partial(arrivals, workers, waiting, calls), MOST_ARRIVAL_US
    name = f"a full plan, 20 of 200 workers left, {waiting} waiting"
    cases[name] = partial(full_plans, 200, waiting, PLANS), MOST_PLAN_US
    for rows, behind in ((1, 0), (64, 0), (256, 0), (64, 100)):
        name = f"a report of {rows} tokens, {behind or 'none'} waiting"
        cases[name] = partial(reports, rows, behind, calls), None
    return cases


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--waiting", type=int, default=10_000, metavar="N", help="requests that wait (10000)")
    parser.add_argument("--calls", type=int, default=500, metavar="N", help="calls of each decision (500)")


def run(args: argparse.Namespace) -> int:
    """Run all measurements for every seed."""
    cases = measurements(args.waiting, args.calls)
    medians: dict[str, list[float]] = {name: [] for name in cases}
    late: dict[str, list[float]] = {name: [] for name in cases}
    for seed, name in tracked([(seed, name) for seed in args.seeds for name in cases], "core-decisions"):
        times_us = cases[name][0](seed)
        medians[name].append(quantile(times_us, 0.5))
        late[name].append(quantile(times_us, 0.95))
    goals = tuple(
        at_most(f"{name}: µs", medians[name], most, ".0f")
        for name, (_, most) in cases.items()
        if most is not None
    )
    columns: dict[str, Callable[[str], str]] = {
        "decision": str,
        "median, µs": lambda name: cell(medians[name], spec=".1f"),
        "95 %": lambda name: cell(late[name], spec=".1f"),
    }
    method = f"Requests of every kind, seeds {', '.join(map(str, args.seeds))}, no store and no network."
    data = {"median_us": medians, "p95_us": late}
    section = Section("Decisions of the router's core", method, goals, (table(cases, columns),), data)
    return report(args, [section])
