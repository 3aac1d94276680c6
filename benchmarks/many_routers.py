"""Routers that share one Redis, one of which is killed at half time.

    python -m benchmarks many-routers --rate 200 --seconds 60 --scale 0.02 --decode 1 --clients 2

A fleet of timed workers, two routers, and clients in processes of their own that know both. Redis is watched
throughout: no request of a class may be granted before one that was due earlier (but for grants in flight),
no worker's blocks or seats may be leased twice, and in the end nothing may be held. One router is killed at
half time; its clients resume with the other, and no request may be lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import random
import resource
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from baton import AsyncClient, BatonError, Sampling, Slo, SloClass, Stop, Timeout
from baton.fleet import Fleet, FleetSpec
from baton.snapshots import Role
from benchmarks.flags import add_model_flag, add_shared_flags, number
from benchmarks.redis_watch import RedisWatch
from benchmarks.telling import Telling
from reporting.progress import progress_bars
from reporting.quantiles import quantile
from reporting.section import Goal, Section, markdown
from workloads.shapes import DEFAULT_CAPS, WORKLOADS, arrivals, prompt_ids

CLASSES = (SloClass.INTERACTIVE, SloClass.STANDARD, SloClass.BATCH)
DRAIN_S = 60.0
COUNTS = {
    "prefill": "prefill workers",
    "decode": "decode workers",
    "routers": "routers",
    "clients": "client processes",
    "max_num_seqs": "seats of each worker",
}
VOCAB_SIZE = 2048


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. Lengths are `workload`'s, times `scale`; `clients` are processes."""

    model: Path
    rate: float
    seconds: float
    scale: float
    workload: str = "chat"
    prefill: int = 1
    decode: int = 2
    routers: int = 2
    clients: int = 1
    max_num_seqs: int = 512
    profile: str = "h200-llama-3.1-8b"
    kill: bool = True
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """What the clients of one process, or of all, saw. Times in milliseconds."""

    sent: int = 0
    finished: int = 0
    resumed: int = 0
    wrong_length: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    ttft_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    late_ms: list[float] = field(default_factory=list)
    """How much after its time a request was sent: a generator that is overrun offers less than it says."""
    cpu_s: float = 0.0

    def add(self, other: Outcome) -> None:
        for name in ("sent", "finished", "resumed", "wrong_length", "tokens", "cpu_s", "ttft_ms", "late_ms"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.errors.update(other.errors)


@dataclass(frozen=True, slots=True)
class Report:
    """A run, judged."""

    outcome: Outcome
    granted: int
    most_waiting: int
    passed: int
    passed_beyond_flight: int
    oversold: tuple[str, ...]
    held_at_the_end: tuple[str, ...]
    cpu_shares: dict[str, float]
    """CPU seconds a second, by process, while requests were sent; a killed one's until then."""

    @property
    def violations(self) -> list[str]:
        """What the fleet promises and did not keep; empty if all is well."""
        outcome = self.outcome
        found = [f"{name}: oversold" for name in self.oversold]
        found += [f"{key}: still held" for key in self.held_at_the_end]
        found += [f"{count} × {error}" for error, count in outcome.errors.items()]
        if outcome.wrong_length:
            found.append(f"{outcome.wrong_length} answers of a wrong length")
        if outcome.finished != outcome.sent:
            found.append(f"{outcome.sent - outcome.finished} of {outcome.sent} requests not finished")
        if self.passed_beyond_flight:
            found.append(f"{self.passed_beyond_flight} grants before one due earlier in the same class")
        return found


async def measure(plan: Plan, run_dir: Path | None = None) -> Report:
    """Start the fleet, send, kill, wait, judge."""
    sizes = ("--max-num-seqs", str(plan.max_num_seqs))
    spec = FleetSpec(
        model=plan.model,
        prefill=plan.prefill,
        decode=plan.decode,
        routers=plan.routers,
        timed=plan.profile,
        run_dir=run_dir,
        extra_args={"prefill": sizes, "decode": sizes},
    )
    async with Fleet(spec) as fleet, RedisWatch(fleet.process("redis").address) as watch:
        with _processes(plan.clients) as pool:
            return await _measure(plan, fleet, watch, pool)


async def _measure(plan: Plan, fleet: Fleet, watch: RedisWatch, pool: ProcessPoolExecutor) -> Report:
    loop = asyncio.get_running_loop()
    async with AsyncClient(fleet.router_addresses[-1:]) as client:
        capacity = await _capacities(client)
    begin_at = time.time() + 1.0
    before = _cpu_seconds(fleet)
    sending = [
        loop.run_in_executor(pool, _client_process, plan, number, fleet.router_addresses, begin_at)
        for number in range(plan.clients)
    ]
    await asyncio.sleep(1.0 + plan.seconds / 2)
    middle = _cpu_seconds(fleet)
    if plan.kill:
        fleet.process("router-0").kill()
    await asyncio.sleep(plan.seconds / 2)
    after = _cpu_seconds(fleet)
    outcome = Outcome()
    for found in await asyncio.gather(*sending):
        outcome.add(found)
    held = await _until_nothing_is_held(watch)
    facts = watch.order.facts
    oversold = [
        f"{worker} ({facts.max_leased[worker]} of {blocks} blocks, {facts.max_seats[worker]} seats)"
        for worker, blocks in capacity.items()
        if facts.max_leased[worker] > blocks or facts.max_seats[worker] > plan.max_num_seqs
    ]
    spent = {name: (after.get(name, middle[name]) - used, name in after) for name, used in before.items()}
    return Report(
        outcome=outcome,
        granted=facts.granted,
        most_waiting=facts.most_waiting,
        passed=facts.passed,
        passed_beyond_flight=facts.passed_beyond_flight,
        oversold=tuple(oversold),
        held_at_the_end=tuple(held),
        cpu_shares={
            name: cpu / (plan.seconds if lived else plan.seconds / 2) for name, (cpu, lived) in spent.items()
        },
    )


async def _capacities(client: AsyncClient) -> dict[str, int]:
    """Blocks of each decode worker."""
    async with contextlib.aclosing(client.watch(0.1)) as snapshots:
        async for snapshot in snapshots:
            return {one.worker_id: one.num_blocks for one in snapshot.workers if one.role is Role.DECODE}
    return {}


async def _until_nothing_is_held(watch: RedisWatch) -> list[str]:
    """Keys of what is still held after a while: what a dead router left has to expire first."""
    give_up = time.monotonic() + DRAIN_S
    while (left := await watch.ledgers_left()) and time.monotonic() < give_up:  # noqa: ASYNC110 -- Redis's keys
        await asyncio.sleep(0.2)
    return left


def _cpu_seconds(fleet: Fleet) -> dict[str, float]:
    """Of every process that runs, user and system."""
    found = {}
    for process in fleet.processes:
        with contextlib.suppress(FileNotFoundError):
            text = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii")
            user, system = text.rpartition(")")[2].split()[11:13]
            found[process.name] = (int(user) + int(system)) / 100
    return found


# A client's process


def _processes(number: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("spawn"))


def _client_process(plan: Plan, number: int, addresses: Sequence[str], begin_at: float) -> Outcome:
    outcome = asyncio.run(_send_all(plan, number, addresses, begin_at))
    used = resource.getrusage(resource.RUSAGE_SELF)
    outcome.cpu_s = used.ru_utime + used.ru_stime
    return outcome


async def _send_all(plan: Plan, number: int, addresses: Sequence[str], begin_at: float) -> Outcome:
    """This process's share of the rate, open loop; routers are tried in turns."""
    rng = random.Random(f"{plan.seed}:{number}")
    outcome = Outcome()
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                AsyncClient([*addresses[first:], *addresses[:first]], timeout=Timeout(total_s=120))
            )
            for first in range(len(addresses))
        ]
        async with asyncio.TaskGroup() as group:
            for place, due in enumerate(_due(plan, number)):
                late_s = time.time() - begin_at - due
                if late_s < 0:
                    await asyncio.sleep(-late_s)
                outcome.late_ms.append(max(0.0, late_s * 1000))
                group.create_task(_one(clients[place % len(clients)], plan, rng, outcome))
    return outcome


