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
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from baton.fleet import Fleet, FleetSpec
from benchmarks.fleets.doors.plain import BadStream, Rejected
from benchmarks.peers.baton_arm import PROFILE, by_http
from benchmarks.peers.dynamo_arm import NAME, running
from benchmarks.peers.environments import NotInstalled
from benchmarks.peers.loads import WORDS
from benchmarks.report import report
from reporting.progress import tracked
from reporting.quantiles import quantile
from reporting.section import Section, markdown
from reporting.tables import cell

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
class Arm:
    """A fleet, the address of its HTTP server, and what a request's body has beside its prompt."""

    name: str
    address: str
    body: Mapping[str, Any]
    is_told_limits: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest time to the first token, and the longest mean time between those after it, in ms."""

    ttft_ms: float
    tpot_ms: float


@dataclass(slots=True)
class Served:
    """The results of the requests of one run; times in ms as their clients saw them."""

    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    rejected_after_ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return len(self.ttft_ms) + len(self.rejected_after_ms) + len(self.failed)

    def num_good(self, limits: Limits) -> int:
        """Return the number of requests that kept both limits."""
        return sum(
            ttft_ms <= limits.ttft_ms and tpot_ms <= limits.tpot_ms
            for ttft_ms, tpot_ms in zip(self.ttft_ms, self.tpot_ms, strict=True)
        )

    def good_share(self, limits: Limits) -> float:
        """Return the share of all requests that kept both limits."""
        return self.num_good(limits) / max(1, self.requests)

    def kept_share(self, limits: Limits) -> float:
        """Return the share of the requests not rejected that kept both limits."""
        return self.num_good(limits) / max(1, self.requests - len(self.rejected_after_ms))


@dataclass(slots=True)
class Found:
    """The limits, the capacity in requests per second, and the runs of an arm, by load and then by seed."""

    limits: Limits
    capacity: float
    runs: dict[float, list[Served]] = field(default_factory=lambda: {load: [] for load in LOADS})

    def good_per_s(self, load: float) -> list[float]:
        """Return good requests for each second in which requests were sent, seed by seed."""
        return [run.num_good(self.limits) / SECONDS for run in self.runs[load]]

    def of_peak(self) -> list[float]:
        """Return good requests at the highest load over the peak, seed by seed."""
        peaks = zip(*(self.good_per_s(load) for load in LOADS if load <= 1), strict=True)
        at_most = self.good_per_s(max(LOADS))
        return [good / max(peak) for good, peak in zip(at_most, peaks, strict=True)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no flag: the load is the same for everybody."""


def run(args: argparse.Namespace) -> int:
    found, note = asyncio.run(_measure(args.model, args.seeds))
    return report(args, [section_of(found, note)])


async def _measure(model: Path, seeds: Sequence[int]) -> tuple[dict[str, Found], str]:
    found: dict[str, Found] = {}
    note = f"{SECONDS:g} s of requests for each row and seed. Client, servers and workers share the machine."
    async with AsyncExitStack() as stack:
        arms = [await stack.enter_async_context(_baton(model))]
        try:
            for name, flags, worker_flags in (("Dynamo", (), ()), ("Dynamo, set", REJECTING, SMALL_BATCH)):
                peer = await stack.enter_async_context(running(model, 1, *flags, worker_flags=worker_flags))
                arms.append(Arm(name, peer.address, {"model": NAME}, is_told_limits=False))
        except (NotInstalled, TimeoutError) as error:
            note += f" Dynamo is missing: {error}"
            print(error, file=sys.stderr)
        for arm in tracked(arms, "capacity"):
            limits = await _limits(arm)
            found[arm.name] = Found(limits, await _capacity(arm, limits))
        for seed in tracked(seeds, "overload"):
            for load in LOADS:
                for arm in arms:
                    at = found[arm.name]
                    at.runs[load].append(await play(arm, at.limits, load * at.capacity, f"{load}:{seed}"))
    return found, note


@asynccontextmanager
async def _baton(model: Path) -> AsyncIterator[Arm]:
    async with Fleet(FleetSpec(model=model, timed=PROFILE, gateways=1)) as fleet:
        yield Arm("Baton", urlsplit(fleet.gateway_urls[0]).netloc, {}, is_told_limits=True)


