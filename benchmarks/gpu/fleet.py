"""Measure a fleet of processes on one device: a router and a worker of both roles, under `chat`.

A request is good if it met TTFT and TPOT of `anchors.py`. The bound is computed from this run's ceilings: the
rate that a device without any overhead carries in a steady state (`floors.steady_rate`), or the offered rate.
There is one worker, since processes that share a GPU take turns on it.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from itertools import takewhile

from baton import Slo
from baton.fleet import Fleet, FleetSpec
from benchmarks.fleets.arms import Target, reached
from benchmarks.fleets.load import jobs, open_loop
from benchmarks.fleets.metrics import RequestRecord
from benchmarks.gpu import anchors
from benchmarks.gpu.setting.bench import Bench
from benchmarks.gpu.setting.floors import prefill_s, steady_rate
from reporting.section import Goal, Section, markdown
from workloads.shapes import RequestShape, arrivals, shapes

START_TIMEOUT_S = 240.0


def measure(bench: Bench) -> Section:
    """Measure goodput at each rate."""
    bench.release()
    asked = [_asked(bench, rate) for rate in bench.sizes.rates]
    served = asyncio.run(_serve(bench, asked))
    rows, goals, data = [], [], {}
    for rate, requests, records in zip(bench.sizes.rates, asked, served, strict=True):
        name = f"chat at {rate:g}/s"
        bound = min(rate, _bound(bench, [shape for _, shape in requests]))
        good = sum(record.good for record in records) / bench.sizes.rate_s
        refused = sum(record.refused_after_s is not None for record in records)
        refuse_failures(records)
        bench.found[name] = good
        data[name] = {"good_per_s": good, "bound_per_s": bound, "refused": refused, "sent": len(records)}
        goals.append(Goal(f"good / bound at {rate:g}/s", (good / bound,), anchors.BOUND_SHARE))
        goals += anchors.goals(name, good)
        rows.append((f"{rate:g}", f"{bound:.1f}", f"{good:.1f}", f"{refused}", anchors.text(name)))
    header = ("offered/s", "bound, good/s", "good/s", "refused", "vLLM 0.25.1 on an H200, good/s")
    method = (
        f"Poisson for {bench.sizes.rate_s:g} s each from empty, one seed; TTFT ≤ {anchors.TTFT_MS} ms and "
        f"TPOT ≤ {anchors.TPOT_MS} ms are the SLO of each request, so the fleet may refuse."
    )
    return Section(
        "A fleet under chat", method, bench.goals(*goals), (markdown(header, rows),), {"fleet": data}
    )


def refuse_failures(records: Sequence[RequestRecord]) -> None:
    """Raise RuntimeError if requests failed, since the figures would then be of another workload."""
    failed = [record.error for record in records if record.error]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(records)} requests failed, the first by {failed[0]}")


def worker_flags(bench: Bench) -> list[str]:
    """Return the flags of each worker: the run's device, weights and sizes."""
    sizes = bench.sizes
    return [
        *("--device", bench.device.type, "--random-weights", str(bench.seed)),
        *("--max-num-seqs", str(sizes.max_num_seqs), "--token-budget", str(sizes.token_budget)),
    ]


Asked = list[tuple[float, RequestShape]]
"""Each request's time of arrival in seconds, and its lengths."""


def _asked(bench: Bench, rate: float) -> Asked:
    sizes = bench.sizes
    times = takewhile(lambda at: at < sizes.rate_s, arrivals("poisson", rate, bench.seed))
    most = int(rate * sizes.rate_s * 2) + 10
    return list(zip(times, shapes("chat", most, bench.seed, sizes.chat_scale), strict=False))


def _bound(bench: Bench, requests: Sequence[RequestShape]) -> float:
    shape, limits = bench.sizes.model, bench.limits
    return steady_rate(
        shape,
        limits,
        statistics.mean(request.prompt_tokens for request in requests),
        statistics.mean(request.output_tokens for request in requests),
        statistics.mean(prefill_s(shape, limits, request.prompt_tokens) for request in requests),
        anchors.TPOT_MS / 1e3,
    )


async def _serve(bench: Bench, asked: Sequence[Asked]) -> list[list[RequestRecord]]:
    spec = FleetSpec(
        model=bench.model,
        prefill=0,
        placement="aggregated",
        extra_args={"decode": worker_flags(bench)},
        run_dir=bench.folder / "fleet",
        standstill_s=START_TIMEOUT_S,
    )
    async with Fleet(spec) as fleet, reached(fleet.router_addresses, "fleet", ()) as target:
        return [await _offer(target, requests, bench.seed + place) for place, requests in enumerate(asked)]


async def _offer(target: Target, asked: Asked, seed: int) -> list[RequestRecord]:
    promise = Slo(ttft_ms=anchors.TTFT_MS, tpot_ms=anchors.TPOT_MS)
    work = jobs(target, [shape for _, shape in asked], seed, promise)
    return await open_loop(target.client, work, [at for at, _ in asked])