def _due(plan: Plan, number: int) -> Iterator[float]:
    times = arrivals("poisson", plan.rate / plan.clients, seed=plan.seed * plan.clients + number)
    return itertools.takewhile(lambda due: due < plan.seconds, times)


async def _one(client: AsyncClient, plan: Plan, rng: random.Random, outcome: Outcome) -> None:
    shape = WORKLOADS[plan.workload](rng, plan.scale, DEFAULT_CAPS[plan.workload])
    outcome.sent += 1
    try:
        done = await client.complete(
            prompt_ids(shape, rng, VOCAB_SIZE),
            sampling=Sampling(temperature=0.0),
            stop=Stop(max_tokens=shape.output_tokens, ignore_eos=True),
            slo=Slo(slo_class=rng.choice(CLASSES)),
        )
    except BatonError as error:
        outcome.errors[f"{type(error).__name__}: {error}"[:120]] += 1
        return
    outcome.finished += 1
    outcome.resumed += done.resumes > 0
    outcome.tokens += len(done.choices[0].token_ids)
    outcome.wrong_length += len(done.choices[0].token_ids) != shape.output_tokens
    outcome.ttft_ms.append(done.finished.delivery.ttft_ms)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rate", type=number, default=200.0, metavar="R", help="requests a second (200)")
    add("--seconds", type=number, default=60.0, metavar="S", help="of arrivals (60)")
    add("--workload", choices=sorted(WORKLOADS), default="chat", help="(chat)")
    add("--scale", type=number, default=0.1, metavar="X", help="of all lengths (0.1)")
    for name, what in COUNTS.items():
        default = Plan.__dataclass_fields__[name].default
        add(f"--{name.replace('_', '-')}", type=int, default=default, metavar="N", help=f"{what} ({default})")
    add("--profile", default="h200-llama-3.1-8b", metavar="NAME", help="of the workers (h200-llama-3.1-8b)")
    add("--no-kill", dest="kill", action="store_false", help="let both routers live")
    add_model_flag(parser)
    add_shared_flags(parser)


