"""KV from a prefill worker to a decode worker, two processes on the one device: how fast, how well hidden.

Hidden is what of a handoff runs while its prompt is still computed. By the workers' own metrics, prompts one
after the other; a chunk's blocks travel while the next one is computed.
"""

from __future__ import annotations

import asyncio

from prometheus_client.samples import Sample

from baton.fleet import Fleet, FleetSpec
from benchmarks.arms import reached
from benchmarks.gpu import anchors
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.fleet import START_TIMEOUT_S, worker_flags
from benchmarks.load import closed_loop, jobs
from benchmarks.observe import scrape, total
from reporting.section import Goal, Section, markdown
from workloads.shapes import RequestShape

PROMPTS = 8
POOL_PROMPTS = 4
"""That each worker's pool has room for: both share the device's memory."""
MIB = 1024 * 1024


def measure(bench: Bench) -> Section:
    """Bandwidth and hidden share."""
    bench.release()
    samples = asyncio.run(_serve(bench))
    seconds, exposed = (
        total(samples, f"baton_{name}_seconds_sum") for name in ("kv_handoff", "kv_handoff_exposed")
    )
    num_bytes = total(samples, "baton_kv_bytes_total")
    hidden = 1 - exposed / seconds
    bench.found["hidden"] = hidden
    transports = sorted({one.labels["transport"] for one in samples if one.name == "baton_kv_bytes_total"})
    rows = [
        (
            f"{PROMPTS} × {bench.sizes.handoff_tokens}",
            ", ".join(transports),
            f"{num_bytes / 1e9:.2f}",
            f"{num_bytes / seconds / 1e9:.2f}",
            f"{exposed / PROMPTS * 1e3:.1f}",
            f"{hidden:.1%}",
        )
    ]
    header = ("prompts × tokens", "by", "GB", "GB/s, first fetch to last", "left to wait for, ms", "hidden")
    goal = Goal("hidden share", (hidden,), anchors.HIDDEN_GOAL, spec=".1%")
    data = {"seconds": seconds, "exposed_s": exposed, "bytes": num_bytes}
    method = "A router, a prefill and a decode worker; greedy, two tokens each."
    return Section("Handoff", method, bench.goals(goal), (markdown(header, rows),), {"handoff": data})


async def _serve(bench: Bench) -> list[Sample]:
    tokens = bench.sizes.handoff_tokens
    pool_mib = -(-POOL_PROMPTS * tokens * bench.sizes.model.kv_bytes_per_token // MIB)
    flags = [*worker_flags(bench), "--kv-memory-mb", str(pool_mib)]
    spec = FleetSpec(
        model=bench.model,
        placement="disaggregated",
        extra_args={"prefill": flags, "decode": flags},
        run_dir=bench.folder / "handoff",
        start_timeout_s=START_TIMEOUT_S,
    )
    async with Fleet(spec) as fleet, reached(fleet.router_addresses, "handoff") as target:
        work = jobs(
            [RequestShape(tokens, 2)] * PROMPTS,
            vocab_size=target.vocab_size,
            max_context_tokens=target.max_context_tokens,
            seed=bench.seed,
        )
        records = await closed_loop(target.client, work, 1, lambda _: None)
        failed = [one.error for one in records if one.error]
        if failed:
            raise RuntimeError(f"{len(failed)} of {PROMPTS} requests failed, the first by {failed[0]}")
        return await scrape(fleet.process("decode-0").metrics_address)
