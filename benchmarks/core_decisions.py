"""How long the router's core takes to decide: `python -m benchmarks.core_decisions`. Microseconds.

A core with many waiting requests and busy workers, told events as a shell tells them; no store, no network.
Of each figure the median and the 95th percentile over many different requests, since each is another one.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from router.actions import Action, ChargeTenant, Enqueue, SendDecode, Settle
from router.book import CoreConfig
from router.core import RouterCore
from router.events import (
    Arrived,
    Charged,
    Enqueued,
    Event,
    Granted,
    SettleAnswered,
    StepReported,
    WorkerJoined,
)
from router.fleet import WorkerFacts, WorkerLoad
from router.shedding import full_plan
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel
from scheduling.placement import Placement
from scheduling.request import SamplingParams, Slo, SloClass, StopRules
from scheduling.shares import Standing
from state.records import Settled

COST = CostModel((4.8e-3, 1.4e-5, 2.3e-5, 3.5e-8, 8.9e-10, 2.9e-8), 176.0, 0.95, 1.0, 1.1)
"""About those of an 8B model on an H200."""
ROUTER = "router"


@dataclass
class Bench:
    """One core, and the clock it is told."""

    num_workers: int
    core: RouterCore = field(init=False)
    now: float = 1000.0
    draw: random.Random = field(default_factory=lambda: random.Random(1))
    arrived: int = 0

    def __post_init__(self) -> None:
        self.core = RouterCore(CoreConfig(ROUTER, placement=Placement.AGGREGATED, queue_capacity=10**6))
        self.workers = [
            WorkerFacts(f"d{i}", "1", "decode", f"d{i}:1", "f", 16, 100_000, 512, 8192)
            for i in range(self.num_workers)
        ]
        for facts in self.workers:
            self.core.on(WorkerJoined(facts, self.load(pending=0), COST), self.now)

    def load(self, pending: int, running: int = 64) -> WorkerLoad:
        return WorkerLoad(1, running, 0, pending, free_blocks=90_000, context_tokens=1100 * running)

    def tell(self, event: Event) -> list[Action]:
        return self.core.on(event, self.now)

    def arrival(self, slo: Slo | None = None) -> Arrived:
        """A chat-like request; due times and classes are spread over all there are."""
        self.arrived += 1
        draw = self.draw
        some = Slo(
            ttft_ms=draw.choice((None, *range(60_000, 600_000, 5000))),
            tpot_ms=draw.choice((30, 50, 100)),
            slo_class=draw.choice(tuple(SloClass)),
        )
        return Arrived(
            listener=self.arrived,
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
        )

    def admit(self, event: Arrived, position: int, tokens: int) -> list[Action]:
        """From the call to the promise: place in the queue, tenant's charge, verdict."""
        actions = self.tell(event)
        key = next(one.entry.request_key for one in actions if isinstance(one, Enqueue))
        actions = self.tell(Enqueued(key, position, tokens))
        if any(isinstance(one, ChargeTenant) for one in actions):
            actions = self.tell(Charged(key, Standing(0.0, None, 0, is_over=False)))
        return actions

    def fill(self, waiting: int) -> None:
        """Busy workers, and so many that wait for them."""
        for facts in self.workers:
            self.tell(StepReported(facts.key, TokenColumns(), self.load(pending=100_000)))
        while len(self.core.book.waiting) < waiting:
            backlog = self.core.book.waiting.backlog
            ttft_ms, slo_class = self.draw.randrange(10_000, 600_000), self.draw.choice(tuple(SloClass))
            slo = Slo(ttft_ms=ttft_ms, slo_class=slo_class, allow_at_risk=True)
            self.admit(self.arrival(slo), 1, backlog.tokens)
            self.now += 0.001

    def run_on(self, facts: WorkerFacts, count: int) -> list[int]:
        """Handles of so many requests that decode on one worker."""
        handles = []
        for _ in range(count):
            event = self.arrival(Slo(tpot_ms=100))
            self.admit(event, 0, 0)
            key = f"t/{event.request_id}/0"
            actions = self.tell(Granted(key, facts.key))
            if any(isinstance(one, Settle) for one in actions):
                actions = self.tell(SettleAnswered(key, facts.key, facts.key, Settled.OK))
                handles += [one.spec.handle for one in actions if isinstance(one, SendDecode)]
        return handles


def timed(calls: int, prepare: Callable[[], Callable[[], object]]) -> list[float]:
    """Microseconds of each call; what prepares it is not counted."""
    taken = []
    gc.collect()
    gc.disable()
    for _ in range(calls):
        call = prepare()
        started = time.perf_counter()
        call()
        taken.append((time.perf_counter() - started) * 1e6)
    gc.enable()
    return taken


def arrivals(num_workers: int, waiting: int, calls: int) -> list[float]:
    """A newcomer behind half of the queue, with every kind of SLO."""
    bench = Bench(num_workers)
    bench.fill(waiting)

    def prepare() -> Callable[[], object]:
        bench.now += 0.01
        facts = bench.workers[bench.arrived % num_workers]
        bench.tell(StepReported(facts.key, TokenColumns(), bench.load(pending=100_000)))
        event = bench.arrival()
        ahead = bench.core.book.waiting.backlog.tokens // 2
        return lambda: bench.admit(event, waiting // 2, ahead)

    return timed(calls, prepare)


def full_plans(num_workers: int, waiting: int, calls: int) -> list[float]:
    """Of all that wait, after nine of ten workers were lost."""
    bench = Bench(num_workers)
    bench.fill(waiting)
    for facts in bench.workers[num_workers // 10 :]:
        bench.core.book.fleet.lose(facts.key)
    bench.core.book.capacity_died = True
    made = full_plan(bench.core.book)
    print(f"of {waiting}: {len(made.shed)} shed, {len(made.broken)} broken")

    def prepare() -> Callable[[], object]:
        bench.now += 0.1
        return lambda: full_plan(bench.core.book)

    return timed(calls, prepare)


def reports(rows: int, waiting: int, calls: int) -> list[float]:
    """One step of a worker with so many sequences, each of which gets a token."""
    bench = Bench(16)
    handles = bench.run_on(bench.workers[0], rows)
    assert len(handles) == rows, "each was dispatched"
    bench.fill(waiting)
    index = 0

    def prepare() -> Callable[[], object]:
        nonlocal index
        tokens = TokenColumns(handles, [0] * rows, [index] * rows, [9] * rows, [0] * rows)
        index += 1
        bench.now += 0.02
        event = StepReported(bench.workers[0].key, tokens, bench.load(pending=100_000, running=rows), 0.02)
        return lambda: bench.tell(event)

    return timed(min(calls, 390), prepare)


def say(what: str, taken: Sequence[float]) -> None:
    """One line."""
    late = statistics.quantiles(taken, n=20)[-1]
    print(f"{what:<55} {statistics.median(taken):9.1f} µs   95 %: {late:9.1f} µs")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core_decisions", description=__doc__)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=500)
    args = parser.parse_args()
    for num_workers in (16, 200):
        what = f"an arrival, {num_workers} workers, {args.waiting} waiting"
        say(what, arrivals(num_workers, args.waiting, args.calls))
    say(f"a full plan, 20 of 200 workers left, {args.waiting} waiting", full_plans(200, args.waiting, 20))
    for rows in (1, 64, 256):
        say(f"a report of {rows} tokens, none waiting", reports(rows, 0, args.calls))
    say("a report of 64 tokens, 100 waiting", reports(64, 100, args.calls))


if __name__ == "__main__":
    main()