def run(args: argparse.Namespace) -> int:
    """One fleet for each seed."""
    telling = Telling(args)
    asked = {one.name: getattr(args, one.name) for one in fields(Plan) if one.name != "seed"}
    reports = []
    with progress_bars() as progress:
        bar = progress.add_task("many-routers", total=len(args.seeds))
        for seed in args.seeds:
            reports.append(asyncio.run(measure(Plan(**asked, seed=seed))))
            progress.advance(bar)
    telling.add(section(Plan(**asked), args.seeds, reports))
    return telling.end()


def section(plan: Plan, seeds: Sequence[int], reports: Sequence[Report]) -> Section:
    """Goals, and a row for each seed."""
    outcomes = [one.outcome for one in reports]

    def none(claim: str, counts: Iterable[int]) -> Goal:
        return Goal(claim, (float(sum(counts)),), 0, at_least=False, spec=".0f")

    goals = (
        Goal(
            "requests sent a second",
            tuple(one.sent / plan.seconds for one in outcomes),
            0.95 * plan.rate,
            spec=".1f",
        ),
        none("requests not finished", (one.sent - one.finished for one in outcomes)),
        none("answers of a wrong length", (one.wrong_length for one in outcomes)),
        none(
            "grants before one due earlier, beyond those in flight",
            (one.passed_beyond_flight for one in reports),
        ),
        none("workers whose blocks or seats were oversold", (len(one.oversold) for one in reports)),
        none("credits and leases held at the end", (len(one.held_at_the_end) for one in reports)),
    )
    rows = [
        (
            f"seed {seed}",
            f"{one.outcome.sent} / {one.outcome.finished}",
            f"{one.outcome.resumed}",
            f"{quantile(one.outcome.late_ms, 0.99):.0f}",
            f"{quantile(one.outcome.ttft_ms, 0.5):.0f} / {quantile(one.outcome.ttft_ms, 0.99):.0f}",
            f"{one.outcome.tokens / plan.seconds:.0f}",
            f"{one.granted} / {one.most_waiting} / {one.passed}",
            ", ".join(f"{name} {share:.2f}" for name, share in one.cpu_shares.items())
            + f", clients {one.outcome.cpu_s / plan.seconds:.2f}",
            "; ".join(one.violations) or "none",
        )
        for seed, one in zip(seeds, reports, strict=True)
    ]
    header = (
        "", "sent / finished", "resumed", "sent late P99, ms", "TTFT P50 / P99, ms", "tokens/s",
        "grants / most waiting / passed", "cores", "violations",
    )  # fmt: skip
    killed = ", one killed at half time" if plan.kill else ""
    method = (
        f"{plan.routers} routers on one Redis{killed}, {plan.prefill} prefill and {plan.decode} decode "
        f"workers timed by {plan.profile}, {plan.workload} × {plan.scale:g} at {plan.rate:g} requests/s for "
        f"{plan.seconds:g} s, {plan.clients} client processes."
    )
    data = {"plan": asdict(plan) | {"model": str(plan.model)}, "reports": [asdict(one) for one in reports]}
    return Section("Many routers", method, goals, (markdown(header, rows),), data)