async def _limits(arm: Arm) -> Limits:
    """Ask the idle arm for one request after the other."""
    alone, rng = Served(), random.Random(0)
    for _ in range(UNLOADED_REQUESTS):
        await _ask(arm, None, rng, alone)
    if len(alone.ttft_ms) < UNLOADED_REQUESTS:
        raise RuntimeError(f"{arm.name}, idle, did not serve a request: {alone.failed}")
    return Limits(TTFT_FACTOR * quantile(alone.ttft_ms, 0.5), TPOT_FACTOR * quantile(alone.tpot_ms, 0.5))


async def _capacity(arm: Arm, limits: Limits) -> float:
    """Raise the rate until too few requests are good, then bisect."""

    async def is_carried(rate: float) -> bool:
        served = await play(arm, limits, rate, f"capacity:{rate}")
        return served.good_share(limits) >= GOOD_AT_CAPACITY

    carried, refused = 0.0, FIRST_RATE
    while await is_carried(refused):
        carried, refused = refused, refused * RATE_STEP
    if not carried:
        raise RuntimeError(f"{arm.name} does not carry {FIRST_RATE:g} requests a second")
    for _ in range(BISECTIONS):
        middle = (carried + refused) / 2
        carried, refused = (middle, refused) if await is_carried(middle) else (carried, middle)
    return carried


async def play(arm: Arm, limits: Limits, rate: float, seed: str) -> Served:
    """Send `rate` requests a second at random times, and return when all have ended."""
    served, rng = Served(), random.Random(seed)
    began, due_s = time.perf_counter(), rng.expovariate(rate)
    requests = []
    while due_s < SECONDS:
        await asyncio.sleep(max(0.0, began + due_s - time.perf_counter()))
        requests.append(asyncio.create_task(_ask(arm, limits, rng, served)))
        due_s += rng.expovariate(rate)
    await asyncio.gather(*requests)
    return served


async def _ask(arm: Arm, limits: Limits | None, rng: random.Random, served: Served) -> None:
    """Stream a completion of a prompt that no other request has, and record the result."""
    added, prompt = dict(arm.body), " ".join(rng.choices(WORDS, k=PROMPT_WORDS))
    if limits is not None and arm.is_told_limits:
        added["slo"] = {"ttft_ms": int(limits.ttft_ms), "tpot_ms": int(limits.tpot_ms)}
    began = time.perf_counter()
    try:
        ttft_ms = 1000 * await by_http(arm.address, added, prompt, NUM_TOKENS)
    except Rejected:
        served.rejected_after_ms.append(1000 * (time.perf_counter() - began))
    except (BadStream, OSError) as error:
        served.failed.append(f"{type(error).__name__}: {error}")
    else:
        took_ms = 1000 * (time.perf_counter() - began)
        served.ttft_ms.append(ttft_ms)
        served.tpot_ms.append((took_ms - ttft_ms) / (NUM_TOKENS - 1))


def section_of(found: Mapping[str, Found], note: str) -> Section:
    """Return a row for each arm and load, with every figure as data."""
    header = ("arm", "load / capacity", "sent a second", "good a second", "of those not rejected, good, %",
              "rejected, %", "after ms", "failed", "TTFT P99, ms")  # fmt: skip
    rows = [
        (name, f"{load:g}", f"{load * at.capacity:.1f}", *_cells(at, load))
        for name, at in found.items()
        for load in LOADS
    ]
    stated = [
        (name, *(f"{limit:.1f}" for limit in astuple(at.limits)), f"{at.capacity:.1f}", cell(at.of_peak()))
        for name, at in found.items()
    ]
    limits = ("arm", "TTFT limit, ms", "TPOT limit, ms", "capacity, requests/s", "good at twice that / peak")
    data = {
        name: {"limits": asdict(at.limits), "capacity": at.capacity,
               "runs": {load: list(map(asdict, runs)) for load, runs in at.runs.items()}}
        for name, at in found.items()
    }  # fmt: skip
    tables = (markdown(limits, stated), markdown(header, rows))
    return Section("Twice the capacity", note, (), tables, {"arms": data})


def _cells(at: Found, load: float) -> list[str]:
    runs = at.runs[load]
    return [
        cell(at.good_per_s(load), spec=".1f"),
        cell([100 * run.kept_share(at.limits) for run in runs], spec=".1f"),
        cell([100 * len(run.rejected_after_ms) / max(1, run.requests) for run in runs], spec=".0f"),
        cell([quantile(run.rejected_after_ms, 0.5) for run in runs if run.rejected_after_ms], spec=".0f"),
        str(sum(len(run.failed) for run in runs)),
        cell([quantile(run.ttft_ms, 0.99) for run in runs if run.ttft_ms], spec=".0f"),
    ]
