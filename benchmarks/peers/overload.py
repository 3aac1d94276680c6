"""Offer Baton and Dynamo twice the load that they carry, and count the requests that are still served well.

    python -m benchmarks overload --seeds 1,2,3

All are asked over HTTP, with prompts of 1000 random words and 64 tokens of output, at random times. Workers
compute nothing, and those of the two sides have different speeds, so each arm has limits of its own: a first
token within 10 times, and later tokens within 2.5 times, what a request takes on the idle arm (median of
20). A request is good if its client sees both limits kept. The capacity is the highest rate found at which
90 % are good. Baton is told the limits with each request, and refuses those that it cannot keep. Dynamo knows
no limits: it runs as it comes, and once more with its own means against overload, set by hand for this load:
a small batch, and a threshold beyond which it rejects requests.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, astuple, dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

from baton.fleet import Fleet, FleetSpec
from benchmarks.doors import arms
from benchmarks.doors.arms import Arm, Run
from benchmarks.peers.baton_arm import PROFILE, by_http
from benchmarks.peers.dynamo_arm import NAME, running
from benchmarks.peers.environments import NotInstalled
from benchmarks.peers.loads import WORDS
from benchmarks.report import report
from sim.reporting.progress import tracked
from sim.reporting.quantiles import quantile
from sim.reporting.section import Section, markdown
from sim.reporting.tables import cell
from sim.workloads.shapes import arrivals

PROMPT_WORDS, NUM_TOKENS = 1000, 64
TTFT_FACTOR, TPOT_FACTOR = 10.0, 2.5
UNLOADED_REQUESTS = 20
GOOD_AT_CAPACITY = 0.9
FIRST_RATE, RATE_STEP, BISECTIONS = 2.0, 1.5, 2
SECONDS = 20.0
LOADS = (0.8, 1.0, 2.0)
"""Offered loads as multiples of the capacity. The peak is the best of those up to 1."""
REJECTING = ("--active-prefill-tokens-threshold", "5000")
"""The frontend rejects requests while more tokens than this, of three or four prompts, are to be computed."""
SMALL_BATCH = ("--max-num-seqs", "12")
"""The worker runs no more sequences at once than its limit of TPOT allows."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest time to the first token, and the longest mean time between those after it, in ms."""

    ttft_ms: float
    tpot_ms: float

    def num_good(self, run: Run) -> int:
        """Return the number of requests that kept both limits."""
        pairs = zip(run.ttft_ms, run.tpot_ms, strict=True)
        return sum(ttft_ms <= self.ttft_ms and tpot_ms <= self.tpot_ms for ttft_ms, tpot_ms in pairs)

    def good_share(self, run: Run) -> float:
        """Return the share of all requests that kept both limits."""
        return self.num_good(run) / max(1, run.num_requests)

    def kept_share(self, run: Run) -> float:
        """Return the share of the requests not rejected that kept both limits."""
        return self.num_good(run) / max(1, run.num_requests - len(run.rejected_after_ms))


Contender = Callable[[Limits | None], Arm]
"""Returns the arm whose requests state these limits, if it knows limits."""


