"""Measure what a batch costs interactive requests that have a promise, and what it finds to spare.

    python -m benchmarks batches --rate 6 --duration-s 30 --seeds 1,2,3

A timed fleet, which takes the steps of a profile and computes nothing, serves interactive requests of the
`chat` workload at a rate, each with a promise: alone, and while a batch that never runs out is under way, in
turns. The batch goes through the gateway, the interactive requests by gRPC.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx

from baton import Slo
from baton.fleet import Fleet, FleetSpec
from benchmarks.fleets.arms import Target, reached
from benchmarks.fleets.load import jobs, open_loop
from benchmarks.fleets.metrics import RequestRecord
from benchmarks.report import report
from reporting.progress import tracked
from reporting.quantiles import quantile
from reporting.section import Section, at_most, markdown
from reporting.tables import cell
from scheduling.cost.profiles import Profile, dump
from services.profiles import load_timed
from workloads.shapes import arrivals, shapes

PROFILE = "h200-llama-3.1-8b"
LINES = 50_000
"""The most that a file may have."""
LINE_TOKENS = 128
WARM_UP_S = 5.0
"""How long a batch runs before it is measured: its window has opened."""


@dataclass(frozen=True, slots=True)
class Round:
    """One seed in one arm; shares of all requests, or of the accepted ones that a promise was made to."""

    arm: str
    sent: int
    refused: float
    kept: float
    good: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    lines_per_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--timed", default=PROFILE, metavar="PROFILE", help=f"the profile of both workers ({PROFILE})")
    slower = "how many times slower its steps are, so that a busy machine keeps up with them (1)"
    add("--slower", type=float, default=1.0, metavar="X", help=slower)
    add("--rate", type=float, default=6.0, metavar="R", help="interactive requests a second (6)")
    add("--duration-s", type=float, default=30.0, metavar="S", help="length of each run (30)")
    add("--ttft-ms", type=int, default=500, metavar="MS", help="the promise for the first token (500)")
    add("--tpot-ms", type=int, default=40, metavar="MS", help="the promise for the others (40)")


def run(args: argparse.Namespace) -> int:
    return report(args, [section_of(*asyncio.run(_measure(args)))])


async def _measure(args: argparse.Namespace) -> tuple[list[Round], list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        profile = slowed(load_timed(args.timed), args.slower)
        path = Path(folder) / "profile.json"
        path.write_text(dump(profile), encoding="utf-8")
        spec = FleetSpec(model=args.model, timed=str(path), prefill=0, decode=2, gateways=1)
        return await _measured(args, spec)


def slowed(profile: Profile, factor: float) -> Profile:
    """Return the profile of a worker whose steps take so many times as long."""
    return replace(profile, cost=profile.cost.scaled(factor))


async def _measured(args: argparse.Namespace, spec: FleetSpec) -> tuple[list[Round], list[float]]:
    """Return the rounds, and the memory of the gateway before and after them in MiB."""
    async with Fleet(spec) as fleet:
        [url] = fleet.gateway_urls
        async with (
            reached(fleet.router_addresses, "slack") as target,
            httpx.AsyncClient(base_url=url, timeout=120.0) as http,
        ):
            pid = fleet.process("gateway-0").pid
            before_mib = peak_mib(pid)
            file_id = await _upload(http)
            turns = [
                (seed, arm)
                for place, seed in enumerate(args.seeds)
                for arm in ((None, file_id), (file_id, None))[place % 2]
            ]
            rounds = [
                await _round(args, target, http, file, seed) for seed, file in tracked(turns, "batches")
            ]
            return rounds, [before_mib, peak_mib(pid)]


def peak_mib(pid: int) -> float:
    """Return the most memory that a process has held so far."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def _upload(http: httpx.AsyncClient) -> str:
    body = {"prompt": "The list is", "max_tokens": LINE_TOKENS, "ignore_eos": True}
    rows = (
        {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
        for number in range(LINES)
    )
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    form: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": content}}
    return str((await http.post("/v1/files", **form)).raise_for_status().json()["id"])


async def _round(
    args: argparse.Namespace, target: Target, http: httpx.AsyncClient, file_id: str | None, seed: int
) -> Round:
    promise = Slo(ttft_ms=args.ttft_ms, tpot_ms=args.tpot_ms)
    times = list(takewhile(lambda at: at < args.duration_s, arrivals("poisson", args.rate, seed)))
    made = [replace(shape, slo_class="interactive") for shape in shapes("chat", len(times), seed, 1.0)]
    arm = "alone" if file_id is None else "batch"
    work = jobs(target, made, f"{arm}:{seed}", promise)
    if file_id is None:
        return _summary(arm, await open_loop(target.send, work, times), 0.0)
    async with _batch(http, file_id) as batch:
        await asyncio.sleep(WARM_UP_S)
        before, began = await _lines(http, batch), asyncio.get_running_loop().time()
        records = await open_loop(target.send, work, times)
        lines_per_s = (await _lines(http, batch) - before) / (asyncio.get_running_loop().time() - began)
    return _summary(arm, records, lines_per_s)


@asynccontextmanager
async def _batch(http: httpx.AsyncClient, file_id: str) -> AsyncIterator[str]:
    about = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = str((await http.post("/v1/batches", json=about)).raise_for_status().json()["id"])
    try:
        yield batch
    finally:
        (await http.post(f"/v1/batches/{batch}/cancel")).raise_for_status()
        while (await http.get(f"/v1/batches/{batch}")).json()["status"] != "cancelled":  # noqa: ASYNC110 -- HTTP
            await asyncio.sleep(0.1)


async def _lines(http: httpx.AsyncClient, batch: str) -> int:
    return int((await http.get(f"/v1/batches/{batch}")).json()["request_counts"]["completed"])


def _summary(arm: str, records: Sequence[RequestRecord], lines_per_s: float) -> Round:
    wrong = next((record.error for record in records if record.error), "")
    if wrong:
        raise ValueError(f"a request failed: {wrong}")
    accepted = [record for record in records if record.refused_after_s is None]
    ttfts = [1000 * record.ttft_s for record in accepted if record.ttft_s is not None]
    tpots = [1000 * record.tpot_s for record in accepted if record.tpot_s is not None]
    good = sum(record.good for record in accepted)
    return Round(
        arm,
        len(records),
        1 - len(accepted) / len(records),
        good / len(accepted),
        good / len(records),
        quantile(ttfts, 0.5),
        quantile(ttfts, 0.99),
        quantile(tpots, 0.5),
        lines_per_s,
    )


def section_of(rounds: Sequence[Round], memory_mib: Sequence[float]) -> Section:
    """Return the goal, and a row for each arm."""
    columns = {
        "requests": ("sent", ".0f", 1),
        "refused, %": ("refused", ".1f", 100),
        "kept of the accepted, %": ("kept", ".1f", 100),
        "good of all, %": ("good", ".1f", 100),
        "TTFT P50, ms": ("ttft_p50_ms", ".0f", 1),
        "P99": ("ttft_p99_ms", ".0f", 1),
        "TPOT P50, ms": ("tpot_p50_ms", ".1f", 1),
        "batch, tokens/s": ("lines_per_s", ".0f", LINE_TOKENS),
    }
    by_arm = {arm: [each for each in rounds if each.arm == arm] for arm in ("alone", "batch")}
    rows = [
        (arm, *(cell([scale * getattr(each, name) for each in found], spec=spec)
                for name, spec, scale in columns.values()))
        for arm, found in by_arm.items()
    ]  # fmt: skip
    lost = [
        100 * (alone.good - beside.good)
        for alone, beside in zip(by_arm["alone"], by_arm["batch"], strict=True)
    ]
    broken = [100 * (1 - each.kept) for each in by_arm["batch"]]
    return Section(
        "A batch beside interactive requests",
        f"The input has {LINES} lines; the gateway held at most {memory_mib[0]:.0f} MiB before it came and "
        f"{memory_mib[1]:.0f} MiB in the end.",
        (
            at_most("broken promises of the accepted beside a batch, %", broken, 1.0),
            at_most("good requests lost to the batch, points", lost, 1.0),
        ),
        (markdown(("", *columns), rows),),
        {"rounds": [asdict(each) for each in rounds], "memory_mib": list(memory_mib)},
    )