@dataclass(slots=True)
class Found:
    """The limits, the capacity in requests per second, and the runs of an arm, by load and then by seed."""

    limits: Limits
    capacity: float
    runs: dict[float, list[Run]] = field(default_factory=lambda: {load: [] for load in LOADS})

    def good_per_s(self, load: float) -> list[float]:
        """Return good requests for each second in which requests were sent, seed by seed."""
        return [self.limits.num_good(run) / SECONDS for run in self.runs[load]]

    def of_peak(self) -> list[float]:
        """Return good requests at the highest load over the peak, seed by seed."""
        peaks = zip(*(self.good_per_s(load) for load in LOADS if load <= 1), strict=True)
        at_most = self.good_per_s(max(LOADS))
        return [good / max(peak) for good, peak in zip(at_most, peaks, strict=True)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no flag: the load is the same for everybody."""


def run(args: argparse.Namespace) -> int:
    results, note = asyncio.run(_measure(args.model, args.seeds))
    return report(args, [section_of(results, note)])


async def _measure(model: Path, seeds: Sequence[int]) -> tuple[dict[str, Found], str]:
    results: dict[str, Found] = {}
    note = f"{SECONDS:g} s of requests for each row and seed. Client, servers and workers share the machine."
    async with AsyncExitStack() as stack:
        contenders = {"Baton": await stack.enter_async_context(_baton(model))}
        try:
            for name, flags, worker_flags in (("Dynamo", (), ()), ("Dynamo, set", REJECTING, SMALL_BATCH)):
                peer = await stack.enter_async_context(running(model, 1, *flags, worker_flags=worker_flags))
                pids, ask = {"frontend": peer.frontend.pid}, partial(by_http, peer.address, {"model": NAME})
                contenders[name] = partial(_untold, Arm(name, pids, ask))
        except (NotInstalled, TimeoutError) as error:
            note += f" Dynamo is missing: {error}"
            print(error, file=sys.stderr)
        for name, contender in tracked([*contenders.items()], "capacity"):
            limits = await _limits(contender(None))
            results[name] = Found(limits, await _capacity(contender(limits), limits))
        for seed in tracked(seeds, "overload"):
            for load in LOADS:
                for name, contender in contenders.items():
                    at = results[name]
                    run = await play(contender(at.limits), load * at.capacity, seed)
                    at.runs[load].append(run)
    return results, note


@asynccontextmanager
async def _baton(model: Path) -> AsyncIterator[Contender]:
    async with Fleet(FleetSpec(model=model, timed=PROFILE, gateways=1)) as fleet:
        pids = {name: fleet.process(f"{name}-0").pid for name in ("gateway", "router")}
        yield partial(told, pids, urlsplit(fleet.gateway_urls[0]).netloc)


def told(pids: Mapping[str, int], address: str, limits: Limits | None) -> Arm:
    """Return Baton with limits in the body of each request."""
    slo = {"ttft_ms": int(limits.ttft_ms), "tpot_ms": int(limits.tpot_ms)} if limits else None
    return Arm("Baton", pids, partial(by_http, address, {"slo": slo} if slo else {}))


def _untold(arm: Arm, _: Limits | None) -> Arm:
    return arm


async def _limits(arm: Arm) -> Limits:
    """Ask the idle arm for one request after the other."""
    rng = random.Random(0)
    runs = [await arms.play(arm, [_prompt(rng)], NUM_TOKENS, [0.0]) for _ in range(UNLOADED_REQUESTS)]
    lost = [reason for run in runs for reason in (*run.failed, *map(str, run.rejected_after_ms))]
    if lost:
        raise RuntimeError(f"{arm.name}, idle, did not serve a request: {lost}")
    ttft_ms = [figure for run in runs for figure in run.ttft_ms]
    tpot_ms = [figure for run in runs for figure in run.tpot_ms]
    return Limits(TTFT_FACTOR * quantile(ttft_ms, 0.5), TPOT_FACTOR * quantile(tpot_ms, 0.5))


async def _capacity(arm: Arm, limits: Limits) -> float:
    """Raise the rate until too few requests are good, then bisect."""

    async def is_carried(rate: float) -> bool:
        return limits.good_share(await play(arm, rate, 0)) >= GOOD_AT_CAPACITY

    carried, refused = 0.0, FIRST_RATE
    while await is_carried(refused):
        carried, refused = refused, refused * RATE_STEP
    if not carried:
        raise RuntimeError(f"{arm.name} does not carry {FIRST_RATE:g} requests a second")
    for _ in range(BISECTIONS):
        middle = (carried + refused) / 2
        carried, refused = (middle, refused) if await is_carried(middle) else (carried, middle)
    return carried


async def play(arm: Arm, rate: float, seed: int) -> Run:
    """Send `rate` requests a second at random times, each with a prompt that no other has."""
    rng = random.Random(f"{rate}:{seed}")
    due_s = list(takewhile(lambda at_s: at_s < SECONDS, arrivals("poisson", rate, seed)))
    return await arms.play(arm, [_prompt(rng) for _ in due_s], NUM_TOKENS, due_s)


def _prompt(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=PROMPT_WORDS))


def section_of(results: Mapping[str, Found], note: str) -> Section:
    """Return a row for each arm and load, with every figure as data."""
    header = ("arm", "load / capacity", "sent a second", "good a second", "of those not rejected, good, %",
              "rejected, %", "after ms", "failed", "TTFT P99, ms")  # fmt: skip
    rows = [
        (name, f"{load:g}", f"{load * at.capacity:.1f}", *_cells(at, load))
        for name, at in results.items()
        for load in LOADS
    ]
    limit_rows = [
        (name, *(f"{limit:.1f}" for limit in astuple(at.limits)), f"{at.capacity:.1f}", cell(at.of_peak()))
        for name, at in results.items()
    ]
    limits = ("arm", "TTFT limit, ms", "TPOT limit, ms", "capacity, requests/s", "good at twice that / peak")
    data = {
        name: {"limits": asdict(at.limits), "capacity": at.capacity,
               "runs": {load: list(map(asdict, runs)) for load, runs in at.runs.items()}}
        for name, at in results.items()
    }  # fmt: skip
    tables = (markdown(limits, limit_rows), markdown(header, rows))
    return Section("Twice the capacity", note, (), tables, {"arms": data})


def _cells(at: Found, load: float) -> list[str]:
    runs = at.runs[load]
    return [
        cell(at.good_per_s(load), spec=".1f"),
        cell([100 * at.limits.kept_share(run) for run in runs], spec=".1f"),
        cell([100 * len(run.rejected_after_ms) / max(1, run.num_requests) for run in runs], spec=".0f"),
        cell([quantile(run.rejected_after_ms, 0.5) for run in runs if run.rejected_after_ms], spec=".0f"),
        str(sum(len(run.failed) for run in runs)),
        cell([quantile(run.ttft_ms, 0.99) for run in runs if run.ttft_ms], spec=".0f"),
    ]
